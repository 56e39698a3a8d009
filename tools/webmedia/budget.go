package webmedia

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// budget bounds what the images of one day cost, by estimate. The sum is in a file, also
// for other processes, and there before a service is asked: no end of a process loses a
// cost. Nil has no bound. It is safe for concurrent use.
type budget struct {
	limit float64 // US dollars
	db    *store.DB
}

// openBudget opens the file at path, creating it if it does not exist; a limit of 0 has none.
func openBudget(ctx context.Context, path string, limit float64) (*budget, error) {
	if limit == 0 {
		return nil, nil
	}
	db, err := store.Open(ctx, path, store.Folder(files, "migrations"))
	if err != nil {
		return nil, fmt.Errorf("opening budget: %w", err)
	}
	return &budget{limit, db}, nil
}

func (b *budget) close() error {
	if b == nil {
		return nil
	}
	return b.db.Close()
}

// rounding is more than sums of estimates are off by, and less than they mean, in US
// dollars.
const rounding = 1e-9

// take reports whether cost is within the limit of a day, and adds it when it is.
func (b *budget) take(ctx context.Context, cost float64, day string) (ok bool, err error) {
	if b == nil {
		return true, nil
	}
	err = b.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var spent float64
		err := tx.QueryRowContext(ctx, `SELECT dollars FROM spent WHERE day = ?`, day).Scan(&spent)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if ok = spent+cost <= b.limit+rounding; !ok {
			return nil
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO spent (day, dollars) VALUES (?, ?) ON CONFLICT (day) DO UPDATE SET dollars = dollars + excluded.dollars`, day, cost)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("writing the budget of images: %w", err)
	}
	return ok, nil
}

// giveBack subtracts the cost of an image that the service refused to make.
func (b *budget) giveBack(ctx context.Context, cost float64, day string) error {
	if b == nil {
		return nil
	}
	err := b.db.Update(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE spent SET dollars = max(0.0, dollars - ?) WHERE day = ?`, cost, day)
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the budget of images: %w", err)
	}
	return nil
}

// dayOf is the day of a budget.
func dayOf(now time.Time) string { return now.UTC().Format(time.DateOnly) }
