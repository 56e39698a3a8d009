package signal

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids makes the ids of this process.
var ids = struct {
	mu      sync.Mutex // protects the fields below
	entropy *ulid.MonotonicEntropy
	last    uint64    // milliseconds of the latest id
	id      ulid.ULID // the latest
}{entropy: ulid.Monotonic(rand.Reader, 0)}

// NewID gives prefix and a ULID with cryptographic entropy, such as
// "dec_01J…". Ids of one process grow strictly in the order of the calls, also
// when the clock steps back. It never fails and is safe for concurrent use.
// See Reproducible for the one mode in which ids are counted.
func NewID(prefix string) string { return newID(prefix, time.Now()) }

func newID(prefix string, now time.Time) string {
	var room [idRoom]byte
	return string(appendID(room[:0], prefix, newULID(now)))
}

// NewIDs is NewID for each of prefixes, in their order. It puts the ids into ids, which is
// as long; they share the memory of one string.
func NewIDs(ids []string, prefixes ...string) {
	var room [4 * idRoom]byte
	text, now := room[:0], time.Now()
	for _, prefix := range prefixes {
		text = appendID(text, prefix, newULID(now))
	}
	rest := string(text)
	for i, prefix := range prefixes {
		size := len(prefix) + ulid.EncodedSize
		ids[i], rest = rest[:size], rest[size:]
	}
}

// UniqueID is NewID for ids that outlive a process and must never come again,
// such as those of tickets: Reproducible has no effect on it.
func UniqueID(prefix string) string {
	var room [idRoom]byte
	return string(appendID(room[:0], prefix, uniqueULID(time.Now())))
}

// idRoom is the length of an id with a prefix of the usual length.
const idRoom = len("sig_") + ulid.EncodedSize

// appendID appends prefix and id to text.
func appendID(text []byte, prefix string, id ulid.ULID) []byte {
	var encoded [ulid.EncodedSize]byte
	_ = id.MarshalTextTo(encoded[:]) // which fails for another size
	return append(append(text, prefix...), encoded[:]...)
}

// newULID returns the ULID of the next id of NewID.
func newULID(now time.Time) ulid.ULID {
	if c := counted.Load(); c != nil {
		return c.ulid()
	}
	return uniqueULID(now)
}

// uniqueULID returns a ULID with the time now, or with that of the latest one if it is later.
func uniqueULID(now time.Time) ulid.ULID {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.last = max(ids.last, uint64(max(now.UnixMilli(), 0)))
	for {
		_ = ids.id.SetTime(ids.last) // which fails in the year 10889
		if err := ids.entropy.MonotonicRead(ids.last, ids.id[6:]); err == nil {
			return ids.id
		}
		ids.last++ // an overflow within one millisecond: the next one has room
	}
}

// Now is the time that is stamped on what this process makes: the clock's,
// unless Reproducible is in effect. It is safe for concurrent use.
func Now() time.Time {
	if c := counted.Load(); c != nil {
		return c.now()
	}
	return time.Now()
}

// counted is the reproducible mode, nil in the normal one.
var counted atomic.Pointer[counter]

// counter has one count for ids and one for times, so that reading the clock
// does not change the ids that follow.
type counter struct {
	epoch      time.Time
	ids, ticks atomic.Uint64
}

func (c *counter) now() time.Time {
	return c.epoch.Add(time.Duration(c.ticks.Add(1)) * time.Millisecond)
}

func (c *counter) ulid() (id ulid.ULID) {
	// Beyond the last time that a ULID can hold the id has time 0.
	_ = id.SetTime(uint64(max(c.epoch.UnixMilli(), 0)))
	binary.BigEndian.PutUint64(id[len(id)-8:], c.ids.Add(1))
	return id
}

// Reproducible makes the ids and times of this whole process reproducible:
// from now on ids (all but those of UniqueID) are ULIDs of epoch that count
// up from 1, and Now, with it every created_at, starts one millisecond after
// epoch and grows by one with each call. Two runs that ask in the same order
// get the same. restore brings back the mode from before; both are safe for
// concurrent use, but should frame the run, not happen within it.
//
// It is for golden runs only: such ids can be guessed and come again in the
// next run, and such times are no times.
func Reproducible(epoch time.Time) (restore func()) {
	before := counted.Swap(&counter{epoch: epoch.UTC().Round(0)})
	return func() { counted.Store(before) }
}

// validID reports whether id is prefix and a ULID in its canonical spelling.
func validID(id, prefix string) bool {
	if len(id) != len(prefix)+ulid.EncodedSize || id[:len(prefix)] != prefix {
		return false
	}
	u, err := ulid.ParseStrict(id[len(prefix):])
	return err == nil && u.String() == id[len(prefix):]
}
