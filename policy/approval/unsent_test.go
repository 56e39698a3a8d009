package approval_test

import (
	"context"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

// A process that was killed between a record of the trail and the change of the store leaves a
// ticket that is older than the trail. Where the trail shows that nothing was sent, the ticket
// stays as the store has it; otherwise it is unknown. A store on a server is never
// proved by one trail.
func TestTicketsBehindTheTrail(t *testing.T) {
	for name, c := range map[string]struct {
		approved bool
		word     approval.State
		unsent   bool
		want     approval.ClaimOutcome
	}{
		"a grant that was not spent":    {true, approval.StateDispatching, true, approval.Granted},
		"a grant that may be spent":     {true, approval.StateDispatching, false, approval.Unknown},
		"a run that ended":              {true, approval.StateDone, true, approval.Unknown},
		"a vote that was not stored":    {false, approval.StateApproved, true, approval.Pending},
		"a vote and perhaps a run":      {false, approval.StateApproved, false, approval.Unknown},
		"a denial that was not stored":  {false, approval.StateDenied, true, approval.Unknown},
		"a grant of what nobody stored": {false, approval.StateDispatching, true, approval.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(transfer(hundred), approval.Pending)
			if c.approved {
				w.approve(k.ID, ann)
			}
			last := w.get(k.ID).History
			word := approval.Word{Seq: last[len(last)-1].Seq + 1, State: c.word, Unsent: c.unsent}
			tickets := w.open(approval.Options{LastWord: func(context.Context, string, time.Time) (approval.Word, error) { return word, nil }})
			want := c.want
			if postgres.Used() {
				want = approval.Unknown
			}
			got, err := tickets.Claim(t.Context(), transfer(hundred))
			if err == nil && got.Outcome == approval.Pending { // who decides is asked again
				_, err = tickets.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: ann, Approve: true})
			}
			if err != nil || got.Outcome != want || !got.Ticket.Expires.Equal(k.Expires) {
				t.Errorf("claimed: %q until %v, %v; want %q until %v", got.Outcome, got.Ticket.Expires, err, want, k.Expires)
			}
		})
	}
}

// A process that was killed after the grant: the call runs with the same grant where the trail
// shows that it was not sent.
func TestKillBeforeTheCallIsSent(t *testing.T) {
	for unsent, want := range map[bool]approval.ClaimOutcome{true: approval.Granted, false: approval.Unknown} {
		w := newWorld(t)
		k := w.claim(transfer(hundred), approval.Pending)
		w.approve(k.ID, ann)
		p := start(t, "claim", w.path)
		if p.first != string(approval.Granted) {
			t.Fatalf("the other process got %q", p.first)
		}
		history := w.get(k.ID).History
		p.kill(t)
		word := approval.Word{Seq: history[len(history)-1].Seq, State: approval.StateDispatching, Unsent: unsent}
		tickets := w.open(approval.Options{LastWord: func(context.Context, string, time.Time) (approval.Word, error) { return word, nil }})
		if postgres.Used() {
			want = approval.Unknown
		}
		got, err := tickets.Claim(t.Context(), transfer(hundred))
		if err != nil || got.Outcome != want || !got.Ticket.Expires.Equal(k.Expires) {
			t.Errorf("unsent: %v: claimed: %q, %v; want %q", unsent, got.Outcome, err, want)
		}
	}
}
