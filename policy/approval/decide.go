package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Decide counts one approver's vote. The ticket is approved when Quorum people
// have said yes, and as many holders of each role as Each says, and denied as soon as one says no. A refused vote changes
// nothing and is one of ErrNotFound, ErrSelfApproval, ErrNotApprover,
// ErrExpired, ErrNotPending, ErrReasonRequired, ErrStaleDigest and
// ErrAlreadyVoted, in this order. Roles are those of the moment of the vote;
// what becomes of a vote whose approver loses them is with Options.Standing.
func (t *Tickets) Decide(ctx context.Context, v Vote) (Ticket, error) {
	v.Reason = strings.TrimSpace(v.Reason)
	err := t.alter(ctx, v.ID, func(w *writer, k *record) (refusal, err error) {
		if refusal = k.check(v); refusal != nil {
			return refusal, nil
		}
		return t.vote(w, k, v)
	})
	if err != nil {
		return Ticket{}, fmt.Errorf("deciding on ticket %q: %w", v.ID, err)
	}
	return t.Get(ctx, v.ID)
}

// alter changes one ticket, or refuses to. A refusal undoes nothing of the
// transaction: what was due stays expired, what nobody runs stays unknown.
func (t *Tickets) alter(ctx context.Context, id string, do func(*writer, *record) (refusal, err error)) error {
	var refusal error
	err := t.write(ctx, func(w *writer) error {
		k, err := one(w.ctx, w.tx, load{}, id)
		if errors.Is(err, ErrNotFound) {
			refusal = err
			return nil
		}
		if err == nil && k.State == StateDispatching {
			err = t.settle(w, &k)
		}
		if err == nil {
			refusal, err = do(w, &k)
		}
		return err
	})
	if err != nil {
		return err
	}
	return refusal
}

// check says why v may not be counted, nil when it may.
func (k *record) check(v Vote) error {
	switch refusal := k.refuse(v.Approver); {
	case refusal != nil:
		return refusal
	case k.State == StateExpired:
		return ErrExpired
	case k.State != StateProposed:
		return fmt.Errorf("%w: it is %s", ErrNotPending, k.State)
	case !v.Approve && v.Reason == "":
		return ErrReasonRequired
	case v.Digest != "" && v.Digest != k.Digest:
		return ErrStaleDigest
	}
	return nil
}

// vote stores the vote and, when it settles the matter, moves the ticket.
func (t *Tickets) vote(w *writer, k *record, v Vote) (refusal, err error) {
	roles, err := json.Marshal(v.Approver.Roles)
	if err != nil {
		return nil, err
	}
	err = w.one(`INSERT INTO approval_votes (ticket, subject, approve, reason, digest, at, counted_by, until, roles)
 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		k.ID, v.Approver.Subject, v.Approve, v.Reason, k.Digest, w.wall.UnixNano(), t.opts.Instance, until(v.Approver), string(roles))
	if errors.Is(err, errMoved) {
		return ErrAlreadyVoted, nil
	}
	if err != nil {
		return nil, err
	}
	if !v.Approve {
		return nil, w.move(k, change{to: StateDenied, who: v.Approver.Subject, reason: v.Reason})
	}
	k.countApproval(v.Approver.Roles)
	votes, _, err := t.standing(w, k)
	if err != nil {
		return nil, err
	}
	if !k.suffice(votes) {
		return nil, w.note(k, StateProposed, v.Approver.Subject, v.Reason)
	}
	return nil, w.move(k, change{to: StateApproved, who: v.Approver.Subject, reason: v.Reason})
}
