package approval_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/policy/approval"
)

// together runs f n times at once and waits for all of them.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	all.Wait()
}

func TestOneGrantForManyCallers(t *testing.T) {
	w := newWorld(t)
	handles := []*approval.Tickets{w.Tickets, w.open(approval.Options{})}
	for round := range 5 {
		held := transfer(fmt.Sprintf(`{"round":%d}`, round))
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		var mu sync.Mutex
		got := map[approval.ClaimOutcome]int{}
		together(64, func(i int) {
			c, err := handles[i%2].Claim(t.Context(), held)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[c.Outcome]++
		})
		if got[approval.Granted] != 1 || got[approval.InFlight] != 63 {
			t.Fatalf("round %d: outcomes %v", round, got)
		}
	}
}

func TestOneTicketForManyFirstCallers(t *testing.T) {
	w := newWorld(t)
	handles := []*approval.Tickets{w.Tickets, w.open(approval.Options{})}
	var mu sync.Mutex
	ids := map[string]int{}
	together(64, func(i int) {
		c, err := handles[i%2].Claim(t.Context(), transfer(hundred))
		if err != nil || c.Outcome != approval.Pending {
			t.Errorf("outcome %q, %v", c.Outcome, err)
		}
		mu.Lock()
		defer mu.Unlock()
		ids[c.Ticket.ID]++
	})
	if len(ids) != 1 {
		t.Fatalf("%d tickets for one call", len(ids))
	}
}

// Of an approval and a denial at the same moment one counts, and the loser is
// told so.
func TestApproveAgainstDeny(t *testing.T) {
	w := newWorld(t)
	handles := []*approval.Tickets{w.Tickets, w.open(approval.Options{})}
	for round := range 20 {
		k := w.claim(transfer(fmt.Sprintf(`{"round":%d}`, round)), approval.Pending)
		votes := []approval.Vote{{ID: k.ID, Approver: ann, Approve: true}, {ID: k.ID, Approver: bob, Reason: "no"}}
		var errs [2]error
		together(2, func(i int) { _, errs[i] = handles[i].Decide(t.Context(), votes[i]) })
		want := approval.StateApproved
		if errs[0] != nil {
			want = approval.StateDenied
		}
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), approval.ErrNotPending) {
			t.Fatalf("round %d: approve %v, deny %v", round, errs[0], errs[1])
		}
		w.wantState(k.ID, want)
	}
}

func TestGrantAgainstExpiry(t *testing.T) {
	w := newWorld(t)
	second := w.open(approval.Options{})
	for round := range 10 {
		held := transfer(fmt.Sprintf(`{"round":%d}`, round))
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		var outcomes [8]approval.ClaimOutcome
		together(9, func(i int) {
			if i == 8 {
				w.pass(held.Approval.TTL)
				return
			}
			c, err := []*approval.Tickets{w.Tickets, second}[i%2].Claim(t.Context(), held)
			if err != nil {
				t.Error(err)
			}
			outcomes[i] = c.Outcome
		})
		grants := 0
		for _, o := range outcomes {
			if o == approval.Granted {
				grants++
			}
		}
		state := w.get(k.ID).State
		if grants > 1 || (grants == 1) != (state == approval.StateDispatching) {
			t.Fatalf("round %d: %v, ticket %s", round, outcomes, state)
		}
	}
}
