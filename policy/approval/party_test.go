package approval_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func owned(subject, owner string, roles ...string) policy.Principal {
	p := person(subject, roles...)
	p.Person = owner
	return p
}

// TestOnePersonIsOneParty: whoever stands behind a call does not decide on it, and has
// one vote, whatever credentials it shows.
func TestOnePersonIsOneParty(t *testing.T) {
	delegated := person("https://idp|ann", "approver")
	delegated.Actors = []string{"agent"}
	principal := person("ann", "approver")
	principal.MayAct = []string{"agent"}
	for name, tt := range map[string]struct {
		requester, voter policy.Principal
		want             error
	}{
		"a person through a second issuer":   {owned("https://a|1", "ann"), owned("https://b|7", "ann", "approver"), approval.ErrSelfApproval},
		"the owner of an agent":              {owned("agent", "ann"), owned("ann-laptop", "ann", "approver"), approval.ErrSelfApproval},
		"the owner, by subject":              {owned("agent", "ann"), ann, approval.ErrSelfApproval},
		"an agent of the requester":          {ann, owned("agent", "ann", "approver"), approval.ErrSelfApproval},
		"a person for whom the agent acts":   {person("agent"), delegated, approval.ErrSelfApproval},
		"the agent that acts for the person": {delegated, person("agent", "approver"), approval.ErrSelfApproval},
		"a person for whom the agent may":    {person("agent"), principal, approval.ErrSelfApproval},
		"two persons":                        {owned("agent", "ann"), owned("bob-laptop", "bob", "approver"), nil},
		"two subjects without persons":       {person("https://a|ann"), person("https://b|ann", "approver"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			held := transfer(hundred)
			held.Principal = tt.requester
			k := w.claim(held, approval.Pending)
			waiting, err := w.List(t.Context(), approval.Filter{Awaiting: tt.voter})
			if err != nil || (len(waiting) == 1) != (tt.want == nil) {
				t.Errorf("%d tickets wait for the voter, %v", len(waiting), err)
			}
			if !k.VisibleTo(tt.voter) {
				t.Error("the voter may not read the ticket")
			}
			if _, err := w.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: tt.voter, Approve: true}); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// TestRequirePerson: where two issuers give somebody two subjects, and one of them names no
// person, nothing else keeps him from approving the call of his own agent.
func TestRequirePerson(t *testing.T) {
	for name, tt := range map[string]struct {
		requester, voter policy.Principal
		want             error
	}{
		"two persons":             {owned("agent", "ann"), owned("bob-laptop", "bob", "approver"), nil},
		"no person in the middle": {owned("https://a|1", "ann"), person("https://b|7", "approver"), approval.ErrPersonRequired},
		"the requester has none":  {person("agent"), owned("bob-laptop", "bob", "approver"), approval.ErrPersonRequired},
		"nobody has one":          {person("agent"), person("bob-laptop", "approver"), approval.ErrPersonRequired},
		"one person":              {owned("https://a|1", "ann"), owned("https://b|7", "ann", "approver"), approval.ErrSelfApproval},
		"another role":            {person("agent"), person("bob-laptop", "researcher"), approval.ErrNotApprover},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			strict := w.open(approval.Options{RequirePerson: true, Instance: "strict"})
			held := transfer(hundred)
			held.Principal = tt.requester
			k := w.claim(held, approval.Pending)
			waiting, err := strict.List(t.Context(), approval.Filter{Awaiting: tt.voter})
			if err != nil || (len(waiting) == 1) != (tt.want == nil) {
				t.Errorf("%d tickets wait for the voter, %v", len(waiting), err)
			}
			for _, approve := range []bool{false, true} {
				if _, err := strict.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: tt.voter, Approve: approve, Reason: "r"}); tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if tt.want == nil {
					break // the denial has ended the ticket
				}
			}
		})
	}
}

// A vote that was counted before persons were required does not grant the call any more.
func TestRequirePersonLater(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	strict := w.open(approval.Options{RequirePerson: true, Instance: "strict", Standing: func(subject, _ string) (policy.Principal, bool) { return person(subject, "approver"), true }})
	claim, err := strict.Claim(t.Context(), transfer(hundred))
	if err != nil || claim.Outcome == approval.Granted {
		t.Errorf("got %v, %v", claim.Outcome, err)
	}
}

// TestOnePersonHasOneVote: also when the configuration says only after the votes that two
// voters are one.
func TestOnePersonHasOneVote(t *testing.T) {
	w := newWorld(t)
	k := w.claim(pair(), approval.Pending)
	w.approve(k.ID, owned("https://a|1", "ann", "approver"))
	for _, again := range []policy.Principal{owned("https://b|7", "ann", "approver"), ann, owned("ann-agent", "ann", "approver")} {
		if _, err := w.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: again, Approve: true}); !errors.Is(err, approval.ErrAlreadyVoted) {
			t.Errorf("%s: got %v, want ErrAlreadyVoted", again.Subject, err)
		}
		if waiting, err := w.List(t.Context(), approval.Filter{Awaiting: again}); err != nil || len(waiting) != 0 {
			t.Errorf("%d tickets wait for %s, %v", len(waiting), again.Subject, err)
		}
	}
	w.approve(k.ID, bob)
	w.claim(pair(), approval.Granted)

	w = newWorld(t)
	persons := map[string]string{}
	w.Tickets = w.open(approval.Options{Standing: func(subject, _ string) (policy.Principal, bool) {
		return owned(subject, persons[subject], "approver"), true
	}})
	k = w.claim(pair(), approval.Pending)
	w.approve(k.ID, ann)
	w.approve(k.ID, bob)
	persons["bob"] = "ann"
	if got := w.claim(pair(), approval.Pending); got.ID == k.ID {
		t.Error("the votes of one person still approve the call")
	}
}

// TestOneVoteFillsOneRole: with a quorum by role, somebody who holds two roles counts for
// one of them.
func TestOneVoteFillsOneRole(t *testing.T) {
	for name, tt := range map[string]struct {
		each   map[string]int
		voters [][]string // roles of each
		given  map[string]int
		want   approval.ClaimOutcome
	}{
		"one person with both roles":      {map[string]int{"finance": 1, "security": 1}, [][]string{{"finance", "security"}}, map[string]int{"finance": 1}, approval.Pending},
		"one of each":                     {map[string]int{"finance": 1, "security": 1}, [][]string{{"finance"}, {"security"}}, map[string]int{"finance": 1, "security": 1}, approval.Granted},
		"the first gives way":             {map[string]int{"finance": 1, "security": 1}, [][]string{{"finance", "security"}, {"finance"}}, map[string]int{"finance": 1, "security": 1}, approval.Granted},
		"two of one role":                 {map[string]int{"finance": 1, "security": 1}, [][]string{{"finance"}, {"finance"}}, map[string]int{"finance": 1}, approval.Pending},
		"three people for three roles":    {map[string]int{"a": 1, "b": 1, "c": 1}, [][]string{{"a", "b"}, {"c"}, {"c"}}, map[string]int{"a": 1, "c": 1}, approval.Pending},
		"a chain of three that gives way": {map[string]int{"a": 1, "b": 1, "c": 1}, [][]string{{"a", "b"}, {"a", "c"}, {"a"}}, map[string]int{"a": 1, "b": 1, "c": 1}, approval.Granted},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			held := transfer(hundred)
			held.Quorum, held.Each, held.Roles = 0, tt.each, nil
			for role, n := range tt.each {
				held.Quorum += n
				held.Roles = append(held.Roles, role)
			}
			k := w.claim(held, approval.Pending)
			for i, roles := range tt.voters {
				w.approve(k.ID, person(string(rune('p'+i)), roles...))
			}
			if diff := cmp.Diff(tt.given, w.get(k.ID).Given); diff != "" {
				t.Errorf("given (-want +got):\n%s", diff)
			}
			w.claim(held, tt.want)
		})
	}
}
