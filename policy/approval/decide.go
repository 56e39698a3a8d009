package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Decide counts one approver's vote. The ticket is approved when Quorum people
// have said yes, and denied as soon as one says no. A refused vote changes
// nothing and is one of ErrNotFound, ErrSelfApproval, ErrNotApprover,
// ErrExpired, ErrNotPending, ErrReasonRequired, ErrStaleDigest and
// ErrAlreadyVoted, in this order. Roles are those of the moment of the vote.
func (t *Tickets) Decide(ctx context.Context, v Vote) (Ticket, error) {
	v.Reason = strings.TrimSpace(v.Reason)
	var k record
	var refusal error
	err := t.write(ctx, func(w *writer) (err error) {
		if k, err = one(w.ctx, w.tx, load{}, v.ID); errors.Is(err, ErrNotFound) {
			refusal = err
			return nil
		}
		if err != nil {
			return err
		}
		if refusal = k.check(v); refusal == nil {
			refusal, err = w.vote(&k, v)
		}
		return err
	})
	if err == nil {
		err = refusal
	}
	if err != nil {
		return Ticket{}, fmt.Errorf("deciding on ticket %q: %w", v.ID, err)
	}
	return t.Get(ctx, v.ID)
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
func (w *writer) vote(k *record, v Vote) (refusal, err error) {
	err = w.one(`INSERT INTO approval_votes (ticket, subject, approve, reason, digest, at) VALUES (?, ?, ?, ?, ?, ?)
 ON CONFLICT DO NOTHING`, k.ID, v.Approver.Subject, v.Approve, v.Reason, k.Digest, w.wall.UnixNano())
	if errors.Is(err, errMoved) {
		return ErrAlreadyVoted, nil
	}
	if err != nil {
		return nil, err
	}
	if !v.Approve {
		return nil, w.move(k, change{to: StateDenied, who: v.Approver.Subject, reason: v.Reason})
	}
	var yes int
	err = w.tx.QueryRowContext(w.ctx, "SELECT count(*) FROM approval_votes WHERE ticket = ? AND approve = 1", k.ID).Scan(&yes)
	if err != nil {
		return nil, err
	}
	if yes < k.Quorum {
		return nil, w.note(k, StateProposed, v.Approver.Subject, v.Reason)
	}
	return nil, w.move(k, change{to: StateApproved, who: v.Approver.Subject, reason: v.Reason})
}
