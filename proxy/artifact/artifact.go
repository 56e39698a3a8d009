// Package artifact keeps the large and binary parts of results: bytes under
// the hash of their content, in files below one directory, and in the state
// file who was given them and until when.
//
// Several processes share directory and state file. These are the rules that
// keep the two together:
//
//   - A file appears under its name, and vanishes from it, only inside a write
//     transaction of the state file, of which there is one at a time among all
//     processes. A sweep deletes the row, then the file, then commits; a Put
//     writes its bytes to a draft beforehand, and in its transaction renames
//     the draft into place, or sees that the file is there, before it commits
//     the row. So no sweep takes a file from under a row that a Put commits.
//   - What a crash can leave is harmless. Before a sweep's commit it leaves a
//     row without a file, which is ErrNotFound and which the next Put of those
//     bytes mends; before a Put's commit, a file without a row, which the next
//     Open removes.
//   - A draft is locked for as long as its process writes it, so a sweep knows
//     the drafts of dead processes without asking a clock.
package artifact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// MaxSize is how many bytes one artifact may have: 64 MiB.
const MaxSize = 64 << 20

// OctetStream is the media type of what has none, or none that can be read.
const OctetStream = "application/octet-stream"

// Errors of the methods of [Store], for errors.Is.
var (
	// ErrNotFound: there is no such artifact, or it has expired, or its file is
	// gone, or the principal was not given it. Nobody can tell which.
	ErrNotFound = errors.New("no such artifact")
	// ErrTooLarge: more bytes than MaxSize, or than the store may hold at all.
	ErrTooLarge = errors.New("artifact is too large")
	// ErrDamaged: the file is there and is not what was put. The next Put of
	// those bytes mends it.
	ErrDamaged = errors.New("the stored artifact is damaged")
	// ErrNobody: a Put for a principal without a subject.
	ErrNobody = errors.New("an artifact needs an owner")
)

// Artifact says what one principal was given. It is a copy.
type Artifact struct {
	ID      string    // "sha256:<hex>" of the bytes
	Type    string    // media type, as the principal's first Put named it
	Size    int64     // bytes
	Created time.Time // when the principal was first given it; UTC
}

const (
	idPrefix = "sha256:"
	hexSize  = 2 * sha256.Size
)

// path is where the file of a is, from the root.
func (a *Artifact) path() string { return path(strings.TrimPrefix(a.ID, idPrefix)) }

// ID gives the id of data.
func ID(data []byte) string {
	sum := sha256.Sum256(data)
	return idPrefix + hex.EncodeToString(sum[:])
}

// ValidID reports whether id is "sha256:" and 64 lower-case hexadecimal
// digits. Nothing else is ever looked up.
func ValidID(id string) bool {
	digits, ok := strings.CutPrefix(id, idPrefix)
	return ok && validName(digits)
}

func validName(name string) bool {
	return len(name) == hexSize && strings.Trim(name, "0123456789abcdef") == ""
}

// maxType bounds a media type; longer ones are somebody's mistake.
const maxType = 255

// mediaType gives given in its canonical spelling, and OctetStream for what
// package mime cannot read.
func mediaType(given string) string {
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || len(given) > maxType || !strings.Contains(kind, "/") {
		return OctetStream
	}
	text := mime.FormatMediaType(kind, params)
	if text == "" || len(text) > maxType {
		return OctetStream
	}
	return text
}

const (
	defaultTTL = 7 * 24 * time.Hour
	defaultMax = 1 << 30
)

// Options are the settings of a [Store]; the zero value is usable.
type Options struct {
	// TTL is how long a principal can get what it was given, from the last time
	// it was given it; 0 = 7 days.
	TTL time.Duration
	// MaxBytes is how much a sweep leaves on disk, a small file counting as a
	// block of 4 KiB; 0 = 1 GiB. Between sweeps a process may add an eighth.
	MaxBytes int64
	// Now is the clock of created and expired; nil = time.Now.
	Now func() time.Time
	// Log gets the failures of the sweeps that nobody waits for; nil = none.
	Log hclog.Logger
}

// Store is the artifacts in one directory. It is safe for concurrent use, and
// any number of Stores, in any number of processes on one machine, may share
// directory and state file; see the package comment.
type Store struct {
	db   *store.DB
	root *os.Root
	opts Options

	wrote   atomic.Int64  // disk bytes put since the last sweep
	full    chan struct{} // asks the sweeper to come early
	orphans atomic.Bool   // there may be files without a row
	stop    context.CancelFunc
	swept   chan struct{} // closed when the sweeper has ended

	verified *lru.Cache[string, os.FileInfo] // the files whose hash was right, by id
}

// Open gives the artifacts in dir, which it makes when there is none, and
// closes to other users (0700). db has the migrations of [store.Migrations]
// and outlives the Store. What is due, and what dead processes left, is
// removed before Open returns.
func Open(ctx context.Context, dir string, db *store.DB, opts Options) (*Store, error) {
	opts.TTL = cmp.Or(max(0, opts.TTL), defaultTTL)
	opts.MaxBytes = max(block, cmp.Or(max(0, opts.MaxBytes), defaultMax))
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	root, err := openRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening artifacts: %w", err)
	}
	s := &Store{db: db, root: root, opts: opts, full: make(chan struct{}, 1), swept: make(chan struct{})}
	s.verified, _ = lru.New[string, os.FileInfo](maxVerified) // an error means a size below 1
	s.orphans.Store(true)
	if err := s.Sweep(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("opening artifacts: %w", err), root.Close())
	}
	ctx, s.stop = context.WithCancel(context.Background())
	go s.sweeper(ctx)
	return s, nil
}

func openRoot(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// Close waits for the sweeper to end. Files that Get gave stay open; every
// later call that needs a file is an error (fs.ErrClosed).
func (s *Store) Close() error {
	s.stop()
	<-s.swept
	if err := s.root.Close(); err != nil {
		return fmt.Errorf("closing artifacts: %w", err)
	}
	return nil
}

// Put keeps data and gives it to owner: once Put has returned, both survive a
// crash. Putting the same bytes again renews the grant, and writes the file
// only when it is not intact. The media type is the one of owner's first Put,
// in canonical spelling, or OctetStream.
//
// It refuses with ErrTooLarge and ErrNobody. Any other error is the disk's or
// the state file's; then owner may, but need not, have been given data.
func (s *Store) Put(ctx context.Context, owner policy.Principal, given string, data []byte) (Artifact, error) {
	if limit := min(MaxSize, s.opts.MaxBytes); int64(len(data)) > limit {
		return Artifact{}, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(data), limit)
	}
	if !owner.Valid() {
		return Artifact{}, ErrNobody
	}
	a := Artifact{ID: ID(data), Type: mediaType(given), Size: int64(len(data))}
	err := errVanished
	if file, broken := s.open(a); broken == nil {
		_ = file.Close() // it was only read
		err = s.record(ctx, owner, &a, nil)
	}
	if errors.Is(err, errVanished) {
		err = s.store(ctx, owner, &a, data)
	}
	if err != nil {
		return Artifact{}, fmt.Errorf("storing artifact: %w", err)
	}
	return a, nil
}

// store writes data and the rows of a.
func (s *Store) store(ctx context.Context, owner policy.Principal, a *Artifact, data []byte) error {
	draft, err := s.stage(a.path(), data)
	if err != nil {
		return err
	}
	defer s.discard(draft)
	if err = s.record(ctx, owner, a, draft); err != nil {
		s.orphans.Store(true)
		return err
	}
	s.count(a.Size)
	return nil
}

// count brings the sweeper when much was put since it came.
func (s *Store) count(size int64) {
	if s.wrote.Add(max(size, block)) <= s.opts.MaxBytes/8 {
		return
	}
	s.wrote.Store(0)
	select {
	case s.full <- struct{}{}:
	default:
	}
}

const dropGrants = "DELETE FROM artifact_grants WHERE artifact = ? AND granted <= ?"

const putArtifact = `INSERT INTO artifacts (id, size, granted) VALUES (?, ?, ?)
 ON CONFLICT (id) DO UPDATE SET size = excluded.size, granted = max(granted, excluded.granted)`

const putGrant = `INSERT INTO artifact_grants (artifact, subject, tenant, type, created, granted) VALUES (?, ?, ?, ?, ?, ?)
 ON CONFLICT (artifact, subject, tenant) DO UPDATE SET granted = max(granted, excluded.granted) RETURNING type, created`

// record writes the rows of a, of which it sets Type and Created, and puts its file
// in place last before the commit. errVanished means that there is neither a draft
// nor a file.
func (s *Store) record(ctx context.Context, owner policy.Principal, a *Artifact, draft *os.File) error {
	now := s.opts.Now()
	return s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, putArtifact, a.ID, a.Size, now.UnixNano()); err != nil {
			return err
		}
		// A new grant to the same principal starts again after it has expired.
		if _, err := tx.ExecContext(ctx, dropGrants, a.ID, s.cutoff(now)); err != nil {
			return err
		}
		row := tx.QueryRowContext(ctx, putGrant, a.ID, owner.Subject, owner.Tenant, a.Type, now.UnixNano(), now.UnixNano())
		if err := row.Scan(&a.Type, store.Time{To: &a.Created}); err != nil {
			return err
		}
		return s.place(a, draft)
	})
}

// cutoff is the time at and before which a grant is expired.
func (s *Store) cutoff(now time.Time) int64 { return now.Add(-s.opts.TTL).UnixNano() }

const findArtifact = `SELECT a.size, g.type, g.created FROM artifact_grants g JOIN artifacts a ON a.id = g.artifact
 WHERE g.artifact = ? AND g.subject = ? AND g.tenant = ? AND g.granted > ?`

// Get gives an artifact and its bytes, from the first on, to a principal that
// was given it: the same subject of the same tenant, whatever its roles. The
// caller closes the file; it stays readable when the artifact is swept.
//
// ErrNotFound for all others, ErrDamaged when the file is not what was put.
// The first Get in a process reads the whole file to check its hash (about
// 50 ms for 64 MiB); later ones do so only when the file's inode, size or time
// of change is another.
func (s *Store) Get(ctx context.Context, who policy.Principal, id string) (Artifact, *os.File, error) {
	if !who.Valid() || !ValidID(id) {
		return Artifact{}, nil, ErrNotFound
	}
	a := Artifact{ID: id}
	row := s.db.Read.QueryRowContext(ctx, findArtifact, id, who.Subject, who.Tenant, s.cutoff(s.opts.Now()))
	err := row.Scan(&a.Size, &a.Type, store.Time{To: &a.Created})
	var file *os.File
	if err == nil {
		file, err = s.open(a)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, sql.ErrNoRows):
		return Artifact{}, nil, ErrNotFound
	case err != nil:
		return Artifact{}, nil, fmt.Errorf("getting artifact: %w", err)
	}
	return a, file, nil
}
