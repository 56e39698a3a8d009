package limit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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

// ErrBusy is in the chain of an error when a meter was not free in time. Nothing was counted.
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
	err := u.update(ctx, use, func(ctx context.Context, tx *sql.Tx) error {
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
	err := u.update(ctx, r.use, func(ctx context.Context, tx *sql.Tx) error {
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

// update runs do in one transaction, during which nobody else counts for the meters of use,
// in any process.
func (u *Usage) update(ctx context.Context, use *Use, do func(context.Context, *sql.Tx) error) error {
	var meters []string
	for i := range use.shares {
		s := &use.shares[i]
		text, _ := json.Marshal([]string{use.subject, use.tenant, use.tool, s.meter.Name, s.per}) // strings always marshal
		meters = append(meters, "meter "+string(text))
	}
	slices.Sort(meters) // the order that all have in common
	return u.db.UpdateWithin(ctx, usageTimeout, func(ctx context.Context, tx *sql.Tx) error {
		for _, m := range meters {
			if err := u.db.Lock(ctx, tx, m); err != nil {
				return err
			}
		}
		return do(ctx, tx)
	})
}

// tidy removes the ticket's earlier reservation and, where no other process does just now, some expired rows.
func (u *Usage) tidy(ctx context.Context, tx *sql.Tx, use *Use) error {
	if use.ticket != "" {
		if _, err := tx.ExecContext(ctx, "DELETE FROM usage WHERE ticket = ? AND ticket <> ''", use.ticket); err != nil {
			return err
		}
	}
	if alone, err := u.db.TryLock(ctx, tx, "expired usage"); !alone {
		return err
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE until <= ? ORDER BY until LIMIT ?)",
		u.now().UnixNano(), sweptAtOnce)
	return err
}

// read returns what the meters read; without leaves out the run that answers
// this very call.
func (u *Usage) read(ctx context.Context, q store.Querier, use *Use, without bool) (map[string]policy.Reading, error) {
	readings := make(map[string]policy.Reading, len(use.meters))
	for _, m := range use.meters {
		readings[m.Name] = policy.Reading{Sum: "0"}
	}
	now := u.now()
	for i := range use.shares {
		s := &use.shares[i]
		parts, err := store.Select(ctx, q, func(r *policy.Reading) []any { return []any{&r.Calls, &r.Sum} },
			selectUsage, use.subject, use.tenant, use.tool, s.meter.Name, s.per, now.Add(-s.meter.Window).UnixNano(), without, use.digest, now.UnixNano())
		if err != nil {
			return nil, fmt.Errorf("meter %s: %w", s.meter.Name, err)
		}
		var r policy.Reading
		var total, one apd.Decimal
		for _, part := range parts {
			if _, _, err := exact.SetString(&one, part.Sum.String()); err != nil {
				return nil, fmt.Errorf("meter %s: reading %q: %w", s.meter.Name, part.Sum, err)
			}
			if _, err := exact.Add(&total, &total, &one); err != nil {
				return nil, fmt.Errorf("meter %s: adding %q: %w", s.meter.Name, part.Sum, err)
			}
			r.Calls += part.Calls
		}
		r.Sum = json.Number(plain(&total))
		readings[s.meter.Name] = r
	}
	return readings, nil
}

const selectUsage = `SELECT calls, sum FROM usage WHERE subject = ? AND tenant = ? AND tool = ? AND meter = ? AND per = ? AND ends > ?
 AND NOT (? = 1 AND ticket <> '' AND digest = ? AND answers > ?)`

// row is what finds one slice.
const row = `subject = ? AND tenant = ? AND tool = ? AND meter = ? AND per = ? AND ends = ? AND ticket = ?`

func (u *Use) key(s *share, ends int64) []any {
	return []any{u.subject, u.tenant, u.tool, s.meter.Name, s.per, ends, u.ticket}
}

const insertUsage = `INSERT INTO usage (subject, tenant, tool, meter, per, ends, ticket, digest, answers, calls, sum, until)
 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)
 ON CONFLICT (subject, tenant, tool, meter, per, ends, ticket) DO UPDATE SET calls = usage.calls + 1, sum = excluded.sum,
 until = CASE WHEN excluded.until > usage.until THEN excluded.until ELSE usage.until END`

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
	var text string
	err := tx.QueryRowContext(ctx, "SELECT sum FROM usage WHERE "+row, use.key(s, ends)...).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return new(apd.Decimal), nil
	}
	if err != nil {
		return nil, err
	}
	sum, _, err := exact.NewFromString(text)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", text, err)
	}
	return sum, nil
}

// The bounds of a number that is added up, and of the values that are counted
// apart as they stand; longer ones are known by their digest.
const (
	maxWhole    = 64 // digits before the point
	maxDecimals = 32 // digits after it
	maxApart    = 512
)

// exact computes without rounding: what does not fit is an error. As many calls as
// there can be, of the largest amount, fit.
var exact = func() *apd.Context {
	c := apd.BaseContext.WithPrecision(maxWhole + maxDecimals + 20)
	c.Traps = apd.DefaultTraps | apd.Inexact | apd.Rounded
	return c
}()

// Use is one call as the meters of its tool see it. It is made by Measure and
// belongs to one call.
type Use struct {
	subject, tenant, tool, digest string
	ticket                        string
	answers                       time.Time
	meters                        []policy.Meter // of the tool
	shares                        []share        // of the meters that count the call
	fault                         *Uncountable
}

// share is the part of a call in one meter.
type share struct {
	meter  policy.Meter
	per    string // a JSON array of the values that are counted apart
	amount *apd.Decimal
}

// Uncountable says why a call cannot be counted: what a meter adds up is no number
// in it, or none that could be added up. Such a call must not be made.
type Uncountable struct {
	Meter, Pointer string
	Got            string // what stands there, "" for nothing
}

// Error says so in one line, for the agent.
func (u *Uncountable) Error() string {
	return fmt.Sprintf("%s must be a number from 0, with at most %d digits before the point and %d behind it, to be counted (meter %s): %s is there",
		u.Pointer, maxWhole, maxDecimals, u.Meter, cmp.Or(u.Got, "nothing"))
}

// Measure finds what a call of tool, as exposed, by p is to meters. digest names
// the arguments, which are a JSON object that was read strictly; an error means
// that they are not.
func Measure(p policy.Principal, tool, digest string, arguments json.RawMessage, meters []policy.Meter) (*Use, error) {
	use := &Use{subject: p.Subject, tenant: p.Tenant, tool: tool, digest: digest, meters: meters}
	// The meters of a tool have the same facts, which are read once.
	facts := sync.OnceValue(func() json.RawMessage { return json.RawMessage(meters[0].Facts(arguments)) })
	for _, m := range meters {
		counts, err := matches(m.Where, arguments)
		s := share{meter: m, amount: new(apd.Decimal)}
		if counts {
			s.per, err = apart(m, arguments, facts)
		}
		if err != nil {
			return nil, fmt.Errorf("measuring a call for meter %s: %w", m.Name, err)
		}
		if !counts {
			continue
		}
		var fault *Uncountable
		if m.Sum != "" {
			s.amount, fault = amountAt(m, arguments, facts)
		}
		use.fault = cmp.Or(use.fault, fault)
		use.shares = append(use.shares, s)
	}
	return use, nil
}

// For says that the call is the one run of a ticket, which answers the identical
// call until the time given.
func (u *Use) For(ticket string, answers time.Time) { u.ticket, u.answers = ticket, answers }

// Fault is why the call cannot be counted, nil when it can.
func (u *Use) Fault() *Uncountable { return u.fault }

// matches reports whether arguments are those of a call that counts.
func matches(where map[string][]json.RawMessage, arguments json.RawMessage) (bool, error) {
	for pointer, values := range where {
		got, there := find(arguments, pointer)
		if !there {
			return false, nil
		}
		text, err := canonical(got)
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(values, func(want json.RawMessage) bool {
			same, err := canonical(want)
			return err == nil && bytes.Equal(same, text)
		}) {
			return false, nil
		}
	}
	return true, nil
}

// counted gives the argument that a pointer of m leads to, or the fact that m names.
func counted(m policy.Meter, at string, arguments json.RawMessage, facts func() json.RawMessage) (json.RawMessage, bool) {
	if m.Facts == nil || strings.HasPrefix(at, "/") {
		return find(arguments, at)
	}
	return jsonrpc.Get(facts(), at)
}

// apart returns the values that m counts apart; a missing one is null. If m adds up a fact,
// the name of the fact is one of the values: smallest units and arguments have separate sums.
func apart(m policy.Meter, arguments json.RawMessage, facts func() json.RawMessage) (string, error) {
	values := make([]json.RawMessage, len(m.Per), len(m.Per)+1)
	for i, at := range m.Per {
		got, there := counted(m, at, arguments, facts)
		if !there {
			got = json.RawMessage("null")
		}
		text, err := canonical(got)
		if err != nil {
			return "", err
		}
		if len(text) > maxApart {
			sum := sha256.Sum256(text)
			text = jsonrpc.Quote("sha256:" + hex.EncodeToString(sum[:]))
		}
		values[i] = text
	}
	if m.Sum != "" && !strings.HasPrefix(m.Sum, "/") {
		values = append(values, jsonrpc.Quote(m.Sum))
	}
	text, err := json.Marshal(values)
	return string(text), err
}

// amountAt reads the number that m adds up.
func amountAt(m policy.Meter, arguments json.RawMessage, facts func() json.RawMessage) (*apd.Decimal, *Uncountable) {
	none := new(apd.Decimal)
	raw, there := counted(m, m.Sum, arguments, facts)
	fault := &Uncountable{Meter: m.Name, Pointer: m.Sum}
	switch {
	case !there:
		return none, fault
	case raw[0] != '-' && (raw[0] < '0' || raw[0] > '9'):
		fault.Got = kinds[raw[0]]
		return none, fault
	}
	fault.Got = fmt.Sprintf("%.80s", raw)
	d, _, err := exact.NewFromString(string(raw))
	if err != nil || d.Sign() < 0 {
		return none, fault
	}
	d.Reduce(d)
	if d.Sign() != 0 && (d.Exponent < -maxDecimals || d.NumDigits()+int64(d.Exponent) > maxWhole) {
		return none, fault
	}
	return d.Abs(d), nil
}

var kinds = map[byte]string{'"': "text", '{': "an object", '[': "a list", 't': "true", 'f': "false", 'n': "null"}

// find gives the value at a JSON Pointer (RFC 6901).
func find(value json.RawMessage, pointer string) (json.RawMessage, bool) {
	for key := range jsontext.Pointer(pointer).Tokens() {
		if len(value) == 0 || value[0] != '[' {
			value, _ = jsonrpc.Get(value, key)
			continue
		}
		list, want := value, 0
		if want, _ = strconv.Atoi(key); strconv.Itoa(want) != key {
			return nil, false
		}
		value = nil
		for e := range jsonrpc.Elements(list) {
			if want == 0 {
				value = e
				break
			}
			want--
		}
	}
	return value, len(value) > 0
}

// canonical writes a JSON value in the one form that all its spellings have.
func canonical(raw json.RawMessage) (json.RawMessage, error) {
	v, err := jsonrpc.Value(raw, jsonrpc.MostLimits())
	if err != nil {
		return nil, err
	}
	if v, err = settled(v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// settled replaces the numbers in v by their shortest spelling.
func settled(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		d, _, err := apd.NewFromString(string(v))
		if err != nil {
			return nil, fmt.Errorf("reading %.40q: %w", string(v), err)
		}
		if d.Sign() == 0 {
			return json.Number("0"), nil
		}
		d.Reduce(d)
		return json.Number(d.Text('E')), nil
	case []any:
		for i := range v {
			if v[i], err = settled(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = settled(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// plain writes d as a JSON number without exponent.
func plain(d *apd.Decimal) string {
	var r apd.Decimal
	r.Reduce(d)
	if r.Sign() == 0 {
		return "0"
	}
	return r.Text('f')
}
