package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// lockTimeout is the code of the server's error when a lock was not free in time.
const lockTimeout = "55P03"

// Lock waits until no other transaction of any process holds the name, and holds it until tx
// ends. Statements after it see what earlier holders wrote. The error is ErrBusy when the
// name was not free within ten seconds, or before ctx ended. A transaction that locks several
// names does so in an order that all have in common. With a file, tx holds the lock of all
// writers, and Lock does nothing.
func (db *DB) Lock(ctx context.Context, tx *sql.Tx, name string) error {
	if !db.Shared() {
		return nil
	}
	_, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(?)", lockKey(name))
	var refused *pgconn.PgError
	if err != nil && ended(ctx) || errors.As(err, &refused) && refused.Code == lockTimeout {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// TryLock is Lock where nothing is to wait for others: it reports whether tx holds the name.
func (db *DB) TryLock(ctx context.Context, tx *sql.Tx, name string) (held bool, err error) {
	if !db.Shared() {
		return true, nil
	}
	err = tx.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock(?)", lockKey(name)).Scan(&held)
	return held, err
}

// lockKey returns the number by which the server knows a name. Two names with one number only wait
// for each other.
func lockKey(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// A Moment is a point in the order of a database's transactions.
type Moment struct{ transaction int64 }

// Now returns the present moment. With a file, where transactions do not overlap, it is the
// zero Moment.
func (db *DB) Now(ctx context.Context) (m Moment, err error) {
	if !db.Shared() {
		return m, nil
	}
	err = db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)").Scan(&m.transaction)
	})
	return m, err
}

// Settled reports whether every transaction that had written something before m has ended,
// as q sees the database: none of them will add to what q reads.
func (db *DB) Settled(ctx context.Context, q rowQuerier, m Moment) (settled bool, err error) {
	if !db.Shared() {
		return true, nil
	}
	err = q.QueryRowContext(ctx, "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) > ?", m.transaction).Scan(&settled)
	return settled, err
}
