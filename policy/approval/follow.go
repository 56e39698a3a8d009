package approval

import (
	"context"
	"database/sql"
	"fmt"
	"iter"

	"github.com/toolgate/toolgate/internal/store"
)

// followed is how many changes are read at once.
const followed = 100

// Follow yields every change of a ticket with a number above after, in order, once it
// is committed, by this process or another; after < 0 starts at the call of Follow.
// The end of ctx ends the sequence without an error, an error of the store with one.
func (t *Tickets) Follow(ctx context.Context, after int64) iter.Seq2[Event, error] {
	var failed error
	if after < 0 {
		failed = t.db.Read.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM approval_history").Scan(&after)
	}
	return func(yield func(Event, error) bool) {
		err := failed
		if err == nil {
			err = t.follow(ctx, after, yield)
		}
		if err != nil && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("following tickets: %w", err))
		}
	}
}

// follow yields until ctx ends or the caller stops.
func (t *Tickets) follow(ctx context.Context, after int64, yield func(Event, error) bool) error {
	for {
		changed := t.changes()
		events, err := t.since(ctx, after)
		if err != nil {
			return err
		}
		for _, e := range events {
			if after = e.Seq; !yield(e, nil) {
				return nil
			}
		}
		if len(events) < followed && awaitChange(ctx, changed) != nil {
			return nil
		}
	}
}

// since returns the next changes after a number. Numbers are assigned under the
// store's write lock, so none appears behind one that was read.
func (t *Tickets) since(ctx context.Context, after int64) (events []Event, err error) {
	err = t.view(ctx, func(tx *sql.Tx) error {
		events, err = store.Select(ctx, tx, scanEvent, changeColumns+"WHERE seq > ? ORDER BY seq LIMIT ?", after, followed)
		if err != nil || len(events) == 0 {
			return err
		}
		var ids []string
		for _, e := range events {
			ids = append(ids, e.Ticket.ID)
		}
		records, err := query(ctx, tx, load{arguments: ListedArgumentBytes}, "WHERE id IN (SELECT value FROM json_each(?))", jsonList(ids))
		for _, k := range records {
			for i := range events {
				if events[i].Ticket.ID == k.ID {
					events[i].Ticket = k.Ticket
				}
			}
		}
		return err
	})
	return events, err
}
