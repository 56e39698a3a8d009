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
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
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
)

// Revocation is one revoked token.
type Revocation struct {
	SHA256  string    `json:"sha256"` // HashToken of the token
	Subject string    `json:"subject,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
}

// Revocations is the list of revoked tokens. It is in the store, and in a file outside
// the state directory: each brings back what the other lacks, so that a restored backup
// revives no token. A list only grows, and has within a quarter of a second what other
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
	if err == nil && db != nil {
		err = r.merge(ctx)
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

// fetch brings what only the store has into the list and its file. What the file cannot
// take is in the list nevertheless.
func (r *Revocations) fetch(ctx context.Context) (stored []Revocation, err error) {
	stored, err = store.Select(ctx, r.db.Read, func(v *Revocation) []any {
		return []any{&v.SHA256, &v.Subject, &v.Reason, store.Time{To: &v.At}}
	}, "SELECT sha256, subject, reason, at FROM revoked_tokens")
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
	if !r.db.Shared() {
		return
	}
	woken := make(chan struct{}, 1)
	var listener sync.WaitGroup
	listener.Go(func() { r.db.Listen(ctx, store.Tokens, func(...string) { wait.Signal(woken) }) })
	defer listener.Wait()
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for began := time.Now(); ; began = time.Now() {
		r.follow(ctx, began)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-woken:
		}
	}
}

// follow reads the store once, and notes when.
func (r *Revocations) follow(ctx context.Context, began time.Time) {
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
		_, err := tx.ExecContext(ctx, "INSERT INTO revoked_tokens (sha256, subject, reason, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
			v.SHA256, v.Subject, v.Reason, store.Time{To: &v.At})
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
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
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
