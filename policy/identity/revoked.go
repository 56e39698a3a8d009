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
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// RevokedFile is the name of the list of revoked tokens in the directory of keys.
const RevokedFile = "revoked.jsonl"

// lookEvery is how often the list looks for what other processes revoked.
const lookEvery = 250 * time.Millisecond

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
// processes added to the file. It is safe for concurrent use.
type Revocations struct {
	path string

	mu   sync.Mutex // protects the fields below
	next time.Time  // when to look at the file again
	size int64      // of the file when it was read
	all  map[[sha256.Size]byte]Revocation
}

// OpenRevocations opens the list in a file that need not exist, and in db; nil = without
// a store.
func OpenRevocations(ctx context.Context, db *store.DB, path string) (*Revocations, error) {
	r := &Revocations{path: path, all: make(map[[sha256.Size]byte]Revocation)}
	err := r.read()
	if err == nil && db != nil {
		err = r.merge(ctx, db)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the list of revoked tokens: %w", err)
	}
	return r, nil
}

// merge brings into the store what only the file has, and the reverse.
func (r *Revocations) merge(ctx context.Context, db *store.DB) error {
	stored, err := store.Select(ctx, db.Read, func(v *Revocation) []any {
		return []any{&v.SHA256, &v.Subject, &v.Reason, store.Time{To: &v.At}}
	}, "SELECT sha256, subject, reason, at FROM revoked_tokens")
	if err != nil {
		return err
	}
	for _, v := range stored {
		if _, ok := r.Find(v.SHA256); !ok {
			if err := r.append(v); err != nil {
				return err
			}
		}
	}
	for _, v := range r.all {
		if !slices.ContainsFunc(stored, func(s Revocation) bool { return s.SHA256 == v.SHA256 }) {
			if err := insertRevocation(ctx, db, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// Add revokes a token, in the file and in db.
func (r *Revocations) Add(ctx context.Context, db *store.DB, v Revocation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.append(v)
	if err == nil {
		err = insertRevocation(ctx, db, v)
	}
	if err != nil {
		return fmt.Errorf("revoking a token: %w", err)
	}
	return nil
}

func insertRevocation(ctx context.Context, db *store.DB, v Revocation) error {
	return db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO revoked_tokens (sha256, subject, reason, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
			v.SHA256, v.Subject, v.Reason, store.Time{To: &v.At})
		return err
	})
}

// append adds a line to the file, durably.
func (r *Revocations) append(v Revocation) error {
	hash, ok := hashOf(v.SHA256)
	if !ok {
		return errors.New("it is no SHA-256")
	}
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		r.all[hash] = v
	}
	return err
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
	return r.find(sum)
}

func (r *Revocations) find(hash [sha256.Size]byte) (Revocation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.After(r.next) {
		r.next = now.Add(lookEvery)
		if info, err := os.Stat(r.path); err == nil && info.Size() != r.size {
			_ = r.read() // half a line of a process that writes: the next look reads it whole
		}
	}
	v, ok := r.all[hash]
	return v, ok
}

// Has reports whether the token with a hash was revoked: see Config.Revoked.
func (r *Revocations) Has(hash [sha256.Size]byte) bool {
	_, ok := r.find(hash)
	return ok
}
