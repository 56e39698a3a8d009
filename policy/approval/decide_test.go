package approval_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestRefusedVotes(t *testing.T) {
	yes := func(p policy.Principal) approval.Vote { return approval.Vote{Approver: p, Approve: true} }
	acme := ann
	acme.Tenant = "acme"
	for name, tt := range map[string]struct {
		before func(*world, string)
		vote   approval.Vote
		want   error
	}{
		"no such ticket":            {vote: approval.Vote{ID: "apr_none", Approver: ann, Approve: true}, want: approval.ErrNotFound},
		"one's own call":            {vote: yes(person("agent", "approver")), want: approval.ErrSelfApproval},
		"one's own call, denied":    {vote: approval.Vote{Approver: person("agent", "approver"), Reason: "no"}, want: approval.ErrSelfApproval},
		"without the role":          {vote: yes(person("eve", "treasurer")), want: approval.ErrNotApprover},
		"without any role":          {vote: yes(person("eve")), want: approval.ErrNotApprover},
		"nobody":                    {vote: yes(policy.Principal{Roles: []string{"approver"}}), want: approval.ErrNotApprover},
		"of another tenant":         {vote: yes(acme), want: approval.ErrNotApprover},
		"a denial without a reason": {vote: approval.Vote{Approver: ann, Reason: " \n"}, want: approval.ErrReasonRequired},
		"about other arguments":     {vote: approval.Vote{Approver: ann, Approve: true, Digest: digest(other)}, want: approval.ErrStaleDigest},
		"after the approval":        {before: func(w *world, id string) { w.approve(id, bob) }, vote: yes(ann), want: approval.ErrNotPending},
		"after a denial":            {before: func(w *world, id string) { w.deny(id, bob) }, vote: yes(ann), want: approval.ErrNotPending},
		"denial after the approval": {before: func(w *world, id string) { w.approve(id, bob) }, vote: approval.Vote{Approver: ann, Reason: "no"}, want: approval.ErrNotPending},
		"after the expiry":          {before: func(w *world, _ string) { w.pass(10 * time.Minute) }, vote: yes(ann), want: approval.ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(transfer(hundred), approval.Pending)
			if tt.before != nil {
				tt.before(w, k.ID)
			}
			before := w.get(k.ID)
			if tt.vote.ID == "" {
				tt.vote.ID = k.ID
			}
			if _, err := w.Decide(t.Context(), tt.vote); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			after := w.get(k.ID)
			if after.State != before.State || len(after.Votes) != len(before.Votes) {
				t.Errorf("the refused vote made the ticket %s with %d votes", after.State, len(after.Votes))
			}
		})
	}
}

func TestQuorum(t *testing.T) {
	held := transfer(hundred)
	held.Approval.Quorum = 2
	t.Run("two people", func(t *testing.T) {
		w := newWorld(t)
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		if _, err := w.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: ann, Approve: true}); !errors.Is(err, approval.ErrAlreadyVoted) {
			t.Errorf("a second vote of one person: %v", err)
		}
		w.wantState(k.ID, approval.StateProposed)
		w.claim(held, approval.Pending)
		w.approve(k.ID, bob)
		w.claim(held, approval.Granted)
	})
	t.Run("one denial ends it", func(t *testing.T) {
		w := newWorld(t)
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		if got := w.deny(k.ID, bob); got.State != approval.StateDenied || got.DecidedBy != "bob" || got.DecisionReason != "not today" {
			t.Errorf("%s by %q because %q", got.State, got.DecidedBy, got.DecisionReason)
		}
		w.claim(held, approval.Denied)
	})
}

// TestQuorumByRole holds that a ticket which needs approvals of certain roles is
// approved by as many holders of each, and that one person is one approval.
func TestQuorumByRole(t *testing.T) {
	held := transfer(hundred)
	held.Approval = policy.Approval{Roles: []string{"finance", "security"}, Quorum: 3, Each: map[string]int{"finance": 2, "security": 1}, TTL: held.Approval.TTL}
	fred, frida, both := person("fred", "finance"), person("frida", "finance"), person("bo", "finance", "security")
	sam, stan := person("sam", "security"), person("stan", "security")
	for name, c := range map[string]struct {
		votes []policy.Principal
		given map[string]int
		want  approval.ClaimOutcome
	}{
		"nobody":                      {nil, nil, approval.Pending},
		"as many of each":             {[]policy.Principal{fred, sam, frida}, map[string]int{"finance": 2, "security": 1}, approval.Granted},
		"enough people, one too few":  {[]policy.Principal{fred, sam, stan}, map[string]int{"finance": 1, "security": 1}, approval.Pending},
		"who has both counts for one": {[]policy.Principal{fred, both, sam}, map[string]int{"finance": 2, "security": 1}, approval.Granted},
		"two people":                  {[]policy.Principal{fred, both}, map[string]int{"finance": 2}, approval.Pending},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(held, approval.Pending)
			for _, p := range c.votes {
				w.approve(k.ID, p)
			}
			w.claim(held, c.want)
			if got := w.get(k.ID); got.Each["finance"] != 2 || len(got.Each) != 2 {
				t.Errorf("the ticket needs %v", got.Each)
			} else if got.Approvals != len(c.votes) || !maps.Equal(got.Given, c.given) {
				t.Errorf("the ticket has %d approvals, %v", got.Approvals, got.Given)
			}
		})
	}
	t.Run("another quorum is another ticket", func(t *testing.T) {
		w := newWorld(t)
		w.claim(held, approval.Pending)
		other := held
		other.Approval.Each = map[string]int{"finance": 1, "security": 2}
		if k := w.claim(other, approval.Pending); k.Each["security"] != 2 {
			t.Errorf("got the ticket that needs %v", k.Each)
		}
	})
	t.Run("a role that was lost", func(t *testing.T) {
		o := roster{"fred": {"finance"}, "frida": {"finance"}, "bo": {"finance", "security"}, "sam": {"security"}}
		w := newWorld(t)
		w.Tickets = w.open(approval.Options{Standing: o.standing})
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, both)
		w.approve(k.ID, fred)
		o["bo"] = []string{"finance"}
		if got := w.approve(k.ID, frida); got.State != approval.StateProposed {
			t.Errorf("the last vote made it %s", got.State)
		}
		w.approve(k.ID, sam)
		w.claim(held, approval.Granted)
	})
}
