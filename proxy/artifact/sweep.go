package artifact

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/filelock"
	"github.com/toolgate/toolgate/internal/store"
)

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

// victim is an artifact that is to go, unless it was granted again since.
type victim struct {
	id      string
	granted int64
}

const findVictims = `SELECT id, granted FROM
 (SELECT id, granted, sum(max(size, ?)) OVER (ORDER BY granted DESC, id ROWS UNBOUNDED PRECEDING) AS kept FROM artifacts)
 WHERE granted <= ? OR kept > ? ORDER BY granted, id`

func scanVictim(rows *sql.Rows) (v victim, err error) {
	err = rows.Scan(&v.id, &v.granted)
	return v, err
}

func (s *Store) sweepDue(ctx context.Context) error {
	due, err := store.Select(ctx, s.db.Read, scanVictim, findVictims, block, s.cutoff(s.opts.Now()), s.opts.MaxBytes)
	if err != nil {
		return err
	}
	var stuck error
	for some := range slices.Chunk(due, batch) {
		err := s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error { return s.removeDue(ctx, tx, some, &stuck) })
		if err != nil {
			return errors.Join(stuck, err)
		}
	}
	if stuck != nil {
		s.orphans.Store(true)
	}
	return stuck
}

// removeDue removes rows and then files. A file that stays is no reason to
// keep its row: nobody shall get it.
func (s *Store) removeDue(ctx context.Context, tx *sql.Tx, due []victim, stuck *error) error {
	for _, v := range due {
		gone, err := tx.ExecContext(ctx, "DELETE FROM artifacts WHERE id = ? AND granted = ?", v.id, v.granted)
		if err != nil {
			return err
		}
		if n, _ := gone.RowsAffected(); n == 1 { // the driver counts
			*stuck = errors.Join(*stuck, s.remove(path(strings.TrimPrefix(v.id, idPrefix))))
		}
	}
	return nil
}

// remove removes a file that need not be there.
func (s *Store) remove(name string) error {
	if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

const dropGrants = `DELETE FROM artifact_grants WHERE (artifact, subject, tenant) IN
 (SELECT artifact, subject, tenant FROM artifact_grants WHERE granted <= ? LIMIT 1000)`

// sweepGrants ends the expired grants of artifacts that others still have.
func (s *Store) sweepGrants(ctx context.Context) error {
	for cutoff := s.cutoff(s.opts.Now()); ; {
		var due bool
		err := s.db.Read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM artifact_grants WHERE granted <= ?)", cutoff).Scan(&due)
		if err != nil || !due {
			return err
		}
		err = s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, dropGrants, cutoff)
			return err
		})
		if err != nil {
			return err
		}
	}
}

// sweepOrphans removes the files that no row speaks of, when there may be some.
func (s *Store) sweepOrphans(ctx context.Context) (err error) {
	if !s.orphans.Swap(false) {
		return nil
	}
	defer func() {
		if err != nil {
			s.orphans.Store(true)
		}
	}()
	for i := range 256 {
		suspects, err := s.suspects(ctx, fmt.Sprintf("%02x", i))
		if err != nil {
			return err
		}
		for some := range slices.Chunk(suspects, batch) {
			if err := s.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error { return s.removeOrphans(ctx, tx, some) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeOrphans looks again inside the transaction, where no Put is between
// its file and its row.
func (s *Store) removeOrphans(ctx context.Context, tx *sql.Tx, names []string) error {
	for _, name := range names {
		var known bool
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM artifacts WHERE id = ?)", idPrefix+name).Scan(&known)
		if err == nil && !known {
			err = s.remove(path(name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// suspects gives the names in one directory that have no row now. Files with
// other names are not ours to remove.
func (s *Store) suspects(ctx context.Context, shard string) ([]string, error) {
	names, err := s.list(shard)
	names = slices.DeleteFunc(names, func(name string) bool { return !validName(name) || name[:2] != shard })
	if err != nil || len(names) == 0 {
		return nil, err
	}
	known, err := store.Select(ctx, s.db.Read, scanID, "SELECT id FROM artifacts WHERE id BETWEEN ? AND ? ORDER BY id", idPrefix+shard, idPrefix+shard+"~")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		_, found := slices.BinarySearch(known, idPrefix+name)
		return found
	}), nil
}

func scanID(rows *sql.Rows) (id string, err error) {
	err = rows.Scan(&id)
	return id, err
}

// list gives the names in a directory, none when there is no such directory.
func (s *Store) list(name string) ([]string, error) {
	dir, err := s.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	return names, errors.Join(err, dir.Close())
}

// sweepDrafts removes the drafts that no process holds.
func (s *Store) sweepDrafts() error {
	names, err := s.list(".")
	for _, name := range names {
		if strings.HasPrefix(name, draftPrefix) {
			err = errors.Join(err, s.removeDraft(name))
		}
	}
	return err
}

func (s *Store) removeDraft(name string) error {
	file, err := s.root.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // placed or discarded meanwhile
	}
	if err != nil {
		return err
	}
	defer file.Close()
	err = filelock.TryLock(file)
	if errors.Is(err, filelock.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(name)
}
