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
	"path/filepath"
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

// stage writes data to a new draft, durably, and makes the directory of the file that
// it becomes. A draft is a file that has no name yet; it is locked until it is
// discarded or its process ends.
func (s *Store) stage(file string, data []byte) (*os.File, error) {
	draft, err := s.newDraft()
	if err != nil {
		return nil, err
	}
	if _, err = draft.Write(data); err == nil {
		err = draft.Sync()
	}
	if err == nil {
		err = s.makeDir(filepath.Dir(file))
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
		if err = filelock.TryLock(draft); err == nil {
			_, err = s.root.Lstat(filepath.Base(draft.Name()))
		}
		if err == nil {
			return draft, nil
		}
		s.discard(draft)
		if !errors.Is(err, filelock.ErrHeld) && !errors.Is(err, fs.ErrNotExist) {
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

// place gives the draft of a its name, durably; without a draft it checks that the
// file is there. The caller is in a write transaction.
func (s *Store) place(a *Artifact, draft *os.File) error {
	if draft != nil {
		if err := s.root.Rename(filepath.Base(draft.Name()), a.path()); err != nil {
			return err
		}
		return s.syncDir(filepath.Dir(a.path()))
	}
	info, err := s.root.Lstat(a.path())
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != a.Size {
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
