package limit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cockroachdb/apd/v3"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

const (
	// windowParts is how many parts a window has. A call counts until the last moment of
	// its part has left the window: for as long as the window, or up to a part longer.
	windowParts = 60
	// usageTimeout bounds one write and the wait for its turn; what cannot be written
	// by then is not counted, and the call not made.
	usageTimeout = 5 * time.Second
	// sweptAtOnce is how many expired rows one write removes.
	sweptAtOnce = 256
)

// ErrBusy is in the chain of an error when the store's write lock was not free
// in time. Nothing was counted.
var ErrBusy = store.ErrBusy

// ErrRefused is returned by Reserve when the call was judged again, on the
// current readings, and is refused.
var ErrRefused = errors.New("the call was judged again and may not continue")

// Usage counts what calls have used, for the meters of policies. All processes
// on one store count together. It is safe for concurrent use. It fails closed:
// after any error the call is not counted and must not be made.
//
// What a process counted before it died stays counted: nobody knows whether its
// calls were made. Time is the wall clock; when it steps back, calls count
// longer.
type Usage struct {
	db  *store.DB
	now func() time.Time
}

// NewUsage returns a Usage on a store; now is the clock, nil = time.Now.
func NewUsage(db *store.DB, now func() time.Time) *Usage {
	if now == nil {
		now = time.Now
	}
	return &Usage{db: db, now: now}
}

// Reservation is a call that was counted.
type Reservation struct {
	use  *Use
	ends []int64 // of the slice, for each share
}

// Read returns what the meters of a call read without the call itself. A run of
// a ticket that still answers this very call is left out, so that a client that
// returns for its result is judged as the first time.
func (u *Usage) Read(ctx context.Context, use *Use) (map[string]policy.Reading, error) {
	readings, err := u.read(ctx, u.db.Read, use, true)
	if err != nil {
		return nil, fmt.Errorf("reading usage: %w", err)
	}
	return readings, nil
}

// Reserve counts a call, durably, before it is made. When its meters no longer
// read what judged says, it calls again with the current readings and returns
// ErrRefused when again returns false. Nobody else counts meanwhile, so again
// must be quick and must not use the store. After any other error the call may
// be counted nevertheless.
//
// A ticket has at most one reservation: a remaining one is removed.
func (u *Usage) Reserve(ctx context.Context, use *Use, judged map[string]policy.Reading, again func(map[string]policy.Reading) bool) (*Reservation, error) {
	switch {
	case use.fault != nil:
		return nil, use.fault
	case len(use.shares) == 0:
		return &Reservation{use: use}, nil
	}
	r := &Reservation{use: use, ends: make([]int64, len(use.shares))}
	err := u.db.UpdateWithin(ctx, usageTimeout, func(ctx context.Context, tx *sql.Tx) error {
		if err := u.tidy(ctx, tx, use); err != nil {
			return err
		}
		now, err := u.read(ctx, tx, use, false)
		if err != nil {
			return err
		}
		if !maps.Equal(now, judged) && !again(now) {
			return ErrRefused
		}
		return u.count(ctx, tx, r)
	})
	if err != nil {
		return nil, fmt.Errorf("reserving usage: %w", err)
	}
	return r, nil
}

// Return removes what Reserve counted. Call it only when it is certain that
// nothing was sent. After an error the call stays counted.
func (u *Usage) Return(ctx context.Context, r *Reservation) error {
	if len(r.ends) == 0 {
		return nil
	}
	err := u.db.UpdateWithin(ctx, usageTimeout, func(ctx context.Context, tx *sql.Tx) error {
		if r.use.ticket != "" {
			return release(ctx, tx, r.use.ticket)
		}
		for i := range r.use.shares {
			if err := uncount(ctx, tx, r.use, &r.use.shares[i], r.ends[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("returning usage: %w", err)
	}
	return nil
}

// tidy removes the ticket's earlier reservation and some expired rows.
func (u *Usage) tidy(ctx context.Context, tx *sql.Tx, use *Use) error {
	if use.ticket != "" {
		if err := release(ctx, tx, use.ticket); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE until <= ? ORDER BY until LIMIT ?)",
		u.now().UnixNano(), sweptAtOnce)
	return err
}

func release(ctx context.Context, tx *sql.Tx, ticket string) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM usage WHERE ticket = ? AND ticket <> ''", ticket)
	return err
}

// read returns what the meters read; without leaves out the run that answers
// this very call.
func (u *Usage) read(ctx context.Context, q store.Querier, use *Use, without bool) (map[string]policy.Reading, error) {
	readings := make(map[string]policy.Reading, len(use.meters))
	for _, m := range use.meters {
		readings[m.Name] = policy.Reading{Sum: "0"}
	}
	for i := range use.shares {
		s := &use.shares[i]
		r, err := u.stands(ctx, q, use, s, without)
		if err != nil {
			return nil, fmt.Errorf("meter %s: %w", s.meter.Name, err)
		}
		readings[s.meter.Name] = r
	}
	return readings, nil
}

const selectUsage = `SELECT calls, sum FROM usage WHERE subject = ? AND tenant = ? AND tool = ? AND meter = ? AND per = ? AND ends > ?
 AND NOT (? AND ticket <> '' AND digest = ? AND answers > ?)`

// stands adds up what lies in the window of one meter.
func (u *Usage) stands(ctx context.Context, q store.Querier, use *Use, s *share, without bool) (r policy.Reading, err error) {
	now := u.now()
	parts, err := store.Select(ctx, q, func(r *policy.Reading) []any { return []any{&r.Calls, &r.Sum} },
		selectUsage, use.subject, use.tenant, use.tool, s.meter.Name, s.per, now.Add(-s.meter.Window).UnixNano(), without, use.digest, now.UnixNano())
	var total, one apd.Decimal
	for _, part := range parts {
		if _, _, err := exact.SetString(&one, part.Sum.String()); err != nil {
			return r, fmt.Errorf("reading %q: %w", part.Sum, err)
		}
		if _, err := exact.Add(&total, &total, &one); err != nil {
			return r, fmt.Errorf("adding %q: %w", part.Sum, err)
		}
		r.Calls += part.Calls
	}
	r.Sum = json.Number(plain(&total))
	return r, err
}

// row is what finds one slice.
const row = `subject = ? AND tenant = ? AND tool = ? AND meter = ? AND per = ? AND ends = ? AND ticket = ?`

func (u *Use) key(s *share, ends int64) []any {
	return []any{u.subject, u.tenant, u.tool, s.meter.Name, s.per, ends, u.ticket}
}

const insertUsage = `INSERT INTO usage (subject, tenant, tool, meter, per, ends, ticket, digest, answers, calls, sum, until)
 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)
 ON CONFLICT DO UPDATE SET calls = calls + 1, sum = excluded.sum, until = max(until, excluded.until)`

// count adds the call to the current slices.
func (u *Usage) count(ctx context.Context, tx *sql.Tx, r *Reservation) error {
	now, use := u.now().UnixNano(), r.use
	digest, answers := "", int64(0)
	if use.ticket != "" {
		digest, answers = use.digest, use.answers.UnixNano()
	}
	for i := range use.shares {
		s := &use.shares[i]
		width := int64(s.meter.Window) / windowParts
		r.ends[i] = now - now%width + width
		sum, err := sumOf(ctx, tx, use, s, r.ends[i])
		if err != nil {
			return err
		}
		if _, err := exact.Add(sum, sum, s.amount); err != nil {
			return fmt.Errorf("meter %s: adding up: %w", s.meter.Name, err)
		}
		args := append(use.key(s, r.ends[i]), digest, answers, plain(sum), r.ends[i]+int64(s.meter.Window))
		if _, err := tx.ExecContext(ctx, insertUsage, args...); err != nil {
			return err
		}
	}
	return nil
}

// uncount removes the call from one slice, and a slice without calls. A slice
// that is gone counts nothing.
func uncount(ctx context.Context, tx *sql.Tx, use *Use, s *share, ends int64) error {
	sum, err := sumOf(ctx, tx, use, s, ends)
	if err != nil {
		return err
	}
	if _, err := exact.Sub(sum, sum, s.amount); err != nil {
		return fmt.Errorf("meter %s: taking back: %w", s.meter.Name, err)
	}
	key := use.key(s, ends)
	if _, err := tx.ExecContext(ctx, "DELETE FROM usage WHERE calls = 1 AND "+row, key...); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE usage SET calls = calls - 1, sum = ? WHERE "+row, append([]any{plain(sum)}, key...)...)
	return err
}

// sumOf returns the sum of one slice, 0 when there is none.
func sumOf(ctx context.Context, tx *sql.Tx, use *Use, s *share, ends int64) (*apd.Decimal, error) {
	text := "0"
	err := tx.QueryRowContext(ctx, "SELECT sum FROM usage WHERE "+row, use.key(s, ends)...).Scan(&text)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	sum, _, err := exact.NewFromString(text)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", text, err)
	}
	return sum, nil
}
