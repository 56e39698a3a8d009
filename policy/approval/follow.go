package approval

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// followed is how many changes are read at once.
const followed = 100

// Follow tells every change of a ticket with a number above after, in order, as
// it is committed, by this process or another; after < 0 means those that come
// after the call of Follow itself. The end of ctx ends the sequence without an
// error, an error of the store ends it with one.
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

// follow yields until ctx ends or nobody listens.
func (t *Tickets) follow(ctx context.Context, after int64, yield func(Event, error) bool) error {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
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
		if len(events) == followed {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-poll.C:
		}
	}
}

// since reads the next changes after a number. Numbers are given under the
// store's write lock, so none appears behind one that was read.
func (t *Tickets) since(ctx context.Context, after int64) ([]Event, error) {
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	tx, err := t.db.Read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	events, err := store.Select(ctx, tx, scanEvent, changeColumns+"WHERE seq > ? ORDER BY seq LIMIT ?", after, followed)
	if err != nil || len(events) == 0 {
		return nil, err
	}
	var ids []string
	for _, e := range events {
		ids = append(ids, e.Ticket.ID)
	}
	records, err := query(ctx, tx, load{arguments: ListedArgumentBytes}, "WHERE id IN (SELECT value FROM json_each(?))", jsonList(ids))
	if err != nil {
		return nil, err
	}
	tickets := map[string]Ticket{}
	for _, k := range records {
		tickets[k.ID] = k.Ticket
	}
	for i, e := range events {
		events[i].Ticket = tickets[e.Ticket.ID]
	}
	return events, nil
}
