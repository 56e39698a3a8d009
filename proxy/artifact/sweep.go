package artifact

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/store"
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
// processes left half written. It continues after a file that cannot be removed
// and returns that error at the end. Open and a goroutine of the Store call it.
func (s *Store) Sweep(ctx context.Context) error {
	s.wrote.Store(0)
	err := errors.Join(s.sweepDue(ctx), s.sweepGrants(ctx), s.sweepParts(ctx), s.sweepOrphans(ctx), s.sweepDrafts())
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
 (SELECT id, granted, sum(CASE WHEN size > ? THEN size ELSE ? END) OVER (ORDER BY granted DESC, id ROWS UNBOUNDED PRECEDING) AS kept FROM artifacts) AS a
 WHERE granted <= ? OR kept > ? ORDER BY granted, id`

func (v *victim) fields() []any { return []any{&v.id, &v.granted} }

// sweepDue removes rows and then files. A file that cannot be removed does not keep
// its row, so nobody gets it; it is tried again as an orphan.
func (s *Store) sweepDue(ctx context.Context) error {
	due, err := store.Select(ctx, s.db.Read, (*victim).fields, findVictims, block, block, s.cutoff(s.opts.Now()), s.opts.MaxBytes)
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

// remove removes a file if it exists.
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
		if free, err := s.db.TryLock(ctx, tx, id); !free {
			return err // it is granted just now
		}
		_, err := tx.ExecContext(ctx, dropGrants, id, cutoff)
		return err
	})
}

func idField(id *string) []any { return []any{id} }

// sweepOrphans removes the files that have no row, when there may be some: always where
// other replicas remove rows. It looks again for the row inside the transaction, where no
// Put is between its file and its row. Files with other names are not the Store's to remove.
func (s *Store) sweepOrphans(ctx context.Context) error {
	if !s.orphans.Swap(s.db.Shared()) {
		return nil
	}
	known, err := store.Select(ctx, s.db.Read, idField, "SELECT id FROM artifacts")
	if err != nil {
		return err
	}
	rows := make(map[string]bool, len(known))
	for _, id := range known {
		rows[strings.TrimPrefix(id, idPrefix)] = true
	}
	files, err := fs.Glob(s.root.FS(), "??/*")
	files = slices.DeleteFunc(files, func(file string) bool { return rows[filepath.Base(file)] })
	err = errors.Join(err, inBatches(ctx, s, files, func(ctx context.Context, tx *sql.Tx, file string) error {
		name := file[strings.LastIndexByte(file, '/')+1:]
		if !validName(name) || path(name) != file {
			return nil
		}
		if free, err := s.db.TryLock(ctx, tx, idPrefix+name); !free {
			return err
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
		err = files.TryLock(file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, files.ErrHeld): // placed or discarded meanwhile, or alive
		return nil
	case err != nil:
		return err
	}
	return s.remove(name)
}
