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
	// parkedTime is how long parked events are remembered.
	parkedTTL = 7 * 24 * time.Hour
)

// errLost reports that another process ships to the sink.
var errLost = errors.New("another process ships to it")

// registerSink adds a sink to the store. A sink that is new begins with what is
// recorded from now on; any other continues after its cursor, whichever process
// shipped to it.
func (s *Shipper) registerSink(ctx context.Context, sink string) error {
	ends, err := audit.Ends(s.opts.Trail)
	if err != nil {
		return err
	}
	return s.inTransaction(ctx, func(tx *sql.Tx) error {
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

// claimSink makes this process the one that ships to a sink, unless another
// process that lives does, and reports whether it is. Of two processes that
// replace a dead one, one wins.
func (s *Shipper) claimSink(ctx context.Context, sink string) (bool, error) {
	var owner string
	err := s.opts.DB.Read.QueryRowContext(ctx, "SELECT owner FROM decision_log_sinks WHERE sink = ?", sink).Scan(&owner)
	if err != nil || owner == s.instance.ID() {
		return err == nil, err
	}
	if owner != "" {
		alive, err := store.InstanceAlive(s.opts.Instances, owner)
		if err != nil || alive {
			return false, err
		}
	}
	res, err := s.opts.DB.Write.ExecContext(ctx, "UPDATE decision_log_sinks SET owner = ? WHERE sink = ? AND owner = ?", s.instance.ID(), sink, owner)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// releaseSink lets other processes ship to a sink.
func (s *Shipper) releaseSink(ctx context.Context, sink string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	_, err := s.opts.DB.Write.ExecContext(ctx, "UPDATE decision_log_sinks SET owner = '' WHERE sink = ? AND owner = ?", sink, s.instance.ID())
	return err
}

// loadCursor gives the cursor of a sink.
func (s *Shipper) loadCursor(ctx context.Context, sink string) (audit.Cursor, error) {
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

// saveCursor moves the cursor of a sink behind done, and records those that are
// parked with their fault. It returns errLost, and writes nothing, when another
// process holds the sink.
func (s *Shipper) saveCursor(ctx context.Context, sink string, done, parked []event, fault string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	to, now := audit.Cursor{}, s.opts.Now()
	for _, p := range done {
		to[p.chain] = max(to[p.chain], p.seq)
	}
	return s.inTransaction(ctx, func(tx *sql.Tx) error {
		var ours bool
		err := tx.QueryRowContext(ctx, "SELECT owner = ? FROM decision_log_sinks WHERE sink = ?", s.instance.ID(), sink).Scan(&ours)
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
			if _, err := tx.ExecContext(ctx, "DELETE FROM decision_log_parked WHERE at < ?", now.Add(-parkedTTL).UnixNano()); err != nil {
				return err
			}
		}
		return writeCursor(ctx, tx, sink, to)
	})
}

// writeCursor writes a cursor. Its numbers never decrease.
func writeCursor(ctx context.Context, tx *sql.Tx, sink string, to audit.Cursor) error {
	for chain, seq := range to {
		_, err := tx.ExecContext(ctx, `INSERT INTO decision_log_places VALUES (?, ?, ?)
 ON CONFLICT DO UPDATE SET seq = max(seq, excluded.seq)`, sink, chain, seq)
		if err != nil {
			return err
		}
	}
	return nil
}

// inTransaction runs f in a transaction, which is committed when f returns nil.
func (s *Shipper) inTransaction(ctx context.Context, f func(*sql.Tx) error) error {
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

// Trouble is what one sink did not get.
type Trouble struct {
	Sink     string    // file or http
	Lag      uint64    // records of the trail after its cursor
	Since    time.Time // of the oldest event that waits; zero = none, or another process ships
	Fault    string    // why nothing is shipped now, "" = nothing stops it
	Parked   int       // events that it refused within a week
	Decision string    // of the latest of them
	Refusal  string    // of the latest of them
}

// Troubles gives the lag, the fault and the parked events of every sink.
func (s *Shipper) Troubles(ctx context.Context) (found []Trouble, err error) {
	for _, l := range s.currentWorkers() {
		t := Trouble{Sink: l.name}
		t.Since, t.Fault = l.status()
		if t.Lag, err = s.Lag(ctx, l.name); err != nil {
			return nil, err
		}
		// The bare columns are those of the row that max(at) is of.
		var at sql.NullInt64
		var decision, refusal sql.NullString
		err = s.opts.DB.Read.QueryRowContext(ctx, "SELECT count(*), decision_id, fault, max(at) FROM decision_log_parked WHERE sink = ? AND at >= ?",
			l.name, s.opts.Now().Add(-parkedTTL).UnixNano()).Scan(&t.Parked, &decision, &refusal, &at)
		if err != nil {
			return nil, fmt.Errorf("reading parked decisions: %w", err)
		}
		t.Decision, t.Refusal = decision.String, refusal.String
		found = append(found, t)
	}
	return found, nil
}

// Lag gives the number of records of the trail after a sink's cursor, including
// those that are no decisions.
func (s *Shipper) Lag(ctx context.Context, sink string) (lag uint64, err error) {
	at, err := s.loadCursor(ctx, sink)
	if err != nil {
		return 0, fmt.Errorf("reading the cursor of a decision log: %w", err)
	}
	for _, l := range s.currentWorkers() {
		if l.name == sink {
			l.addReached(at)
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
