package approval

import (
	"context"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

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
	theirs := map[string]bool{t.opts.Instance: false}
	for _, k := range tickets {
		if _, asked := theirs[k.Instance]; !asked {
			if theirs[k.Instance], err = store.InstanceAlive(t.opts.Dir, k.Instance); err != nil {
				return nil, fmt.Errorf("listing tickets: %w", err)
			}
		}
	}
	return slices.DeleteFunc(tickets, func(k Ticket) bool { return theirs[k.Instance] }), nil
}

// Answering returns p's own tickets that answer an identical call: those that are live
// or running, and the final ones before their expiry; the newest hundred, newest
// first, with results. Larger arguments are left out (see ListedArgumentBytes).
func (t *Tickets) Answering(ctx context.Context, p policy.Principal) ([]Ticket, error) {
	return t.list(ctx, load{arguments: ListedArgumentBytes, result: true}, `WHERE subject = ? AND tenant = ? AND (state = 'dispatching'
 OR deadline > max(?, (SELECT seen FROM approval_clock)) AND state IN ('proposed', 'approved', 'denied', 'done', 'failed', 'unknown')) ORDER BY seq DESC LIMIT ?`,
		p.Subject, p.Tenant, t.clock.read(t.opts.Now(), 0), answered)
}

// Similar returns the last ticket before id of the same server, tool, exposed name and
// tenant that people approved, with whole arguments and without its result, whoever
// the requester and whatever the outcome. ErrNotFound reports that there is none, or
// that id does not exist. Somebody who may see one of the two may not see the other.
func (t *Tickets) Similar(ctx context.Context, id string) (Ticket, error) {
	records, err := query(ctx, t.db.Read, load{arguments: whole.arguments}, `WHERE decided_by <> '' AND state <> 'denied'
 AND (server, tool, exposed, tenant) = (SELECT server, tool, exposed, tenant FROM approvals WHERE id = ?)
 AND seq < (SELECT seq FROM approvals WHERE id = ?) ORDER BY seq DESC LIMIT 1`, id, id)
	if err == nil && len(records) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Ticket{}, fmt.Errorf("looking for a ticket like %q: %w", id, err)
	}
	return records[0].Ticket, nil
}
