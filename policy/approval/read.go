package approval

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
	followed     = 100 // how many changes are read at once
	// heldEvery is how often a follower looks for a change that holds back others.
	heldEvery = 50 * time.Millisecond
)

// Get returns one whole ticket. ErrNotFound reports that it does not exist.
func (t *Tickets) Get(ctx context.Context, id string) (k Ticket, err error) {
	_, err = t.view(ctx, "", func(tx *sql.Tx) error {
		if k, err = t.one(ctx, tx, whole, id); err != nil {
			return err
		}
		var doubt string
		if k.Votes, doubt, err = t.ballots(ctx, tx, id); err != nil {
			return err
		}
		if k.doubt == "" && doubt != "" && k.live() {
			k.doubt = doubt
			k.withhold()
		}
		events, err := store.Select(ctx, tx, (*Event).fields, changeColumns+"WHERE ticket = ? ORDER BY seq", id)
		for _, e := range events {
			k.History = append(k.History, e.Change)
		}
		return err
	})
	if err != nil {
		return Ticket{}, fmt.Errorf("reading ticket %q: %w", id, err)
	}
	return k, nil
}

// view runs do in one transaction that only reads, after everything that is due has
// expired, unless the store still has the version known. It returns the store's version before.
func (t *Tickets) view(ctx context.Context, known string, do func(*sql.Tx) error) (version string, err error) {
	version, err = t.refresh(ctx)
	if err == nil && version != known {
		err = t.db.View(ctx, do)
	}
	return version, err
}

// List returns the tickets that f chooses, newest first, without results, votes and
// history; larger arguments are left out (see ListedArgumentBytes).
func (t *Tickets) List(ctx context.Context, f Filter) ([]Ticket, error) {
	tail, args := f.where()
	tickets, err := t.list(ctx, load{arguments: ListedArgumentBytes}, tail, args...)
	if f.Awaiting.Valid() { // those who may act for each other are not among the stored parties
		tickets = slices.DeleteFunc(tickets, func(k Ticket) bool { return !k.MayDecide(f.Awaiting) })
	}
	return tickets, err
}

// list returns the tickets that tail selects.
func (t *Tickets) list(ctx context.Context, l load, tail string, args ...any) (tickets []Ticket, err error) {
	if _, err = t.refresh(ctx); err == nil {
		tickets, err = t.query(ctx, t.db.Read, l, tail, args...)
	}
	if err != nil {
		return nil, fmt.Errorf("listing tickets: %w", err)
	}
	return tickets, nil
}

const hasRole = "EXISTS (SELECT 1 FROM json_each(roles) WHERE value IN (SELECT value FROM json_each(?)))"

// shownState is the state of a row, where the column is as [column] says.
const shownState = "CASE WHEN unconnected = '' THEN state ELSE 'needs_connection' END"

// where returns f as SQL and the values of its parameters.
func (f Filter) where() (string, []any) {
	terms, args := []string{"TRUE"}, []any{}
	add := func(term string, values ...any) {
		terms = append(terms, term)
		args = append(args, values...)
	}
	if f.States != nil {
		stored := slices.Clone(f.States)
		if slices.Contains(stored, StateNeedsConnection) {
			stored = append(stored, StateApproved)
		}
		add("state IN (SELECT value FROM json_each(?)) AND "+shownState+" IN (SELECT value FROM json_each(?))", jsonList(stored), jsonList(f.States))
	}
	for _, is := range []struct{ column, value string }{{"subject", f.Principal}, {"server", f.Server}, {"exposed", f.Tool}} {
		if is.value != "" {
			add(is.column+" = ?", is.value)
		}
	}
	if f.Roles != nil {
		add(hasRole, jsonList(f.Roles))
	}
	if v := f.Viewer; v.Valid() {
		add("tenant = ? AND (subject = ? OR "+hasRole+")", v.Tenant, v.Subject, jsonList(v.Roles))
	}
	if v := f.Awaiting; v.Valid() {
		parties := jsonList(v.Parties())
		add("state = 'proposed' AND tenant = ? AND "+hasRole, v.Tenant, jsonList(v.Roles))
		add("NOT EXISTS (SELECT 1 FROM json_each(?) WHERE value = subject OR value IN (SELECT value FROM json_each(approvals.parties)))", parties)
		add(`NOT EXISTS (SELECT 1 FROM approval_votes v, json_each(?) p WHERE v.ticket = approvals.id
 AND (p.value = v.subject OR p.value IN (SELECT value FROM json_each(v.parties))))`, parties)
	}
	if f.Before != "" {
		add("seq < (SELECT seq FROM approvals WHERE id = ?)", f.Before)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	return "WHERE " + strings.Join(terms, " AND ") + " ORDER BY seq DESC LIMIT ?", append(args, min(limit, maxLimit))
}

func jsonList[S ~string](list []S) string {
	if list == nil {
		list = []S{}
	}
	text, _ := json.Marshal(list) // strings always marshal
	return string(text)
}

// Held returns the number of calls that wait for a decision.
func (t *Tickets) Held(ctx context.Context) (n int, err error) {
	n, _, err = t.Queue(ctx)
	return n, err
}

// Queue returns the number of calls that wait for a decision, and since when the oldest
// waits.
func (t *Tickets) Queue(ctx context.Context) (n int, oldest time.Time, err error) {
	var created int64
	if _, err = t.refresh(ctx); err == nil {
		err = t.db.Read.QueryRowContext(ctx, "SELECT count(*), coalesce(min(created), 0) FROM approvals WHERE state = 'proposed'").Scan(&n, &created)
	}
	if err != nil {
		return 0, oldest, fmt.Errorf("counting tickets: %w", err)
	}
	return n, time.Unix(0, created), nil
}

// live selects whether time, or the end of a process, can change a ticket.
const live = "SELECT EXISTS (SELECT 1 FROM approvals WHERE state IN ('proposed', 'approved', 'dispatching'))"

// refresh settles the tickets that are over, so that no reader sees a ticket waiting that
// nobody can decide, or running that nobody runs; at most another process is changing it.
// It returns the version of the store before that. Once it has found no live ticket it looks
// at the clock only, until something changes.
func (t *Tickets) refresh(ctx context.Context) (version string, err error) {
	now, err := t.readClock(ctx, t.clockQuery)
	if err != nil {
		return "", err
	}
	at := t.clock.read(t.opts.Now(), now.seen)
	if now.version == t.restsAt.Load() {
		return now.version, nil
	}
	over, err := t.over(ctx, t.db.Read, at)
	switch {
	case err != nil:
	case len(over) > 0:
		err = t.settleOver(ctx)
	default:
		var some bool
		if err = t.db.Read.QueryRowContext(ctx, live).Scan(&some); err == nil && !some {
			t.restsAt.Store(now.version)
		}
	}
	return now.version, err
}

// WaitingIDs returns the IDs of the newest 100 tickets in db that wait for people, for
// completion where no toolgate serves. It authenticates nothing.
func WaitingIDs(ctx context.Context, db *store.DB) ([]string, error) {
	return store.Select(ctx, db.Read, func(id *string) []any { return []any{id} },
		"SELECT id FROM approvals WHERE state = 'proposed' ORDER BY seq DESC LIMIT 100")
}

// Counts returns the number of tickets in db by state. It authenticates nothing.
func Counts(ctx context.Context, db *store.DB) (map[State]int, error) {
	type count struct {
		state State
		n     int
	}
	rows, err := store.Select(ctx, db.Read, func(c *count) []any { return []any{&c.state, &c.n} }, "SELECT "+shownState+", count(*) FROM approvals GROUP BY 1")
	counts := make(map[State]int, len(rows))
	for _, c := range rows {
		counts[c.state] = c.n
	}
	return counts, err
}

// answered is the largest number of tickets that Answering returns.
const answered = 100

// Live returns the tickets that wait for a decision or for their call and were created
// by this instance or by a dead one, oldest first, with whole arguments, without
// results. Other living processes judge their own tickets: they may have another
// policy and other tools.
func (t *Tickets) Live(ctx context.Context) ([]Ticket, error) {
	return t.ours(ctx, "WHERE state IN ('proposed', 'approved')")
}

// Runnable returns the tickets of Live that are approved and are to run without their
// agent. To run one, claim it like any call.
func (t *Tickets) Runnable(ctx context.Context) ([]Ticket, error) {
	return t.ours(ctx, "WHERE state = 'approved' AND execute = 1")
}

func (t *Tickets) ours(ctx context.Context, where string) ([]Ticket, error) {
	tickets, err := t.list(ctx, load{arguments: whole.arguments}, where+" ORDER BY seq")
	if err != nil {
		return nil, err
	}
	tickets = slices.DeleteFunc(tickets, func(k Ticket) (theirs bool) {
		if err == nil && k.doubt == "" && k.Instance != t.opts.Instance {
			theirs, err = t.instances.Alive(ctx, k.Instance)
		}
		return theirs || k.doubt != ""
	})
	if err != nil {
		return nil, fmt.Errorf("listing tickets: %w", err)
	}
	return tickets, nil
}

// answering selects the tickets of Answering. Each half has an index that leaves out the
// requester's old tickets.
const answering = `WHERE seq IN (
 SELECT seq FROM approvals INDEXED BY approvals_running WHERE subject = ? AND tenant = ? AND state = 'dispatching' UNION ALL
 SELECT seq FROM approvals INDEXED BY approvals_answering WHERE subject = ? AND tenant = ? AND deadline > ? AND deadline > (SELECT seen FROM approval_clock)
 AND state IN ('proposed', 'approved', 'denied', 'done', 'failed', 'unknown')) ORDER BY seq DESC LIMIT ?`

// Answering returns p's own tickets that answer an identical call: those that are live
// or running, and the final ones before their expiry; the newest hundred, newest
// first, with results. Larger arguments are left out (see ListedArgumentBytes).
//
// That p has none is remembered until any ticket changes: time alone adds none.
func (t *Tickets) Answering(ctx context.Context, p policy.Principal) ([]Ticket, error) {
	who := [...]string{p.Subject, p.Tenant}
	now, unread := t.readClock(ctx, t.clockQuery) // before the tickets: a change in between is seen the next time
	if at, none := t.without.Get(who); none && unread == nil && at == now.version {
		return nil, nil
	}
	found, err := t.list(ctx, load{arguments: ListedArgumentBytes, result: true}, answering,
		p.Subject, p.Tenant, p.Subject, p.Tenant, t.clock.read(t.opts.Now(), 0), answered)
	if err == nil && unread == nil && len(found) == 0 {
		t.without.Add(who, now.version)
	}
	return found, err
}

// Repeated returns the ticket that would answer a claim for held, without arguments
// and result, and changes nothing. ErrNotFound reports that the claim would make a
// new one.
func (t *Tickets) Repeated(ctx context.Context, held Held) (Ticket, error) {
	if err := held.complete(t.opts.TTL); err != nil {
		return Ticket{}, fmt.Errorf("looking for the ticket of a call: %w", err)
	}
	found, err := t.query(ctx, t.db.Read, load{}, `WHERE binding = ? AND (state = 'dispatching'
 OR deadline > ? AND deadline > (SELECT seen FROM approval_clock) AND state IN ('proposed', 'approved', 'denied', 'done', 'failed', 'unknown')) ORDER BY seq DESC LIMIT 1`,
		binding(held), t.clock.read(t.opts.Now(), 0))
	if err == nil && len(found) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Ticket{}, fmt.Errorf("looking for the ticket of a call: %w", err)
	}
	return found[0], nil
}

// Similar returns the last ticket before id of the same server, tool, exposed name and
// tenant that people approved, with whole arguments and without its result, whoever
// the requester and whatever the outcome. ErrNotFound reports that there is none, or
// that id does not exist. Somebody who may see one of the two may not see the other.
func (t *Tickets) Similar(ctx context.Context, id string) (Ticket, error) {
	records, err := t.query(ctx, t.db.Read, load{arguments: whole.arguments}, `WHERE decided_by <> '' AND state <> 'denied'
 AND (server, tool, exposed, tenant) = (SELECT server, tool, exposed, tenant FROM approvals WHERE id = ?)
 AND seq < (SELECT seq FROM approvals WHERE id = ?) ORDER BY seq DESC LIMIT 1`, id, id)
	if err == nil && len(records) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Ticket{}, fmt.Errorf("looking for a ticket like %q: %w", id, err)
	}
	return records[0], nil
}

// Follow yields every change of a ticket with a number above after, in order, once it
// is committed, by this process or another; after < 0 starts at the call of Follow.
// The end of ctx ends the sequence without an error, an error of the store with one.
//
// A change whose number is skipped, because its transaction has not ended, holds back those
// with later numbers until it is committed or has failed.
func (t *Tickets) Follow(ctx context.Context, after int64) iter.Seq2[Event, error] {
	f := follower{tickets: t, after: after}
	var failed error
	if after < 0 {
		failed = f.startHere(ctx)
	}
	return func(yield func(Event, error) bool) {
		err := failed
		if err == nil {
			err = f.follow(ctx, yield)
		}
		if err != nil && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("following tickets: %w", err))
		}
	}
}

// follower is the position of one Follow.
type follower struct {
	tickets *Tickets
	after   int64  // the number of the last change that was yielded
	version string // of the store, when it was read last
	// Numbers up to known were given before marked: once the store has settled marked, those
	// that are not visible never will be.
	known  int64
	marked store.Moment
	held   bool // changes wait for one with a lower number
}

// startHere sets the position to the last change, when no other with a lower number can
// follow.
func (f *follower) startHere(ctx context.Context) error {
	t := f.tickets
	now, err := t.readClock(ctx, t.clockQuery)
	if err == nil {
		f.after = now.changes
		f.marked, err = t.db.Now(ctx)
	}
	for err == nil {
		settled, fault := t.db.Settled(ctx, t.db.Read, f.marked)
		switch {
		case fault != nil || settled:
			return fault
		case !wait.For(ctx, heldEvery):
			return ctx.Err()
		}
	}
	return err
}

// follow yields until ctx ends or the caller stops.
func (f *follower) follow(ctx context.Context, yield func(Event, error) bool) error {
	changed, leave := f.tickets.waiters.join(anyTicket)
	defer leave()
	for {
		events, err := f.next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if f.after = e.Seq; !yield(e, nil) {
				return nil
			}
		}
		pause := wait.Beat(followEvery)
		if f.held {
			pause = heldEvery
		}
		if len(events) < followed && awaitChange(ctx, changed, pause) != nil {
			return nil // ctx has ended
		}
	}
}

// next returns the next changes.
func (f *follower) next(ctx context.Context) (events []Event, err error) {
	t := f.tickets
	version, err := t.view(ctx, f.version, func(tx *sql.Tx) error {
		events, err = store.Select(ctx, tx, (*Event).fields, changeColumns+"WHERE seq > ? ORDER BY seq LIMIT ?", f.after, followed)
		if err == nil {
			events, err = f.inOrder(ctx, tx, events)
		}
		if err != nil || len(events) == 0 {
			return err
		}
		var ids []string
		for _, e := range events {
			ids = append(ids, e.Ticket.ID)
		}
		records, err := t.query(ctx, tx, load{arguments: ListedArgumentBytes}, "WHERE id IN (SELECT value FROM json_each(?))", jsonList(ids))
		for _, k := range records {
			for i := range events {
				if events[i].Ticket.ID == k.ID {
					events[i].Ticket = k
				}
			}
		}
		return err
	})
	if f.version = version; len(events) == followed || f.held {
		f.version = "" // there may be more
	}
	return events, err
}

// inOrder returns the events before the first number that is missing and may still appear.
func (f *follower) inOrder(ctx context.Context, tx *sql.Tx, events []Event) (_ []Event, err error) {
	f.held = false
	if !f.tickets.db.Shared() { // a number is visible before the next one is given
		return events, nil
	}
	settled, err := f.tickets.db.Settled(ctx, tx, f.marked)
	if err != nil {
		return nil, err
	}
	before := f.after
	for i, e := range events {
		if e.Seq > before+1 && (!settled || e.Seq > f.known) {
			if f.held = true; settled { // those that were given until now are to settle next
				f.known = events[len(events)-1].Seq
				f.marked, err = f.tickets.db.Now(ctx)
			}
			return events[:i], err
		}
		before = e.Seq
	}
	return events, nil
}

// Judged reads the arguments of t, which Options.Changed gets without them, through its
// transaction: nil when the store has none or others than were held.
func Judged(ctx context.Context, tx *sql.Tx, t Ticket) (json.RawMessage, error) {
	var arguments []byte
	err := tx.QueryRowContext(ctx, "SELECT arguments FROM approvals WHERE id = ?", t.ID).Scan(&arguments)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && digest(arguments) != t.Digest:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the arguments of ticket %s: %w", t.ID, err)
	}
	return arguments, nil
}
