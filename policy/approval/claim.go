package approval

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// Claim finds or creates the ticket of a held call and returns its answer. When that is
// Granted, the grant is already spent, durably: the caller sends the call once and
// then calls Finish, or Release when it is certain that nothing was sent. Of any
// number of callers, in any number of processes, one gets the grant. Every error
// refuses the call.
func (t *Tickets) Claim(ctx context.Context, held Held) (Claim, error) {
	if t.closed() {
		return Claim{}, ErrClosed
	}
	if err := held.complete(t.opts.TTL); err != nil {
		return Claim{}, fmt.Errorf("claiming a ticket: %w", err)
	}
	if err := t.ready(ctx); err != nil {
		return Claim{}, fmt.Errorf("claiming a ticket: %w", err)
	}
	bound := binding(held)
	var c Claim
	err := t.write(ctx, func(w *writer) error {
		found, err := t.ofBinding(w, bound, held.Principal)
		if err == nil && found != "" {
			c.Ticket, err = t.lock(w, load{result: true}, found)
		}
		if err == nil && found != "" {
			c.Outcome, err = t.answer(w, &c.Ticket, held)
		}
		switch {
		case err != nil || c.Outcome != "":
		case held.Unconnected != "":
			c = Claim{Outcome: Unconnected}
		default:
			c, err = t.propose(w, bound, held)
		}
		return err
	})
	if err == nil && c.Outcome == Granted {
		err = t.sealer.dir.RaiseCount(t.grants(), c.Ticket.version)
	}
	if err != nil {
		if c.Outcome == Granted {
			t.running.Delete(c.Ticket.ID)
		}
		return Claim{}, fmt.Errorf("claiming a ticket: %w", err)
	}
	if c.Ticket.ID != "" {
		c.Ticket.Arguments = slices.Clone(held.Arguments)
	}
	return c, nil
}

// ofBinding returns the ID of the latest ticket of a binding, "" when there is none. Until w
// ends nobody else makes a ticket of the requester.
func (t *Tickets) ofBinding(w *writer, bound string, requester policy.Principal) (id string, err error) {
	if err = t.db.Lock(w.ctx, w.tx, "requester "+jsonList([]string{requester.Subject, requester.Tenant})); err != nil {
		return "", err
	}
	err = w.tx.QueryRowContext(w.ctx, "SELECT id FROM approvals WHERE binding = ? ORDER BY seq DESC LIMIT 1", bound).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return id, err
}

// complete sets the defaults of the approval and refuses a call that no ticket could
// be bound to.
func (h *Held) complete(ttl time.Duration) error {
	h.Roles = slices.Sorted(slices.Values(h.Roles))
	h.Quorum = max(1, h.Quorum)
	if h.TTL <= 0 {
		h.TTL = ttl
	}
	switch {
	case !h.Principal.Valid():
		return errors.New("no principal")
	case h.Server == "" || h.Tool == "" || h.Fingerprint == "" || h.Revision == "":
		return errors.New("server, tool, fingerprint and policy revision are needed")
	case len(h.Roles) == 0:
		return errors.New("no approver role")
	case h.Digest != digest(h.Arguments):
		return errors.New("the digest is not that of the arguments")
	}
	return nil
}

// answer returns the answer of the latest ticket of a binding; "" means that it no
// longer answers calls and a new ticket is due. When held.Execute is set, a waiting ticket
// keeps it.
func (t *Tickets) answer(w *writer, k *Ticket, held Held) (ClaimOutcome, error) {
	if k.doubt != "" || k.granted() {
		trusted, err := t.trust(w, k)
		if err != nil {
			return "", err
		}
		if !trusted && k.deadline > w.now {
			k.State = StateUnknown
			return Unknown, nil
		}
	}
	switch {
	case k.granted():
		return t.grant(w, k, held)
	case held.Unconnected != "":
		return Unconnected, nil
	}
	switch k.State {
	case StateProposed:
		return Pending, w.attach(k, held.Execute)
	case StateDispatching:
		return InFlight, nil
	case StateExpired:
		if k.reported {
			return "", nil
		}
		return Expired, w.one("UPDATE approvals SET reported = 1 WHERE id = ? AND reported = 0", k.ID)
	}
	if k.deadline <= w.now {
		return "", nil
	}
	return final[k.State], nil
}

// attach notes that an identical call found k waiting.
func (w *writer) attach(k *Ticket, execute bool) error {
	k.Attached++
	err := w.one("UPDATE approvals SET attached = attached + 1 WHERE id = ? AND state = ?", k.ID, k.State)
	if err != nil || k.Execute || !execute {
		return err
	}
	k.Execute = true
	if err := w.one("UPDATE approvals SET execute = 1 WHERE id = ?", k.ID); err != nil {
		return err
	}
	return w.sealTicket(k)
}

// final maps the final states to their answers until the ticket's expiry. A state that
// is not listed does not answer.
var final = map[State]ClaimOutcome{StateDone: Replay, StateFailed: Failed, StateUnknown: Unknown, StateDenied: Denied}

// grant spends the grant of a ticket if its call would run as the ticket says. If not, the grant
// is kept until the ticket is over, or the call would.
func (t *Tickets) grant(w *writer, k *Ticket, held Held) (ClaimOutcome, error) {
	switch why := k.Disconnected(held); {
	case why != "" && k.State == StateApproved:
		return Unconnected, w.move(k, change{to: StateNeedsConnection, reason: why})
	case why != "":
		return Unconnected, nil
	case k.State == StateNeedsConnection:
		if err := w.move(k, change{to: StateApproved, reason: "the requester is connected again"}); err != nil {
			return "", err
		}
	}
	return t.spend(w, k)
}

// spend gives the grant of an approved ticket if its approvers may still approve it.
// If not, the ticket is superseded, and people are asked again.
func (t *Tickets) spend(w *writer, k *Ticket) (ClaimOutcome, error) {
	votes, gone, err := t.standing(w, k)
	if err != nil {
		return "", err
	}
	if !k.suffice(votes) {
		why := fmt.Sprintf("%s no longer has a role that may approve this call", gone)
		return "", w.move(k, change{to: StateSuperseded, reason: why, note: why})
	}
	t.running.Store(k.ID, nil)
	return Granted, w.move(k, change{to: StateDispatching, reason: "the grant was spent", instance: t.opts.Instance})
}

// propose creates a ticket, unless its requester has the most that may wait. It
// supersedes the tickets of the same call under other terms.
func (t *Tickets) propose(w *writer, bound string, held Held) (Claim, error) {
	if err := t.supersede(w, bound, held); err != nil {
		return Claim{}, err
	}
	var live int
	err := w.tx.QueryRowContext(w.ctx, "SELECT count(*) FROM approvals INDEXED BY approvals_waiting WHERE subject = ? AND tenant = ? AND state IN ('proposed', 'approved') AND state = 'proposed' AND deadline > ?",
		held.Principal.Subject, held.Principal.Tenant, w.now).Scan(&live)
	if err != nil {
		return Claim{}, err
	}
	if live >= t.opts.MaxLive {
		return Claim{Outcome: TooMany}, nil
	}
	k := &Ticket{
		Held: held, ID: signal.UniqueID("apr_"), State: StateProposed, ArgumentBytes: len(held.Arguments), Instance: t.opts.Instance,
		Created: w.wall.UTC(), Expires: w.wall.UTC().Add(held.TTL), deadline: w.now + int64(held.TTL),
	}
	k.Approval = policy.Approval{Roles: held.Roles, Quorum: held.Quorum, Each: held.Each} // as it is stored
	return Claim{Ticket: *k, Outcome: Pending}, w.insert(bound, k)
}

const otherTerms = "the call came again under another policy, tool definition or obligation"

// stale selects them by the index of the tickets that wait.
const stale = `WHERE seq IN (SELECT seq FROM approvals INDEXED BY approvals_waiting WHERE subject = ? AND tenant = ? AND state IN ('proposed', 'approved')
 AND server = ? AND tool = ? AND exposed = ? AND digest = ? AND binding <> ?)`

// supersede ends the live tickets of the same call under another policy, definition or
// obligation: nobody should decide on them.
func (t *Tickets) supersede(w *writer, bound string, h Held) error {
	found, err := w.query(w.ctx, w.tx, load{}, stale,
		h.Principal.Subject, h.Principal.Tenant, h.Server, h.Tool, h.Exposed, h.Digest, bound)
	if err != nil {
		return err
	}
	for _, k := range found {
		k, err := t.lock(w, load{}, k.ID)
		if err != nil {
			return err
		}
		if k.doubt != "" || !k.waits() {
			continue // settle or trust moves it, or somebody has
		}
		if err := w.move(&k, change{to: StateSuperseded, reason: otherTerms, note: otherTerms}); err != nil {
			return err
		}
	}
	return nil
}

// insert stores a new ticket.
func (w *writer) insert(bound string, k *Ticket) error {
	k.binding, k.subject, k.tenant = bound, k.Principal.Subject, k.Principal.Tenant
	k.parties = append([]string{}, k.Principal.Parties()...)
	fields := append(k.sealedFields(), append([]byte{}, k.Arguments...))
	err := w.one("INSERT INTO approvals ("+sealedColumns+", arguments) VALUES (?"+strings.Repeat(", ?", len(fields)-1)+")", fields...)
	if err != nil {
		return err
	}
	return w.note(k, "", k.Principal.Subject, k.Reason)
}

// Release returns a grant, with its old expiry. It is only for a call of which it is
// certain that nothing was sent; for anything less certain call Finish with
// StateUnknown. The error is ErrNotDispatching when this instance does not run the
// ticket.
func (t *Tickets) Release(ctx context.Context, id string) error {
	return t.end(ctx, id, change{to: StateApproved, reason: "nothing was sent"})
}

// Finish stores the outcome of a granted call: StateDone with its result, StateFailed
// or StateUnknown with a note. A result above MaxResultBytes is left out and the note
// says so. The error is ErrNotDispatching when this instance does not run the ticket.
// When Finish fails, every later call finds the ticket unknown: it never runs again.
func (t *Tickets) Finish(ctx context.Context, id string, state State, result []byte, note string) error {
	if state != StateDone && state != StateFailed && state != StateUnknown {
		return fmt.Errorf("ending the run of ticket %s: %q is no outcome", id, state)
	}
	if len(result) > MaxResultBytes {
		large := fmt.Sprintf("the result of %d bytes is too large to keep", len(result))
		note, result = strings.TrimPrefix(note+"; "+large, "; "), nil
	}
	return t.end(ctx, id, change{to: state, reason: cmp.Or(note, "the upstream answered"), result: result, note: note})
}

// end ends the run of a ticket. The call is over in any case, so the end of ctx does
// not interrupt it.
func (t *Tickets) end(ctx context.Context, id string, c change) error {
	defer t.running.Delete(id)
	err := t.write(context.WithoutCancel(ctx), func(w *writer) error {
		k, err := t.lock(w, load{}, id)
		if err != nil {
			return err
		}
		if k.State != StateDispatching || k.runner != t.opts.Instance {
			return ErrNotDispatching
		}
		return w.move(&k, c)
	})
	if err != nil {
		return fmt.Errorf("ending the run of ticket %s: %w", id, err)
	}
	return nil
}
