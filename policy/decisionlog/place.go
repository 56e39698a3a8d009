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

const (
	// writeTimeout bounds what is written to the store.
	writeTimeout = 10 * time.Second
	// parkedTime is how long it is remembered that an event was refused.
	parkedTime = 7 * 24 * time.Hour
)

// errLost says that another process ships to the sink by now.
var errLost = errors.New("another process ships to it by now")

// enter makes a sink known. One that was never known begins with what is recorded
// from now on; any other goes on where it ended, whoever shipped to it.
func (s *Shipper) enter(ctx context.Context, sink string) error {
	ends, err := audit.Ends(s.opts.Trail)
	if err != nil {
		return err
	}
	return s.within(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT INTO decision_log_sinks (sink) VALUES (?) ON CONFLICT DO NOTHING", sink)
		if err != nil {
			return err
		}
		if made, err := res.RowsAffected(); err != nil || made == 0 {
			return err
		}
		return move(ctx, tx, sink, ends)
	})
}

// claim makes this process the one that ships to a sink, unless another one that
// lives does, and reports whether it is. Of two that take the place of a dead
// one, one wins.
func (s *Shipper) claim(ctx context.Context, sink string) (bool, error) {
	var owner string
	err := s.opts.DB.Read.QueryRowContext(ctx, "SELECT owner FROM decision_log_sinks WHERE sink = ?", sink).Scan(&owner)
	if err != nil || owner == s.held.ID() {
		return err == nil, err
	}
	if owner != "" {
		alive, err := store.InstanceAlive(s.opts.Instances, owner)
		if err != nil || alive {
			return false, err
		}
	}
	res, err := s.opts.DB.Write.ExecContext(ctx, "UPDATE decision_log_sinks SET owner = ? WHERE sink = ? AND owner = ?", s.held.ID(), sink, owner)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// release lets others ship to a sink.
func (s *Shipper) release(ctx context.Context, sink string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	_, err := s.opts.DB.Write.ExecContext(ctx, "UPDATE decision_log_sinks SET owner = '' WHERE sink = ? AND owner = ?", sink, s.held.ID())
	return err
}

// place is how far a sink has got.
func (s *Shipper) place(ctx context.Context, sink string) (audit.Cursor, error) {
	rows, err := s.opts.DB.Read.QueryContext(ctx, "SELECT chain, seq FROM decision_log_places WHERE sink = ?", sink)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	at := audit.Cursor{}
	for rows.Next() {
		var chain string
		var seq uint64
		if err := rows.Scan(&chain, &seq); err != nil {
			return nil, err
		}
		at[chain] = seq
	}
	return at, rows.Err()
}

// advance writes down that done is dealt with, some of it parked with a fault. It
// is errLost, and nothing is written, when the sink is another's by now.
func (s *Shipper) advance(ctx context.Context, sink string, done, parked []parcel, fault string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	to, now := audit.Cursor{}, s.opts.Now()
	for _, p := range done {
		to[p.chain] = max(to[p.chain], p.seq)
	}
	return s.within(ctx, func(tx *sql.Tx) error {
		var ours bool
		err := tx.QueryRowContext(ctx, "SELECT owner = ? FROM decision_log_sinks WHERE sink = ?", s.held.ID(), sink).Scan(&ours)
		if err != nil {
			return err
		}
		if !ours {
			return errLost
		}
		for _, p := range parked {
			_, err := tx.ExecContext(ctx, "INSERT INTO decision_log_parked VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
				sink, p.id, p.chain, p.seq, fault, now.UnixNano())
			if err != nil {
				return err
			}
		}
		if len(parked) > 0 {
			if _, err := tx.ExecContext(ctx, "DELETE FROM decision_log_parked WHERE at < ?", now.Add(-parkedTime).UnixNano()); err != nil {
				return err
			}
		}
		return move(ctx, tx, sink, to)
	})
}

// move writes places. They never go back.
func move(ctx context.Context, tx *sql.Tx, sink string, to audit.Cursor) error {
	for chain, seq := range to {
		_, err := tx.ExecContext(ctx, `INSERT INTO decision_log_places VALUES (?, ?, ?)
 ON CONFLICT DO UPDATE SET seq = max(seq, excluded.seq)`, sink, chain, seq)
		if err != nil {
			return err
		}
	}
	return nil
}

// within runs f in a transaction that ends when f has no error.
func (s *Shipper) within(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.opts.DB.Write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // the first error says more
		return err
	}
	return tx.Commit()
}

// Trouble is what one sink was not told.
type Trouble struct {
	Sink     string    // file or http
	Lag      uint64    // records of the trail that it has not been told of
	Since    time.Time // of the oldest event that waits; zero = none, or another process ships
	Fault    string    // why it is not told now, "" = nothing stands in the way
	Parked   int       // events that it refused, within a week
	Decision string    // of the latest of them
	Refusal  string    // of the latest of them
}

// Troubles gives what every sink of now is behind with and was not told.
func (s *Shipper) Troubles(ctx context.Context) (found []Trouble, err error) {
	for _, l := range s.known() {
		t := Trouble{Sink: l.name}
		t.Since, t.Fault = l.standing()
		if t.Lag, err = s.Lag(ctx, l.name); err != nil {
			return nil, err
		}
		// The bare columns are those of the row that max(at) is of.
		var at sql.NullInt64
		var decision, refusal sql.NullString
		err = s.opts.DB.Read.QueryRowContext(ctx, "SELECT count(*), decision_id, fault, max(at) FROM decision_log_parked WHERE sink = ? AND at >= ?",
			l.name, s.opts.Now().Add(-parkedTime).UnixNano()).Scan(&t.Parked, &decision, &refusal, &at)
		if err != nil {
			return nil, fmt.Errorf("reading what a decision log refused: %w", err)
		}
		t.Decision, t.Refusal = decision.String, refusal.String
		found = append(found, t)
	}
	return found, nil
}

// Lag is how many records of the trail a sink is behind, those that are no
// decisions included.
func (s *Shipper) Lag(ctx context.Context, sink string) (lag uint64, err error) {
	at, err := s.place(ctx, sink)
	if err != nil {
		return 0, fmt.Errorf("reading the place of a decision log: %w", err)
	}
	for _, l := range s.known() {
		if l.name == sink {
			l.ahead(at)
		}
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
