package artifact

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/filelock"
	"github.com/toolgate/toolgate/internal/store"
)

// errVanished: the file was there, and a sweep was faster.
var errVanished = errors.New("the file was swept")

const (
	draftPrefix = ".put-"
	stageTries  = 10
	maxVerified = 1024 // files whose check is remembered
)

// path is where a file lies, from the root: name is a valid name.
func path(name string) string { return name[:2] + "/" + name }

// draft is bytes that have no name yet. It is locked until it is discarded or
// its process ends.
type draft struct {
	name string
	file *os.File
}

// stage writes data to a new draft, durably, and makes the directory that it
// will go to.
func (s *Store) stage(name string, data []byte) (*draft, error) {
	d, err := s.newDraft()
	if err != nil {
		return nil, err
	}
	if _, err = d.file.Write(data); err == nil {
		err = d.file.Sync()
	}
	if err == nil {
		err = s.makeShard(name[:2])
	}
	if err != nil {
		s.discard(d)
		return nil, err
	}
	return d, nil
}

// newDraft makes an empty file and locks it. A sweep that sees the file
// between the two takes it for a dead process's; then there is another try.
func (s *Store) newDraft() (*draft, error) {
	for range stageTries {
		name := draftPrefix + rand.Text()
		file, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		d := &draft{name: name, file: file}
		err = filelock.TryLock(file)
		if err == nil {
			_, err = s.root.Lstat(name)
		}
		if err == nil {
			return d, nil
		}
		s.discard(d)
		if !errors.Is(err, filelock.ErrHeld) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, errors.New("every draft was taken for a dead one")
}

// discard ends a draft; one that was placed has lost its name already.
func (s *Store) discard(d *draft) {
	_ = s.root.Remove(d.name) // what stays is swept
	_ = d.file.Close()
}

func (s *Store) makeShard(name string) error {
	err := s.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = s.syncDir(".")
	}
	return err
}

// place gives the draft of p its name, durably, or sees that the file is
// there. The caller is in a write transaction.
func (s *Store) place(p put) error {
	if p.draft != nil {
		if err := s.root.Rename(p.draft.name, path(p.name)); err != nil {
			return err
		}
		return s.syncDir(p.name[:2])
	}
	info, err := s.root.Lstat(path(p.name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != p.size {
		return errVanished
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

// intact reports whether the file of that name has its bytes.
func (s *Store) intact(name string, size int64) bool {
	file, err := s.open(name, size)
	if err != nil {
		return false
	}
	_ = file.Close() // it was only read
	return true
}

// open gives the file of that name when it has its size and its hash.
func (s *Store) open(name string, size int64) (*os.File, error) {
	file, err := s.root.Open(path(name))
	if err != nil {
		return nil, err
	}
	if err := s.verify(file, name, size); err != nil {
		_ = file.Close() // err says more
		return nil, err
	}
	return file, nil
}

// verify checks the size and the hash of a file. It reads a file again only when its
// inode, size or time of change is another than when its hash was right.
func (s *Store) verify(file *os.File, name string, size int64) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != size {
		return fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, info.Size(), size)
	}
	if was, ok := s.verified.Get(name); ok && os.SameFile(was, info) && was.ModTime().Equal(info.ModTime()) && was.Size() == info.Size() {
		return nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != name {
		return fmt.Errorf("%w: it has another hash", ErrDamaged)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s.verified.Add(name, info)
	return nil
}

const (
	// sweepEvery is how often a process sweeps when little is put.
	sweepEvery = time.Minute
	// batch is how many files one transaction removes, so that calls that need
	// the state file wait for milliseconds only.
	batch = 64
	// block is what a file takes on disk at least. Without it a limit of bytes
	// would be none of files.
	block = 4096
)

// sweeper sweeps until ctx ends.
func (s *Store) sweeper(ctx context.Context) {
	defer close(s.swept)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.full:
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("artifacts are not swept", "error", err)
		}
	}
}

// Sweep removes what has expired for everybody, then the artifacts longest
// not given to anybody until what is left fits MaxBytes, then what dead
// processes left half written. It goes on after a file that cannot be removed
// and gives that error at the end. Open and a goroutine of the Store call it.
func (s *Store) Sweep(ctx context.Context) error {
	s.wrote.Store(0)
	err := errors.Join(s.sweepDue(ctx), s.sweepGrants(ctx), s.sweepOrphans(ctx), s.sweepDrafts())
	if err != nil {
		return fmt.Errorf("sweeping artifacts: %w", err)
	}
	return nil
}

// victim is an artifact to remove, unless it was granted again meanwhile.
type victim struct {
	id      string
	granted int64
}

const findVictims = `SELECT id, granted FROM
 (SELECT id, granted, sum(max(size, ?)) OVER (ORDER BY granted DESC, id ROWS UNBOUNDED PRECEDING) AS kept FROM artifacts)
 WHERE granted <= ? OR kept > ? ORDER BY granted, id`

func (v *victim) fields() []any { return []any{&v.id, &v.granted} }

// sweepDue removes rows and then files. A file that cannot be removed does not keep
// its row, so nobody gets it; it is tried again as an orphan.
func (s *Store) sweepDue(ctx context.Context) error {
	due, err := store.Select(ctx, s.db.Read, (*victim).fields, findVictims, block, s.cutoff(s.opts.Now()), s.opts.MaxBytes)
	if err != nil {
		return err
	}
	var stuck error
	err = inBatches(ctx, s, due, func(ctx context.Context, tx *sql.Tx, v victim) error {
		gone, err := tx.ExecContext(ctx, "DELETE FROM artifacts WHERE id = ? AND granted = ?", v.id, v.granted)
		if err != nil {
			return err
		}
		if n, _ := gone.RowsAffected(); n == 1 { // the driver counts
			stuck = errors.Join(stuck, s.remove(path(strings.TrimPrefix(v.id, idPrefix))))
		}
		return nil
	})
	if stuck != nil {
		s.orphans.Store(true)
	}
	return errors.Join(stuck, err)
}

// inBatches calls do for each element of all, in transactions of the state file that
// have at most batch elements each.
func inBatches[T any](ctx context.Context, s *Store, all []T, do func(context.Context, *sql.Tx, T) error) error {
	for some := range slices.Chunk(all, batch) {
		err := s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
			for i := 0; i < len(some) && err == nil; i++ {
				err = do(ctx, tx, some[i])
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file; a file that does not exist is no error.
func (s *Store) remove(name string) error {
	if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweepGrants ends the expired grants of artifacts that other principals still have.
func (s *Store) sweepGrants(ctx context.Context) error {
	cutoff := s.cutoff(s.opts.Now())
	due, err := store.Select(ctx, s.db.Read, idField, "SELECT DISTINCT artifact FROM artifact_grants WHERE granted <= ?", cutoff)
	if err != nil {
		return err
	}
	return inBatches(ctx, s, due, func(ctx context.Context, tx *sql.Tx, id string) error {
		_, err := tx.ExecContext(ctx, dropGrants, id, cutoff)
		return err
	})
}

func idField(id *string) []any { return []any{id} }

// sweepOrphans removes the files that have no row, when there may be some. It looks
// for the row inside the transaction, where no Put is between its file and its row.
// Files with other names are not the Store's to remove.
func (s *Store) sweepOrphans(ctx context.Context) error {
	if !s.orphans.Swap(false) {
		return nil
	}
	files, err := fs.Glob(s.root.FS(), "??/*")
	err = errors.Join(err, inBatches(ctx, s, files, func(ctx context.Context, tx *sql.Tx, file string) error {
		name := file[strings.LastIndexByte(file, '/')+1:]
		if !validName(name) || path(name) != file {
			return nil
		}
		var known bool
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM artifacts WHERE id = ?)", idPrefix+name).Scan(&known)
		if err != nil || known {
			return err
		}
		return s.remove(file)
	}))
	if err != nil {
		s.orphans.Store(true)
	}
	return err
}

// sweepDrafts removes the drafts that no process holds.
func (s *Store) sweepDrafts() error {
	drafts, err := fs.Glob(s.root.FS(), draftPrefix+"*")
	for _, name := range drafts {
		err = errors.Join(err, s.removeDraft(name))
	}
	return err
}

func (s *Store) removeDraft(name string) error {
	file, err := s.root.OpenFile(name, os.O_RDWR, 0)
	if err == nil {
		defer file.Close()
		err = filelock.TryLock(file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, filelock.ErrHeld): // placed or discarded meanwhile, or alive
		return nil
	case err != nil:
		return err
	}
	return s.remove(name)
}
