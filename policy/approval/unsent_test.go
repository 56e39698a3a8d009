package approval_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

// A process that was killed between a record of the trail and the change of the store leaves a
// ticket that is older than the trail. Where the trail shows that nothing was sent, the ticket
// stays as the store has it; otherwise it is unknown. With a server, one trail does
// not show that a change was never committed.
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
		"a connection that was missed":  {true, approval.StateNeedsConnection, true, approval.Granted},
		"a connection, perhaps a run":   {true, approval.StateNeedsConnection, false, approval.Unknown},
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
// shows that it was not sent. With a server, only the trail and the locks of the replica that
// spent the grant show that, not a lease that ran out, and not a return of the grant that is not
// in the store.
func TestKillBeforeTheCallIsSent(t *testing.T) {
	for name, c := range map[string]struct {
		after        int64 // changes in the trail after the grant
		state        approval.State
		unsent       bool
		dir          string // of the locks; "" = that of the process
		file, server approval.ClaimOutcome
	}{
		"nothing was sent":                     {0, approval.StateDispatching, true, "", approval.Granted, approval.Granted},
		"perhaps sent":                         {0, approval.StateDispatching, false, "", approval.Unknown, approval.Unknown},
		"a return that was not stored":         {1, approval.StateApproved, true, "", approval.Granted, approval.Unknown},
		"an outcome that was not stored":       {1, approval.StateDone, true, "", approval.Unknown, approval.Unknown},
		"the trail of another replica":         {-1, approval.StateDispatching, true, "", approval.Unknown, approval.Unknown},
		"nothing shows that the process ended": {0, approval.StateDispatching, true, "others", approval.Granted, approval.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(transfer(hundred), approval.Pending)
			w.approve(k.ID, ann)
			p := start(t, "claim", w.path)
			if p.first != string(approval.Granted) {
				t.Fatalf("the other process got %q", p.first)
			}
			history := w.get(k.ID).History
			p.kill(t)
			dir := ""
			if c.dir != "" {
				dir = filepath.Join(filepath.Dir(w.path), c.dir)
			}
			word := approval.Word{Seq: history[len(history)-1].Seq + c.after, State: c.state, Unsent: c.unsent}
			tickets := w.open(approval.Options{Dir: dir, LastWord: func(context.Context, string, time.Time) (approval.Word, error) { return word, nil }})
			want := c.file
			if postgres.Used() {
				want = c.server
			}
			got, err := tickets.Claim(t.Context(), transfer(hundred))
			if err != nil || got.Outcome != want || !got.Ticket.Expires.Equal(k.Expires) {
				t.Errorf("claimed: %q, %v; want %q", got.Outcome, err, want)
			}
		})
	}
}
