package identity

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/store"
)

// RevokedFile is the name of the list of revoked tokens in the directory of keys.
const RevokedFile = "revoked.jsonl"

const (
	// lookEvery is how often the list looks for what other processes added to the file.
	lookEvery = 250 * time.Millisecond
	// readEvery is how often Follow reads the store when nothing wakes it, and readWithin
	// bounds one reading.
	readEvery, readWithin = 2 * time.Second, 5 * time.Second
	// unreadFor is how long the store may be out of reach before tokens are refused.
	unreadFor = 30 * time.Second
	// keepEnded is how long a revocation is kept after its token has ended by itself: longer
	// than any clock is wrong unnoticed, because a clock that is set back revives the token.
	keepEnded = 30 * 24 * time.Hour
)

// Revocation is one revoked token.
type Revocation struct {
	SHA256  string    `json:"sha256"` // HashToken of the token
	Subject string    `json:"subject,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
	Until   time.Time `json:"until,omitzero"` // see [EndOf]; zero = the token may be good for ever
}

// ended reports whether the token of v ended by itself so long ago that nobody can use it.
func (v Revocation) ended(now time.Time) bool {
	return !v.Until.IsZero() && now.Sub(v.Until) > keepEnded
}

// EndOf returns the time after which a token is good nowhere, whatever the configuration says: the
// member exp of a JWT (RFC 7519, section 4.1.4), which cannot be changed without changing the
// token. It is zero for any other token.
func EndOf(token string) time.Time {
	f, err := ReadJWT(token)
	var seconds float64
	if err != nil || json.Unmarshal(f.Expires, &seconds) != nil || seconds <= 0 || seconds > maxSeconds {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0).UTC()
}

// maxSeconds is the last second that the store can keep, in the year 2262.
const maxSeconds = math.MaxInt64 / 1e9

// Revocations is the list of revoked tokens. It is in the store, and in a file outside
// the state directory: each brings back what the other lacks, so that a restored backup
// revives no token. Opening the list removes tokens that ended by themselves more than 30 days
// ago; otherwise it only grows. It has within a quarter of a second what other
// processes added to the file. With a store on a server, Follow brings what other
// replicas revoked. It is safe for concurrent use.
type Revocations struct {
	path   string
	db     *store.DB
	unread time.Duration // see unreadFor

	mu    sync.Mutex // protects the fields below
	next  time.Time  // when to look at the file again
	size  int64      // of the file when it was read
	all   map[[sha256.Size]byte]Revocation
	fresh time.Time // when the store was read; zero = nobody follows it
}

// OpenRevocations opens the list in a file that need not exist, and in db; nil = without
// a store.
func OpenRevocations(ctx context.Context, db *store.DB, path string) (*Revocations, error) {
	r := &Revocations{path: path, db: db, unread: unreadFor, all: make(map[[sha256.Size]byte]Revocation)}
	err := r.read()
	if err != nil && db != nil { // half a line of a process that writes, if anything
		err = r.locked(r.read)
	}
	if err == nil && db != nil {
		err = errors.Join(r.merge(ctx), r.prune(ctx, time.Now()))
	}
	if err != nil {
		return nil, fmt.Errorf("opening the list of revoked tokens: %w", err)
	}
	return r, nil
}

// merge brings into the store what only the file has, and the reverse.
func (r *Revocations) merge(ctx context.Context) error {
	stored, err := r.fetch(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	all := maps.Clone(r.all)
	r.mu.Unlock()
	for _, v := range all {
		if !slices.ContainsFunc(stored, func(s Revocation) bool { return s.SHA256 == v.SHA256 }) {
			if err := r.insert(ctx, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// prune removes the tokens that have ended from the store, the file and the list.
func (r *Revocations) prune(ctx context.Context, now time.Time) error {
	gone := func(_ [sha256.Size]byte, v Revocation) bool { return v.ended(now) }
	r.mu.Lock()
	n := len(r.all)
	maps.DeleteFunc(r.all, gone)
	pruned := n - len(r.all)
	r.mu.Unlock()
	if pruned == 0 {
		return nil
	}
	before := now.Add(-keepEnded)
	_, err := r.db.Exec(ctx, "DELETE FROM revoked_tokens WHERE until > 0 AND until < ?", store.Time{To: &before})
	return errors.Join(err, r.locked(func() error {
		text, err := os.ReadFile(r.path)
		if err != nil {
			return err
		}
		var kept []byte
		for line := range bytes.Lines(text) {
			var v Revocation
			if err := json.Unmarshal(line, &v); err != nil || !v.ended(now) {
				kept = append(kept, line...)
			}
		}
		return files.Replace(r.path, kept, 0o600)
	}))
}

// locked calls change while no other process changes the file.
func (r *Revocations) locked(change func() error) error {
	f, err := os.OpenFile(r.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err = files.Lock(f); err == nil {
		err = change()
	}
	return errors.Join(err, f.Close())
}

// fetch brings what only the store has into the list and its file. What the file cannot
// take is in the list nevertheless.
func (r *Revocations) fetch(ctx context.Context) (stored []Revocation, err error) {
	stored, err = store.Select(ctx, r.db.Read, func(v *Revocation) []any {
		return []any{&v.SHA256, &v.Subject, &v.Reason, store.Time{To: &v.At}, store.Time{To: &v.Until}}
	}, "SELECT sha256, subject, reason, at, until FROM revoked_tokens")
	for _, v := range stored {
		if _, ok := r.Find(v.SHA256); !ok {
			err = errors.Join(err, r.append(v))
		}
	}
	return stored, err
}

// Follow brings what other replicas revoke in a store on a server, at once when the server
// notifies and otherwise within 2 s, until ctx ends. It fails closed: when the store cannot
// be read for 30 s, Check refuses every token until it is read again. With a file it
// returns at once: Check looks at the file.
func (r *Revocations) Follow(ctx context.Context) {
	if r.db.Shared() {
		r.db.Follow(ctx, store.Tokens, readEvery, r.follow)
	}
}

// follow reads the store once, and notes when.
func (r *Revocations) follow(ctx context.Context) {
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, readWithin)
	defer stop()
	_, err := r.fetch(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || r.fresh.IsZero() { // OpenRevocations has read it
		r.fresh = began
	}
}

// Add revokes a token, in the file and in the store.
func (r *Revocations) Add(ctx context.Context, v Revocation) error {
	err := r.append(v)
	if err == nil {
		err = r.insert(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("revoking a token: %w", err)
	}
	return nil
}

func (r *Revocations) insert(ctx context.Context, v Revocation) error {
	return r.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO revoked_tokens (sha256, subject, reason, at, until) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
			v.SHA256, v.Subject, v.Reason, store.Time{To: &v.At}, store.Time{To: &v.Until})
		return errors.Join(err, r.db.Notify(ctx, tx, store.Tokens))
	})
}

// append adds a revocation to the list and a line to the file, durably.
func (r *Revocations) append(v Revocation) error {
	hash, ok := hashOf(v.SHA256)
	if !ok {
		return errors.New("it is no SHA-256")
	}
	r.mu.Lock()
	r.all[hash] = v
	r.mu.Unlock()
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return r.locked(func() error {
		f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(append(line, '\n'))
		return errors.Join(err, f.Sync(), f.Close())
	})
}

// read adds what the file has. A file that is gone takes nothing away.
func (r *Revocations) read() error {
	text, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		var v Revocation
		if err := json.Unmarshal(line, &v); err != nil {
			return fmt.Errorf("%s: %w", r.path, err)
		}
		if hash, ok := hashOf(v.SHA256); ok {
			r.all[hash] = v
		}
	}
	r.size = int64(len(text))
	return nil
}

// hashOf reads 64 hexadecimal digits.
func hashOf(text string) (hash [sha256.Size]byte, ok bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != sha256.Size {
		return hash, false
	}
	return [sha256.Size]byte(raw), true
}

// Find returns the revocation of a token, by its hash in hexadecimal.
func (r *Revocations) Find(hash string) (Revocation, bool) {
	sum, _ := hashOf(hash)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findLocked(sum, time.Now())
}

// findLocked finds a revocation at a time. The caller must hold r.mu.
func (r *Revocations) findLocked(hash [sha256.Size]byte, now time.Time) (Revocation, bool) {
	if now.After(r.next) {
		r.next = now.Add(lookEvery)
		if info, err := os.Stat(r.path); err == nil && info.Size() != r.size {
			_ = r.read() // half a line of a process that writes: the next look reads it whole
		}
	}
	v, ok := r.all[hash]
	return v, ok
}

// Check returns the Refusal of a token: see Config.Revoked.
func (r *Revocations) Check(hash [sha256.Size]byte) error {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.findLocked(hash, now); ok {
		return refuse(Revoked, "the token was revoked")
	}
	if !r.fresh.IsZero() && now.Sub(r.fresh) > r.unread {
		return refuse(Unread, "whether the token was revoked cannot be read from the store")
	}
	return nil
}
