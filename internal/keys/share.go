package keys

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// shared are the secrets that the replicas of one store have in common: a ticket, a
// request state or a digest of one replica is verified by others.
var shared = []string{Arguments, RequestState, Tickets}

// fetchWithin bounds the look for a version that another replica added.
const fetchWithin = 5 * time.Second

// storedKey is a version of a secret in the store.
type storedKey struct {
	version int
	secret  []byte
}

func (k *storedKey) fields() []any { return []any{&k.version, &k.secret} }

// Share gives the directory the secrets that replicas with a directory each have in
// common, from a store on a server, and gives the store those that only the directory
// has. The first replica makes them. Afterwards Find gets versions that other replicas
// add. Key pairs stay in the directory. A version of which directory and store have
// different secrets is an error: the replica could not verify what others wrote. With a
// store in a file, Share does nothing.
func (d *Dir) Share(ctx context.Context, db *store.DB) error {
	if !db.Shared() {
		return nil
	}
	err := db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, name := range shared {
			if err := d.exchange(ctx, tx, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sharing keys: %w", err)
	}
	d.db = db
	return nil
}

// exchange makes directory and store have the same versions of a secret.
func (d *Dir) exchange(ctx context.Context, tx *sql.Tx, name string) error {
	stored, err := store.Select(ctx, tx, (*storedKey).fields, "SELECT version, secret FROM keys WHERE name = ? ORDER BY version", name)
	for _, k := range stored {
		if err == nil {
			err = d.adopt(name, k)
		}
	}
	if err == nil {
		_, err = d.Secret(name) // makes the first
	}
	if err != nil {
		return err
	}
	versions, err := d.versions(name, ".key")
	for _, v := range versions {
		if err == nil && !slices.ContainsFunc(stored, func(k storedKey) bool { return k.version == v }) {
			var secret []byte
			if secret, err = os.ReadFile(d.file(name, v)); err == nil {
				_, err = tx.ExecContext(ctx, "INSERT INTO keys (name, version, secret) VALUES (?, ?, ?)", name, v, secret)
			}
		}
	}
	return err
}

// adopt writes a version of the store to the directory.
func (d *Dir) adopt(name string, k storedKey) error {
	file := d.file(name, k.version)
	err := d.create(filepath.Base(file), k.secret)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	have, err := os.ReadFile(file)
	if err == nil && !bytes.Equal(have, k.secret) {
		return fmt.Errorf("%s is not the key that the store has\nhint: if other replicas serve from the store already, move the file to another directory, and the store's key is written in its place; tickets of a state that moved to the store need its keys, so its replica starts first", file)
	}
	return err
}

// fetch gets a version of a secret that another replica added to the store.
func (d *Dir) fetch(name string, version int) error {
	if d.db == nil || !slices.Contains(shared, name) {
		return ErrUnknown
	}
	ctx, stop := context.WithTimeout(context.Background(), fetchWithin)
	defer stop()
	k := storedKey{version: version}
	err := d.db.Read.QueryRowContext(ctx, "SELECT secret FROM keys WHERE name = ? AND version = ?", name, version).Scan(&k.secret)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrUnknown
	}
	if err != nil {
		return err
	}
	return d.adopt(name, k)
}
