package approval_test

import (
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// roster has the configured people with their roles.
type roster map[string][]string

func (o roster) standing(subject, tenant string) (policy.Principal, bool) {
	roles, known := o[subject]
	return policy.Principal{Subject: subject, Roles: roles}, known && tenant == ""
}

// An approval counts when the grant is spent only if whoever gave it could still
// give it.
func TestApproversWhoLostTheRole(t *testing.T) {
	carl := person("carl", "approver")
	carl.Until = noon.Add(time.Minute) // an issuer vouched for carl, for a minute
	for name, tt := range map[string]struct {
		quorum int
		change func(roster)
		want   approval.ClaimOutcome
		gone   string
	}{
		"nothing changed":                 {3, func(roster) {}, approval.Granted, ""},
		"another of the ticket's roles":   {3, func(o roster) { o["ann"] = []string{"deputy"} }, approval.Granted, ""},
		"one has the role no longer":      {3, func(o roster) { o["ann"] = []string{"observer"} }, approval.Pending, "ann"},
		"one has no role any more":        {3, func(o roster) { o["bob"] = nil }, approval.Pending, "bob"},
		"one is not configured any more":  {3, func(o roster) { delete(o, "bob") }, approval.Pending, "bob"},
		"the others do not suffice":       {2, func(o roster) { o["ann"] = nil }, approval.Pending, "ann"},
		"somebody unknown with a role":    {3, func(o roster) { o["eve"] = []string{"approver"} }, approval.Granted, ""},
		"carl is configured, without one": {3, func(o roster) { o["carl"] = nil }, approval.Pending, "carl"},
	} {
		t.Run(name, func(t *testing.T) {
			o := roster{"ann": {"approver"}, "bob": {"approver", "observer"}}
			w := newWorld(t)
			w.Tickets = w.open(approval.Options{Standing: o.standing})
			held := transfer(hundred)
			held.Approval.Quorum, held.Approval.Roles = tt.quorum, []string{"approver", "deputy"}
			k := w.claim(held, approval.Pending)
			for _, p := range []policy.Principal{ann, bob, carl}[:tt.quorum] {
				w.approve(k.ID, p)
				w.pass(time.Second)
			}
			w.pass(2 * time.Minute)
			tt.change(o)
			got := w.claim(held, tt.want)
			if tt.want == approval.Granted {
				return
			}
			old := w.get(k.ID)
			if old.State != approval.StateSuperseded || !strings.HasPrefix(old.Note, tt.gone+" no longer has a role") {
				t.Errorf("the ticket is %s: %s", old.State, old.Note)
			}
			if got.ID == k.ID || got.Approvals != 0 {
				t.Errorf("the call got ticket %s with %d approvals", got.ID, got.Approvals)
			}
		})
	}
}

// Nor does it count towards the quorum when the last vote comes in.
func TestAVoteOfSomebodyWhoLostTheRole(t *testing.T) {
	o := roster{"ann": {"approver"}, "bob": {"approver"}, "dora": {"approver"}}
	w := newWorld(t)
	w.Tickets = w.open(approval.Options{Standing: o.standing})
	k := w.claim(pair(), approval.Pending)
	w.approve(k.ID, ann)
	o["ann"] = nil
	if got := w.approve(k.ID, bob); got.State != approval.StateProposed {
		t.Errorf("bob's vote made it %s", got.State)
	}
	w.approve(k.ID, person("dora", "approver"))
	w.claim(pair(), approval.Granted)
}

// Another process may know people whom this one does not: as long as it lives,
// what it counted counts.
func TestVotesThatAnotherProcessCounted(t *testing.T) {
	theirs, ours := roster{"ann": {"approver"}}, roster{}
	for name, want := range map[string]approval.ClaimOutcome{"lives": approval.Granted, "is dead": approval.Pending} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Tickets = w.open(approval.Options{Standing: ours.standing})
			other, err := openTickets(t, w.path, approval.Options{Now: w.clock, Standing: theirs.standing})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			k := w.claim(transfer(hundred), approval.Pending)
			if _, err := other.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: ann, Approve: true}); err != nil {
				t.Fatal(err)
			}
			if want == approval.Pending {
				if err := other.Close(); err != nil {
					t.Fatal(err)
				}
			}
			w.claim(transfer(hundred), want)
		})
	}
}
