package artifact

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// partSize is how many bytes one row of artifact_parts has at most.
const partSize = 1 << 20

// uploadTimeout bounds the upload of the bytes of one artifact.
const uploadTimeout = 5 * time.Minute

const putPart = `INSERT INTO artifact_parts AS p (artifact, part, bytes) VALUES (?, ?, ?)
 ON CONFLICT (artifact, part) DO UPDATE SET bytes = excluded.bytes WHERE p.bytes <> excluded.bytes`

// upload stores the bytes of an artifact in the database, part by part.
func (s *Store) upload(ctx context.Context, id string, from io.Reader) error {
	return s.db.UpdateWithin(ctx, uploadTimeout, func(ctx context.Context, tx *sql.Tx) error {
		part := make([]byte, partSize)
		for n := 0; ; n++ {
			size, end := io.ReadFull(from, part)
			if size > 0 {
				if _, err := tx.ExecContext(ctx, putPart, id, n, part[:size]); err != nil {
					return err
				}
			}
			switch {
			case errors.Is(end, io.EOF), errors.Is(end, io.ErrUnexpectedEOF):
				return nil
			case end != nil:
				return end
			}
		}
	})
}

// storedSize is the sum of the parts of an artifact. It reads none of them.
const storedSize = "(SELECT coalesce(sum(length(bytes)), 0) FROM artifact_parts WHERE artifact = a.id)"

// complete returns errVanished when a sweep has deleted the parts of a. The caller is in a
// write transaction, and has inserted the row of a.
func (s *Store) complete(ctx context.Context, tx *sql.Tx, a *Artifact) error {
	if !s.db.Shared() {
		return nil
	}
	var lacks bool
	err := tx.QueryRowContext(ctx, "SELECT size <> "+storedSize+" FROM artifacts a WHERE id = ?", a.ID).Scan(&lacks)
	if err == nil && lacks {
		err = errVanished
	}
	return err
}

// openOrFetch opens the file of a. A replica that has no intact file takes the bytes from
// the database.
func (s *Store) openOrFetch(ctx context.Context, a Artifact) (*os.File, error) {
	file, err := s.open(a)
	if s.db.Shared() && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged)) {
		if err = s.fetch(ctx, a); err == nil {
			file, err = s.open(a)
		}
	}
	return file, err
}

// fetch writes the bytes of a from the database to its file, for open to check. The error
// is sql.ErrNoRows when the database lacks some.
func (s *Store) fetch(ctx context.Context, a Artifact) error {
	draft, err := s.newDraft()
	if err != nil {
		return err
	}
	defer s.discard(draft)
	for n := int64(0); n*partSize < a.Size; n++ {
		var part []byte
		err := s.db.Read.QueryRowContext(ctx, "SELECT bytes FROM artifact_parts WHERE artifact = ? AND part = ?", a.ID, n).Scan(&part)
		if err == nil {
			_, err = draft.Write(part)
		}
		if err != nil {
			return err
		}
	}
	return s.put(draft, a.path())
}

// share uploads the files that the database lacks: those of a state that was moved into
// it, and those of versions that had artifacts in files only.
func (s *Store) share(ctx context.Context) error {
	if !s.db.Shared() {
		return nil
	}
	all, err := store.Select(ctx, s.db.Read, func(a *Artifact) []any { return []any{&a.ID, &a.Size} },
		"SELECT id, size FROM artifacts a WHERE size <> "+storedSize)
	for _, a := range all {
		file, broken := s.open(a)
		if broken != nil {
			continue // another replica may have it
		}
		if err = errors.Join(s.upload(ctx, a.ID, file), file.Close()); err != nil {
			return err
		}
	}
	return err
}

const lostParts = "SELECT DISTINCT artifact FROM artifact_parts p WHERE NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.id = p.artifact)"

// sweepParts deletes the parts that no artifact has: those of expired ones, and those of
// which a process died before it recorded them.
func (s *Store) sweepParts(ctx context.Context) error {
	if !s.db.Shared() {
		return nil
	}
	lost, err := store.Select(ctx, s.db.Read, idField, lostParts)
	if err != nil {
		return err
	}
	return inBatches(ctx, s, lost, func(ctx context.Context, tx *sql.Tx, id string) error {
		if free, err := s.db.TryLock(ctx, tx, id); !free {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM artifact_parts WHERE artifact = ? AND NOT EXISTS (SELECT 1 FROM artifacts WHERE id = ?)", id, id)
		return err
	})
}
