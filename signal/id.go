package signal

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids makes the ids of this process.
var ids = struct {
	mu      sync.Mutex // protects the fields below
	entropy *ulid.MonotonicEntropy
	last    uint64 // milliseconds of the latest id
}{entropy: ulid.Monotonic(rand.Reader, 0)}

// NewID gives prefix and a ULID with cryptographic entropy, such as
// "dec_01J…". Ids of one process grow strictly in the order of the calls, also
// when the clock steps back. It never fails and is safe for concurrent use.
func NewID(prefix string) string { return newID(prefix, time.Now()) }

func newID(prefix string, now time.Time) string {
	buf := make([]byte, 0, 48)
	buf = append(buf, prefix...)
	buf = append(buf, make([]byte, ulid.EncodedSize)...)
	id := nextULID(uint64(max(now.UnixMilli(), 0)))
	// The buffer has the one size that this can refuse.
	_ = id.MarshalTextTo(buf[len(prefix):])
	return string(buf)
}

func nextULID(ms uint64) ulid.ULID {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.last = max(ids.last, ms)
	for {
		// The error is an overflow within one millisecond: the next one has room.
		id, err := ulid.New(ids.last, ids.entropy)
		if err == nil {
			return id
		}
		ids.last++
	}
}

// validID reports whether id is prefix and a ULID in its canonical spelling.
func validID(id, prefix string) bool {
	if len(id) != len(prefix)+ulid.EncodedSize || id[:len(prefix)] != prefix {
		return false
	}
	u, err := ulid.ParseStrict(id[len(prefix):])
	return err == nil && u.String() == id[len(prefix):]
}
