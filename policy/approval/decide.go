package approval

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Decide counts one approver's vote. The ticket is approved when Quorum people have
// approved, as many of them as holders of each role as Each requires: one vote fills one
// role, and one person has one vote, whatever credentials it shows. One denial denies it.
// A refused vote changes nothing and returns the first of ErrNotFound,
// ErrSelfApproval, ErrNotApprover, ErrPersonRequired, ErrExpired, ErrNotPending, ErrReasonRequired,
// ErrStaleDigest and ErrAlreadyVoted that applies. A vote counts with the approver's
// roles at the moment of the vote; Options.Standing describes the votes of approvers
// who lose them later.
func (t *Tickets) Decide(ctx context.Context, v Vote) (Ticket, error) {
	v.Reason = strings.TrimSpace(v.Reason)
	err := t.alter(ctx, v.ID, func(w *writer, k *Ticket) (refusal, err error) {
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
func (t *Tickets) alter(ctx context.Context, id string, do func(*writer, *Ticket) (refusal, err error)) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	var refusal error
	err := t.write(ctx, func(w *writer) error {
		k, err := t.lock(w, load{}, id)
		if err != nil {
			return err
		}
		if trusted, err := t.trust(w, &k); !trusted {
			refusal = fmt.Errorf("%w: %s", ErrDoubt, k.doubt)
			return err
		}
		refusal, err = do(w, &k)
		return err
	})
	if err != nil {
		return err
	}
	return refusal
}

// check returns why v does not count, nil when it counts.
func (k *Ticket) check(v Vote) error {
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
func (t *Tickets) vote(w *writer, k *Ticket, v Vote) (refusal, err error) {
	if k.Votes, _, err = t.ballots(w.ctx, w.tx, k.ID); err != nil {
		return nil, err
	}
	if _, voted := k.VoteOf(v.Approver); voted {
		return ErrAlreadyVoted, nil
	}
	by := v.Approver
	b := Ballot{Subject: by.Subject, Person: by.Person, Approve: v.Approve, Reason: v.Reason, Digest: k.Digest, At: w.wall, countedBy: t.opts.Instance, until: by.Until,
		roles: append([]string{}, by.Roles...), parties: append([]string{}, by.Parties()...)}
	fields := append([]any{&k.ID}, b.fields()...)
	mac, err := w.seal("vote", ballotNames, fields)
	if err != nil {
		return nil, err
	}
	err = w.one("INSERT INTO approval_votes (ticket, "+ballotColumns+", mac) VALUES (?"+strings.Repeat(", ?", len(fields))+")", append(fields, mac)...)
	if err != nil {
		return nil, err
	}
	if !v.Approve {
		return nil, w.move(k, change{to: StateDenied, who: v.Approver.Subject, reason: v.Reason})
	}
	k.countApprovals(append(k.approvers, v.Approver.Roles))
	votes, _, err := t.standing(w, k)
	if err != nil {
		return nil, err
	}
	if !k.suffice(votes) {
		return nil, w.note(k, StateProposed, v.Approver.Subject, v.Reason)
	}
	return nil, w.move(k, change{to: StateApproved, who: v.Approver.Subject, reason: v.Reason})
}

// standing returns the approvals of k whose approvers may still decide, with their
// current roles and persons as far as these are known, one for each party and none of the
// requester's, and the first approver who no longer may, "" when all may.
func (t *Tickets) standing(w *writer, k *Ticket) (counted []Ballot, gone string, err error) {
	votes, doubt, err := t.ballots(w.ctx, w.tx, k.ID)
	if doubt != "" {
		err = fmt.Errorf("%w: %s", ErrDoubt, doubt)
	}
	if err != nil {
		return nil, "", err
	}
	for _, b := range votes {
		ok, err := t.stands(w.ctx, k, &b)
		switch {
		case err != nil:
			return nil, "", err
		case ok && !slices.ContainsFunc(counted, func(other Ballot) bool { return other.castBy(append(b.parties, b.Subject)) }):
			counted = append(counted, b)
		case gone == "":
			gone = b.Subject
		}
	}
	return counted, gone, nil
}

// suffice reports whether votes approve k.
func (k *Ticket) suffice(votes []Ballot) bool {
	var roles [][]string
	for _, b := range votes {
		roles = append(roles, b.roles)
	}
	return len(votes) >= k.Quorum && (len(k.Each) == 0 || maps.Equal(fillRoles(k.Each, roles), k.Each))
}

// stands reports whether the vote counts now (see Options.Standing), and sets b's
// roles and parties to the current ones.
func (t *Tickets) stands(ctx context.Context, k *Ticket, b *Ballot) (bool, error) {
	if t.opts.Standing == nil || !b.Approve {
		return b.Approve, nil
	}
	now, known := t.opts.Standing(b.Subject, k.Principal.Tenant)
	switch {
	case known:
		b.roles, b.parties = now.Roles, now.Parties()
		return k.MayDecide(now), nil
	case !b.until.IsZero():
		return true, nil
	case b.countedBy == t.opts.Instance:
		return false, nil
	}
	return t.instances.Alive(ctx, b.countedBy)
}

// Reconcile settles a call whose outcome was unknown: it was done, or it failed. The
// ticket never allows the call again; a new call is possible after the ticket's
// expiry. A refused finding changes nothing and returns the first of ErrNotFound,
// ErrSelfApproval, ErrNotApprover, ErrPersonRequired, ErrNotUnknown and ErrReasonRequired that applies.
// One person suffices, whatever the quorum.
func (t *Tickets) Reconcile(ctx context.Context, f Finding) (Ticket, error) {
	f.Reason = strings.TrimSpace(f.Reason)
	err := t.alter(ctx, f.ID, func(w *writer, k *Ticket) (refusal, err error) {
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
func (k *Ticket) checkFinding(f Finding) error {
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
	err := t.alter(ctx, id, func(w *writer, k *Ticket) (refusal, err error) {
		if !k.waits() {
			return fmt.Errorf("%w: it is %s", ErrNotLive, k.State), nil
		}
		return nil, w.move(k, change{to: StateSuperseded, who: who, reason: reason, note: reason})
	})
	if err != nil {
		return fmt.Errorf("superseding ticket %q: %w", id, err)
	}
	return nil
}
