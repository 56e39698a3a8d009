package approval_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// model is what tickets should do, written again from the rules: one record
// per call, and time that only goes forward.
type model struct {
	now   time.Duration // highest time that was ever seen
	wall  time.Duration
	calls map[int]*call
}

type call struct {
	id       string
	state    approval.State
	deadline time.Duration
	told     bool
	runner   int
	yes      map[string]bool
}

const life = 10 * time.Minute

func (m *model) expire() {
	for _, c := range m.calls {
		if (c.state == approval.StateProposed || c.state == approval.StateApproved) && c.deadline <= m.now {
			c.state = approval.StateExpired
		}
	}
}

// claim gives the outcome that is due, and moves on.
func (m *model) claim(n, runner int) approval.ClaimOutcome {
	m.expire()
	c := m.calls[n]
	fresh := func() approval.ClaimOutcome {
		m.calls[n] = &call{state: approval.StateProposed, deadline: m.now + life, yes: map[string]bool{}}
		return approval.Pending
	}
	if c == nil {
		return fresh()
	}
	switch c.state {
	case approval.StateProposed:
		return approval.Pending
	case approval.StateApproved:
		c.state, c.runner = approval.StateDispatching, runner
		return approval.Granted
	case approval.StateDispatching:
		return approval.InFlight
	case approval.StateExpired:
		if !c.told {
			c.told = true
			return approval.Expired
		}
		return fresh()
	}
	if c.state == approval.StateSuperseded || c.deadline <= m.now {
		return fresh()
	}
	return map[approval.State]approval.ClaimOutcome{
		approval.StateDone: approval.Replay, approval.StateFailed: approval.Failed,
		approval.StateUnknown: approval.Unknown, approval.StateDenied: approval.Denied,
	}[c.state]
}

// supersede gives the refusal that is due, nil when the ticket ends.
func (m *model) supersede(c *call) error {
	m.expire()
	if c.state != approval.StateProposed && c.state != approval.StateApproved {
		return approval.ErrNotLive
	}
	c.state = approval.StateSuperseded
	return nil
}

// reconcile gives the refusal that is due, nil when the doubt ends.
func (m *model) reconcile(c *call, took bool) error {
	m.expire()
	switch {
	case c.state != approval.StateUnknown:
		return approval.ErrNotUnknown
	case took:
		c.state = approval.StateDone
	default:
		c.state = approval.StateFailed
	}
	return nil
}

// decide gives the refusal that is due, nil when the vote counts.
func (m *model) decide(c *call, quorum int, v approval.Vote) error {
	m.expire()
	switch {
	case c.state == approval.StateExpired:
		return approval.ErrExpired
	case c.state != approval.StateProposed:
		return approval.ErrNotPending
	case c.yes[v.Approver.Subject]:
		return approval.ErrAlreadyVoted
	case !v.Approve:
		c.state = approval.StateDenied
		return nil
	}
	if c.yes[v.Approver.Subject] = true; len(c.yes) >= quorum {
		c.state = approval.StateApproved
	}
	return nil
}

func TestRandomHistories(t *testing.T) {
	parts.Long(t, "plays random histories")
	rapid.Check(t, history)
}

func history(t *rapid.T) {
	m := &model{calls: map[int]*call{}}
	var wall atomic.Int64 // m.wall, for those who compare the store with the trail beside the test
	clock := func() time.Time { return noon.Add(time.Duration(wall.Load())) }
	told := &listener{}
	tickets := handles(t, clock, told)
	held := func(n int) approval.Held {
		h := transfer(fmt.Sprintf(`{"n":%d}`, n))
		h.Approval.Quorum, h.Approval.TTL = 1+n%2, life
		return h
	}
	number := rapid.IntRange(0, 2)
	t.Repeat(map[string]func(*rapid.T){
		"claim": func(t *rapid.T) {
			n, who := number.Draw(t, "call"), rapid.IntRange(0, 1).Draw(t, "instance")
			want := m.claim(n, who)
			got, err := tickets[who].Claim(t.Context(), held(n))
			if err != nil || got.Outcome != want {
				t.Fatalf("outcome %q, %v; want %q", got.Outcome, err, want)
			}
			m.calls[n].id = got.Ticket.ID
		},
		"vote": func(t *rapid.T) {
			n, who := number.Draw(t, "call"), rapid.IntRange(0, 1).Draw(t, "instance")
			c := m.calls[n]
			if c == nil {
				t.Skip("no ticket")
			}
			v := approval.Vote{ID: c.id, Approver: rapid.SampledFrom([]policy.Principal{ann, bob}).Draw(t, "approver"),
				Approve: rapid.IntRange(0, 3).Draw(t, "yes") > 0, Reason: "because"}
			want := m.decide(c, held(n).Approval.Quorum, v)
			if _, err := tickets[who].Decide(t.Context(), v); !errors.Is(err, want) || want == nil && err != nil {
				t.Fatalf("error %v, want %v", err, want)
			}
		},
		"end": func(t *rapid.T) {
			n, who := number.Draw(t, "call"), rapid.IntRange(0, 1).Draw(t, "instance")
			c := m.calls[n]
			if c == nil {
				t.Skip("no ticket")
			}
			to := rapid.SampledFrom([]approval.State{approval.StateApproved, approval.StateDone, approval.StateFailed, approval.StateUnknown}).Draw(t, "to")
			m.expire()
			err := end(t, tickets[who], c.id, to)
			if runs := c.state == approval.StateDispatching && c.runner == who; runs != (err == nil) {
				t.Fatalf("ending as %s: %v", to, err)
			}
			if err == nil {
				c.state = to
			}
		},
		"supersede": func(t *rapid.T) {
			c := m.calls[number.Draw(t, "call")]
			if c == nil {
				t.Skip("no ticket")
			}
			want := m.supersede(c)
			if err := tickets[rapid.IntRange(0, 1).Draw(t, "instance")].Supersede(t.Context(), c.id, "", "x"); !errors.Is(err, want) || want == nil && err != nil {
				t.Fatalf("error %v, want %v", err, want)
			}
		},
		"reconcile": func(t *rapid.T) {
			c := m.calls[number.Draw(t, "call")]
			if c == nil {
				t.Skip("no ticket")
			}
			f := approval.Finding{ID: c.id, Approver: ann, TookEffect: rapid.Bool().Draw(t, "took effect"), Reason: "x"}
			want := m.reconcile(c, f.TookEffect)
			if _, err := tickets[rapid.IntRange(0, 1).Draw(t, "instance")].Reconcile(t.Context(), f); !errors.Is(err, want) || want == nil && err != nil {
				t.Fatalf("error %v, want %v", err, want)
			}
		},
		"time": func(t *rapid.T) {
			d := time.Duration(rapid.IntRange(-8, 8).Draw(t, "minutes")) * time.Minute
			m.wall += d
			wall.Store(int64(m.wall))
			m.now += max(0, d)
			for _, k := range tickets { // each process reads its clock now
				if _, err := k.Held(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		},
		"": func(t *rapid.T) {
			m.expire()
			for n, c := range m.calls {
				got, err := tickets[0].Get(t.Context(), c.id)
				if err != nil || got.State != c.state {
					t.Fatalf("ticket of call %d is %q, %v; want %q", n, got.State, err, c.state)
				}
				if diff := cmp.Diff(got.History, told.of(c.id)); diff != "" {
					t.Fatalf("call %d was told otherwise (-history +told):\n%s", n, diff)
				}
			}
		},
	})
}

func end(t *rapid.T, tickets *approval.Tickets, id string, to approval.State) error {
	if to == approval.StateApproved {
		return tickets.Release(t.Context(), id)
	}
	return tickets.Finish(t.Context(), id, to, nil, "")
}

// handles gives two instances on one new store, whose changes are told.
func handles(t *rapid.T, clock func() time.Time, told *listener) (tickets [2]*approval.Tickets) {
	dir, err := os.MkdirTemp("", "approval")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for i := range tickets {
		db, err := postgres.State(t.Context(), filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		ring, err := keys.Open(filepath.Join(dir, "keys"))
		if err != nil {
			t.Fatal(err)
		}
		if tickets[i], err = approval.New(t.Context(), db, approval.Options{Keys: ring, Now: clock, Changed: told.changed}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(tickets[i].Close(), db.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	return tickets
}
