package keys

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/store"
)

// shared are the secrets that the replicas of one store have in common: what one of them
// authenticates or encrypts is verified or decrypted by others.
var shared = []string{Arguments, Credentials, RequestState, Tickets}

// Agree compares the secrets of the directory with those of the other replicas on a
// store. The store has their IDs, never the secrets: whoever can write to it can forge
// nothing. The first replica makes the secrets, and a directory with later versions adds
// their IDs. Credentials, which the replicas of an older version do not have, is not made
// after the others: see Share. A directory that lacks a secret of the others, or has another one, is an
// error. With a store in a file, Agree does nothing.
func (d *Dir) Agree(ctx context.Context, db *store.DB) error { return d.Share(ctx, db, shared...) }

// Share is Agree for some secrets, such as one that is made when it is first needed.
func (d *Dir) Share(ctx context.Context, db *store.DB, names ...string) error {
	if !db.Shared() {
		return nil
	}
	err := db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := db.Lock(ctx, tx, "keys"); err != nil {
			return err
		}
		known, err := store.Select(ctx, tx, func(name *string) []any { return []any{name} }, "SELECT DISTINCT name FROM keys")
		if err != nil {
			return err
		}
		for _, name := range names {
			late := name == Credentials && len(names) > 1 && len(known) > 0 && !slices.Contains(known, name)
			if late && !d.Has(name) {
				continue
			}
			if err := d.agree(ctx, tx, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("comparing keys with those of other replicas: %w", err)
	}
	return nil
}

func (d *Dir) agree(ctx context.Context, tx *sql.Tx, name string) error {
	theirs, err := store.Select(ctx, tx, func(id *string) []any { return []any{id} }, "SELECT id FROM keys WHERE name = ?", name)
	if err != nil {
		return err
	}
	for _, id := range theirs {
		if _, err := d.Find(name, id); errors.Is(err, ErrUnknown) {
			return fmt.Errorf("%s has no key %s %s\nhint: copy the files %s-*.key from the key directory of a replica that serves, and move files of the same names away first", d.path, name, id, name)
		} else if err != nil {
			return err
		}
	}
	if _, err := d.Secret(name); err != nil { // makes the first
		return err
	}
	versions, err := d.Versions()
	for _, v := range versions {
		if err == nil && v.Name == name && !slices.Contains(theirs, v.ID) {
			_, err = tx.ExecContext(ctx, "INSERT INTO keys (name, id) VALUES (?, ?)", name, v.ID)
		}
	}
	return err
}
