package artifact

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
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
	// those bytes repairs it.
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
	idPrefix    = "sha256:"
	hexSize     = 2 * sha256.Size
	draftPrefix = ".put-"
	stageTries  = 10
	maxVerified = 1024 // files whose check is remembered
	defaultTTL  = 7 * 24 * time.Hour
	defaultMax  = 1 << 30

	// sweepEvery is how often a process sweeps when little is put.
	sweepEvery = time.Minute
	// batch is how many files one transaction removes, so that calls that need
	// the state file wait for milliseconds only.
	batch = 64
	// block is what a file takes on disk at least. Without it a limit of bytes
	// would be none of files.
	block = 4096
)

// path is where the file of a is, from the root.
func (a *Artifact) path() string { return path(strings.TrimPrefix(a.ID, idPrefix)) }

// ID returns the id of data.
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

// mediaType returns given in its canonical spelling, and OctetStream for what
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

// Open returns the artifacts in dir, which it makes when there is none, and
// closes to other users (0700). db has the migrations of [store.Migrations]
// and outlives the Store. What is due, and what dead processes left, is
// removed before Open returns.
func Open(ctx context.Context, dir string, db *store.DB, opts Options) (*Store, error) {
	opts.TTL = cmp.Or(max(0, opts.TTL), defaultTTL)
	opts.MaxBytes = max(block, cmp.Or(max(0, opts.MaxBytes), defaultMax))
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	root, err := openRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening artifacts: %w", err)
	}
	s := &Store{db: db, root: root, opts: opts, full: make(chan struct{}, 1), swept: make(chan struct{})}
	s.verified, _ = lru.New[string, os.FileInfo](maxVerified) // an error means a size below 1
	s.orphans.Store(true)
	if err = s.Sweep(ctx); err == nil {
		err = s.share(ctx)
	}
	if err != nil {
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

// Put stores data and grants it to owner: once Put has returned, both survive a
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
	for tries := 0; errors.Is(err, errVanished) && tries < stageTries; tries++ {
		err = s.store(ctx, owner, &a, data)
	}
	if err != nil {
		return Artifact{}, fmt.Errorf("storing artifact: %w", err)
	}
	return a, nil
}

// store writes data and the rows of a.
func (s *Store) store(ctx context.Context, owner policy.Principal, a *Artifact, data []byte) error {
	draft, err := s.stage(data)
	if err != nil {
		return err
	}
	defer s.discard(draft)
	if s.db.Shared() {
		err = s.upload(ctx, a.ID, bytes.NewReader(data))
	}
	if err == nil {
		err = s.record(ctx, owner, a, draft)
	}
	if err != nil {
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
	wait.Signal(s.full)
}

const dropGrants = "DELETE FROM artifact_grants WHERE artifact = ? AND granted <= ?"

const putArtifact = `INSERT INTO artifacts AS a (id, size, granted) VALUES (?, ?, ?)
 ON CONFLICT (id) DO UPDATE SET size = excluded.size, granted = CASE WHEN excluded.granted > a.granted THEN excluded.granted ELSE a.granted END`

const putGrant = `INSERT INTO artifact_grants AS g (artifact, subject, tenant, type, created, granted) VALUES (?, ?, ?, ?, ?, ?)
 ON CONFLICT (artifact, subject, tenant) DO UPDATE SET granted = CASE WHEN excluded.granted > g.granted THEN excluded.granted ELSE g.granted END RETURNING type, created`

// record writes the rows of a, of which it sets Type and Created, and puts its file
// in place last before the commit. errVanished means that there is neither a draft
// nor a file, or that the database lacks the bytes.
func (s *Store) record(ctx context.Context, owner policy.Principal, a *Artifact, draft *os.File) error {
	now := s.opts.Now()
	return s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.db.Lock(ctx, tx, a.ID); err != nil {
			return err
		}
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
		if err := s.complete(ctx, tx, a); err != nil {
			return err
		}
		return s.place(a, draft)
	})
}

// cutoff is the time at and before which a grant is expired.
func (s *Store) cutoff(now time.Time) int64 { return now.Add(-s.opts.TTL).UnixNano() }

const findArtifact = `SELECT a.size, g.type, g.created FROM artifact_grants g JOIN artifacts a ON a.id = g.artifact
 WHERE g.artifact = ? AND g.subject = ? AND g.tenant = ? AND g.granted > ?`

// Get returns an artifact and its bytes, from the first on, to a principal that
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
		file, err = s.openOrFetch(ctx, a)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, sql.ErrNoRows):
		return Artifact{}, nil, ErrNotFound
	case err != nil:
		return Artifact{}, nil, fmt.Errorf("getting artifact: %w", err)
	}
	return a, file, nil
}

// errVanished: the file was there, and a sweep was faster.
var errVanished = errors.New("the file was swept")

// path is where a file lies, from the root: name is a valid name.
func path(name string) string { return name[:2] + "/" + name }

// stage writes data to a new draft, durably. A draft is a file that has no name yet; it is locked until it is
// discarded or its process ends.
func (s *Store) stage(data []byte) (*os.File, error) {
	draft, err := s.newDraft()
	if err != nil {
		return nil, err
	}
	if _, err = draft.Write(data); err == nil {
		err = draft.Sync()
	}
	if err != nil {
		s.discard(draft)
		return nil, err
	}
	return draft, nil
}

// newDraft makes an empty file and locks it. A sweep that sees the file
// between the two takes it for a dead process's; then there is another try.
func (s *Store) newDraft() (*os.File, error) {
	for range stageTries {
		draft, err := s.root.OpenFile(draftPrefix+rand.Text(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if err = files.TryLock(draft); err == nil {
			_, err = s.root.Lstat(filepath.Base(draft.Name()))
		}
		if err == nil {
			return draft, nil
		}
		s.discard(draft)
		if !errors.Is(err, files.ErrHeld) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, errors.New("every draft was taken for a dead one")
}

// discard ends a draft; one that was placed has lost its name already.
func (s *Store) discard(draft *os.File) {
	_ = s.root.Remove(filepath.Base(draft.Name())) // what stays is swept
	_ = draft.Close()
}

func (s *Store) makeDir(name string) error {
	err := s.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = s.syncDir(".")
	}
	return err
}

// place renames the draft of a to its file, durably; without a draft it checks that the
// file is there. The caller is in a write transaction.
func (s *Store) place(a *Artifact, draft *os.File) error {
	if draft != nil {
		return s.put(draft, a.path())
	}
	info, err := s.root.Lstat(a.path())
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != a.Size {
		return errVanished
	}
	return err
}

// put gives a draft the name of its file, durably.
func (s *Store) put(draft *os.File, file string) error {
	dir := filepath.Dir(file)
	err := s.makeDir(dir)
	if err == nil {
		err = s.root.Rename(filepath.Base(draft.Name()), file)
	}
	if err == nil {
		err = s.syncDir(dir)
	}
	return err
}

// syncDir makes the names in a directory durable.
func (s *Store) syncDir(name string) error {
	dir, err := s.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// open opens the file of a when it has its size and its hash. It reads a file again
// only when its inode, size or time of change is another than when its hash was right.
func (s *Store) open(a Artifact) (_ *os.File, err error) {
	file, err := s.root.Open(a.path())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // err says more
		}
	}()
	info, err := file.Stat()
	switch was, checked := s.verified.Get(a.ID); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() != a.Size:
		return nil, fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, info.Size(), a.Size)
	case checked && os.SameFile(was, info) && was.ModTime().Equal(info.ModTime()) && was.Size() == info.Size():
		return file, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return nil, err
	}
	if idPrefix+hex.EncodeToString(hash.Sum(nil)) != a.ID {
		return nil, fmt.Errorf("%w: it has another hash", ErrDamaged)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	s.verified.Add(a.ID, info)
	return file, nil
}
