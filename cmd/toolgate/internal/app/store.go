package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// StateFile returns the file of the state in a state directory.
func StateFile(dir string) string { return filepath.Join(dir, "state.db") }

// OpenStore opens the database of the state: that of toolgate.store, or else the file in
// the state directory. A directory whose file was moved to a database gets no new one,
// which would lack the tickets.
func OpenStore(ctx context.Context, cfg *config.Config) (*store.DB, error) {
	if cfg.Store != "" {
		return store.OpenPostgres(ctx, cfg.Store, store.PostgresMigrations())
	}
	file := StateFile(cfg.State)
	if moved := file + store.Moved; !isFile(file) && isFile(moved) {
		return nil, fmt.Errorf("opening the state: it was moved to a PostgreSQL database, and %s is the file from before\nhint: set toolgate.store to that database", moved)
	}
	return store.Open(ctx, file, store.Migrations())
}

func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// MissingStore returns why the state directory of cfg has no state, nil when it has one or
// had one, and with toolgate.store.
func MissingStore(cfg *config.Config) error {
	file := StateFile(cfg.State)
	if cfg.Store != "" || isFile(file+store.Moved) {
		return nil
	}
	_, err := os.Stat(file)
	return err
}

// storeFindings warns of a connection to the database without TLS, and of a file that is
// not used.
func storeFindings(cfg *config.Config) (found []Finding) {
	if cfg.Store == "" {
		return nil
	}
	const where = "toolgate.store"
	hosts, _ := store.PlainHosts(cfg.Store) // CheckFiles refuses what cannot be read
	for _, host := range hosts {
		if !guard.Loopback(host) {
			found = append(found, warning("plain-store", where, "is insecure: the connection to "+host+" may go without TLS, so whoever is on the way can read and change tickets and results",
				"add sslmode=verify-full to the URL, and sslrootcert=FILE for an authority of your own"))
		}
	}
	if file := StateFile(cfg.State); isFile(file) {
		found = append(found, warning("unused-state", where, file+" is not used, and its tickets are not known", "toolgate store migrate moves it into an empty database; otherwise move it away"))
	}
	return found
}

// storeMark is the file of the state directory that names the store that was used last.
const storeMark = "store"

// markStore notes which store the state directory goes with. It returns a reason to distrust the
// state when another store was used before: the file was deleted, or the settings name another
// database. Its tickets, usage and revoked tokens are not known then.
func markStore(state, store string) (doubt string, err error) {
	path := filepath.Join(state, storeMark)
	known, err := files.Read(path, 1<<10)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading which state was used last: %w", err)
	}
	before := strings.TrimSpace(string(known))
	if before == store {
		return "", nil
	}
	if err := files.Replace(path, []byte(store+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("noting which state is used: %w", err)
	}
	if before == "" {
		return "", nil
	}
	return fmt.Sprintf("the state %s, which was used here before, is missing, and %s is in its place: tickets, usage, revocations and stops of the one before are not known", before, store), nil
}
