package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/store"
)

// Decide counts one approver's vote. The ticket is approved when Quorum people have
// approved, and as many holders of each role as Each requires; one denial denies it.
// A refused vote changes nothing and returns the first of ErrNotFound,
// ErrSelfApproval, ErrNotApprover, ErrExpired, ErrNotPending, ErrReasonRequired,
// ErrStaleDigest and ErrAlreadyVoted that applies. A vote counts with the approver's
// roles at the moment of the vote; Options.Standing describes the votes of approvers
// who lose them later.
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

// alter changes one ticket, or refuses to. A refusal does not undo the rest of the
// transaction: expired and unknown tickets stay so.
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

// check returns why v does not count, nil when it counts.
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

// vote stores the vote and, when it decides the ticket, moves it.
func (t *Tickets) vote(w *writer, k *record, v Vote) (refusal, err error) {
	err = w.one(`INSERT INTO approval_votes (ticket, subject, approve, reason, digest, at, counted_by, until, roles)
 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, k.ID, v.Approver.Subject, v.Approve, v.Reason, k.Digest,
		w.wall.UnixNano(), t.opts.Instance, store.Time{To: &v.Approver.Until}, jsonList(v.Approver.Roles))
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
