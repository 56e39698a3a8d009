package approval

import (
	"context"
	"fmt"
	"strings"
)

// Reconcile settles a call whose outcome was unknown: it was done, or it failed. The
// ticket never allows the call again; a new call is possible after the ticket's
// expiry. A refused finding changes nothing and returns the first of ErrNotFound,
// ErrSelfApproval, ErrNotApprover, ErrNotUnknown and ErrReasonRequired that applies.
// One person suffices, whatever the quorum.
func (t *Tickets) Reconcile(ctx context.Context, f Finding) (Ticket, error) {
	f.Reason = strings.TrimSpace(f.Reason)
	err := t.alter(ctx, f.ID, func(w *writer, k *record) (refusal, err error) {
		if refusal = k.checkFinding(f); refusal != nil {
			return refusal, nil
		}
		c := change{to: StateFailed, who: f.Approver.Subject, reason: f.Reason}
		found := "did not take effect"
		if f.TookEffect {
			c.to, found = StateDone, "took effect"
		}
		c.note = fmt.Sprintf("%s found that the call %s: %s", f.Approver.Subject, found, f.Reason)
		return nil, w.move(k, c)
	})
	if err != nil {
		return Ticket{}, fmt.Errorf("reconciling ticket %q: %w", f.ID, err)
	}
	return t.Get(ctx, f.ID)
}

// checkFinding returns why f does not count, nil when it counts.
func (k *record) checkFinding(f Finding) error {
	switch refusal := k.refuse(f.Approver); {
	case refusal != nil:
		return refusal
	case k.State != StateUnknown:
		return fmt.Errorf("%w: it is %s", ErrNotUnknown, k.State)
	case f.Reason == "":
		return ErrReasonRequired
	}
	return nil
}

// Supersede ends a ticket that nobody should decide on or spend; who is a subject, ""
// when no person ends it. The error is ErrNotFound, or ErrNotLive when the ticket is
// neither waiting nor approved.
func (t *Tickets) Supersede(ctx context.Context, id, who, reason string) error {
	err := t.alter(ctx, id, func(w *writer, k *record) (refusal, err error) {
		if k.State != StateProposed && k.State != StateApproved {
			return fmt.Errorf("%w: it is %s", ErrNotLive, k.State), nil
		}
		return nil, w.move(k, change{to: StateSuperseded, who: who, reason: reason, note: reason})
	})
	if err != nil {
		return fmt.Errorf("superseding ticket %q: %w", id, err)
	}
	return nil
}
