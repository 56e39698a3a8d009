package store_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// What reads or begins succeeds as soon as the server is back, although every pooled
// connection is closed and was used a moment ago. A transaction that had begun fails.
func TestClosedConnectionsFailNothing(t *testing.T) {
	s := postgres.Started(t)
	address, err := s.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db, other := mustOpen(t, address, store.PostgresMigrations()), mustOpen(t, address, store.PostgresMigrations())
	prepared, err := db.Read.PrepareContext(t.Context(), "SELECT seen FROM approval_clock") //nolint:sqlclosecheck // it is, below
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	inTx := func(ctx context.Context, tx *sql.Tx) error { return tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) }
	uses := map[string]func() error{
		"a read":          func() error { return db.Read.QueryRow("SELECT seen FROM approval_clock").Scan(new(int)) },
		"a prepared read": func() error { return prepared.QueryRow().Scan(new(int)) },
		"another prepared read": func() error {
			p, err := db.Read.PrepareContext(t.Context(), "SELECT changes FROM approval_clock")
			if err != nil {
				return err
			}
			defer p.Close()
			return nil
		},
		"a view":   func() error { return db.View(t.Context(), func(tx *sql.Tx) error { return inTx(t.Context(), tx) }) },
		"a change": func() error { return db.Update(t.Context(), inTx) },
	}
	ends := map[string]func() error{
		"restarts": func() error { s.Kill(); return s.Restart() },
		"closes connections": func() error {
			return other.Read.QueryRow("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Scan(new(int))
		},
	}
	for end, do := range ends {
		for name, use := range uses {
			t.Run(end+"/"+name, func(t *testing.T) {
				fillPools(t, db)
				if err := do(); err != nil {
					t.Fatal(err)
				}
				if err := use(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	fillPools(t, db)
	if err := db.Update(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := ends["closes connections"](); err != nil {
			return err
		}
		return inTx(ctx, tx)
	}); err == nil {
		t.Error("a transaction continued on another connection")
	}
}

// fillPools uses every connection of db that calls use.
func fillPools(t *testing.T, db *store.DB) {
	t.Helper()
	for _, pool := range []*sql.DB{db.Read, db.Write} {
		for range pool.Stats().MaxOpenConnections {
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
		}
	}
}
