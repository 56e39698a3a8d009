package decisionlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
)

// parkedTTL is how long parked events are remembered.
const parkedTTL = 7 * 24 * time.Hour

// registerSink adds a sink to the store. A new sink begins with the records from now
// on; any other continues after its cursor, whichever process shipped to it.
func (s *Shipper) registerSink(ctx context.Context, sink string) error {
	ends, err := audit.Ends(s.opts.Trail)
	if err != nil {
		return err
	}
	return s.opts.DB.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT INTO decision_log_sinks (sink) VALUES (?) ON CONFLICT DO NOTHING", sink)
		if err != nil {
			return err
		}
		if made, err := res.RowsAffected(); err != nil || made == 0 {
			return err
		}
		return writeCursor(ctx, tx, sink, ends)
	})
}

// loadCursor returns the cursor of a sink.
func (s *Shipper) loadCursor(ctx context.Context, sink string) (at audit.Cursor, err error) {
	type place struct {
		chain string
		seq   uint64
	}
	places, err := store.Select(ctx, s.opts.DB.Read, func(p *place) []any { return []any{&p.chain, &p.seq} }, "SELECT chain, seq FROM decision_log_places WHERE sink = ?", sink)
	at = make(audit.Cursor, len(places))
	for _, p := range places {
		at[p.chain] = p.seq
	}
	return at, err
}

// saveCursor moves the cursor of a sink behind the events in done. When parked is not
// nil, it also records that the sink refused this event, and why.
func (s *Shipper) saveCursor(ctx context.Context, sink string, done []event, parked *event, refusal string) error {
	to, now := audit.Cursor{}, s.opts.Now()
	for _, e := range done {
		to[e.chain] = max(to[e.chain], e.seq)
	}
	return s.opts.DB.Update(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		if parked != nil {
			_, err := tx.ExecContext(ctx, "INSERT INTO decision_log_parked (sink, decision_id, chain, seq, fault, at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
				sink, parked.id, parked.chain, parked.seq, refusal, now.UnixNano())
			if err == nil {
				_, err = tx.ExecContext(ctx, "DELETE FROM decision_log_parked WHERE at < ?", now.Add(-parkedTTL).UnixNano())
			}
			if err != nil {
				return err
			}
		}
		return writeCursor(ctx, tx, sink, to)
	})
}

// writeCursor writes a cursor. Its numbers never decrease.
func writeCursor(ctx context.Context, tx *sql.Tx, sink string, to audit.Cursor) error {
	for chain, seq := range to {
		if _, err := tx.ExecContext(ctx, `INSERT INTO decision_log_places AS p (sink, chain, seq) VALUES (?, ?, ?)
 ON CONFLICT (sink, chain) DO UPDATE SET seq = excluded.seq WHERE excluded.seq > p.seq`, sink, chain, seq); err != nil {
			return err
		}
	}
	return nil
}

// Trouble describes what one sink did not accept.
type Trouble struct {
	Sink     string    // file or http
	Lag      uint64    // records of the trail after its cursor
	Since    time.Time // of the oldest event that waits; zero = none, or another process ships
	Fault    string    // why nothing is shipped now, "" = no fault
	Parked   int       // events that it refused within a week
	Decision string    // of the latest parked event
	Refusal  string    // of the latest parked event
}

// Troubles returns the lag, the fault and the parked events of every sink.
func (s *Shipper) Troubles(ctx context.Context) (found []Trouble, err error) {
	for _, w := range s.currentWorkers() {
		now := w.status()
		t := Trouble{Sink: w.name, Since: now.since, Fault: now.fault}
		if t.Lag, err = s.Lag(ctx, w.name); err != nil {
			return nil, err
		}
		err = s.opts.DB.Read.QueryRowContext(ctx, "SELECT count(*) OVER (), decision_id, fault FROM decision_log_parked WHERE sink = ? AND at >= ? ORDER BY at DESC LIMIT 1",
			w.name, s.opts.Now().Add(-parkedTTL).UnixNano()).Scan(&t.Parked, &t.Decision, &t.Refusal)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("reading parked decisions: %w", err)
		}
		found = append(found, t)
	}
	return found, nil
}

// Lag returns the number of records in the trail after a sink's cursor, including
// those that are not decisions.
func (s *Shipper) Lag(ctx context.Context, sink string) (lag uint64, err error) {
	at, err := s.loadCursor(ctx, sink)
	if err != nil {
		return 0, fmt.Errorf("reading the cursor of a decision log: %w", err)
	}
	ends, err := audit.Ends(s.opts.Trail)
	if err != nil {
		return 0, err
	}
	for chain, end := range ends {
		lag += end - min(end, at[chain])
	}
	return lag, nil
}
