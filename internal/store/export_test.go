package store

import (
	"context"
	"errors"
	"time"
)

// SetLease sets how long leases hold.
func (db *DB) SetLease(d time.Duration) { db.lease = d }

// BuildAlone writes a new state file by its migrations alone, and returns their number and
// digest.
func BuildAlone(ctx context.Context, file string) (n int, digest string, err error) {
	steps, err := readMigrations(Migrations())
	if err != nil {
		return 0, "", err
	}
	if err := build(ctx, file, nil); err != nil {
		return 0, "", err
	}
	db, err := connect(file)
	if err != nil {
		return 0, "", err
	}
	return len(steps), digestOf(steps), errors.Join(applyAlone(ctx, db.Write, 0, steps), db.Close())
}

// Whole returns the statements that stand for the migrations of a new state file, and for
// how many.
func Whole() (sql string, n int) {
	steps, _ := readMigrations(Migrations()) // none is none of them
	return whole, wholeOf(steps)
}
