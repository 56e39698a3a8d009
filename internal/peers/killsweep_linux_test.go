package peers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// sweep stops toolgate before every step of one kind of life that a held call
// can have. All of them are on one state: each start finds what the kill before
// it left.
type sweep struct {
	rec      *recorder.Recorder
	dir      string
	scenario scenario
	left     map[string]int // :: state that a kill left ⇒ how often
}

// life is what is done with one call: begin before the steps are counted, go on
// while they are. A request that fails ends it: toolgate is gone.
type scenario struct {
	name, policy, hold string
	states             []string // that kills leave, each at least once; "" = no ticket
	runsAlone          bool     // what is approved runs without its agent
	prepare            func(s *sweep, t *testing.T, g *tracedGate, k *sweptCall)
	run                func(s *sweep, t *testing.T, g *tracedGate, k *sweptCall) error
}

// killed is one call, and what had been acknowledged of it when toolgate died.
type sweptCall struct {
	args   string
	door   *rawHTTP
	wait   <-chan answer // of a call that waits
	ticket string        // "" = nobody was told of one
	voted  bool
	done   bool   // its result was given
	state  string // of its ticket after the restart, "" = there is none
}

// ask makes the call, and takes note of what it came to.
func (k *sweptCall) record(t *testing.T, text []byte, err error) error {
	if err != nil {
		return err
	}
	result, failure := splitAnswer(text)
	if result == nil {
		return fmt.Errorf("the call was refused: %s", failure)
	}
	status, ticket := ticketOf(t, result)
	k.done = status == "" || status == "replayed"
	if ticket != "" {
		k.ticket = ticket
	}
	return nil
}

func (k *sweptCall) call(t *testing.T) error {
	a := <-startCall(t, k.door, "rec__pay", k.args)
	return k.record(t, a.text, a.err)
}

// vote is carol's yes.
func (k *sweptCall) vote(ctx context.Context, g *tracedGate) error {
	v, err := g.carol().vote(ctx, k.ticket, "approve", `{"reason":"swept"}`)
	if err == nil && v.status != http.StatusOK {
		return fmt.Errorf("the vote was refused: %+v", v)
	}
	k.voted = err == nil
	return err
}

// askApproveRun is the life of a call whose agent comes back: every step of it
// counts, from the making of the ticket on.
var askApproveRun = scenario{
	name: "asked, approved, called again", policy: holdAll, hold: "0s", states: []string{"", "proposed", "approved", "unknown", "done"},
	prepare: func(*sweep, *testing.T, *tracedGate, *sweptCall) {},
	run: func(_ *sweep, t *testing.T, g *tracedGate, k *sweptCall) error {
		if err := k.call(t); err != nil {
			return err
		}
		if err := k.vote(t.Context(), g); err != nil {
			return err
		}
		return k.call(t)
	},
}

// approvedWhileHeld is the life of a call that waits when it is approved.
var approvedWhileHeld = scenario{
	name: "approved while it waits", policy: holdAll, hold: "60s", states: []string{"proposed", "approved", "unknown", "done"},
	prepare: func(_ *sweep, t *testing.T, g *tracedGate, k *sweptCall) {
		k.wait = startCall(t, k.door, "rec__pay", k.args)
		k.ticket = g.carol().awaitTicket(t, k.args).ID
	},
	run: func(_ *sweep, t *testing.T, g *tracedGate, k *sweptCall) error {
		if err := k.vote(t.Context(), g); err != nil {
			return err
		}
		a := <-k.wait
		return k.record(t, a.text, a.err)
	},
}

// executedOnApproval is the life of a call whose agent does not come back before
// it has run.
var executedOnApproval = scenario{
	name: "executed on approval", hold: "0s", runsAlone: true, states: []string{"proposed", "unknown", "done"},
	policy: strings.Replace(holdAll, `["approver"]`, `["approver"], "execute_on_approve": true`, 1),
	prepare: func(_ *sweep, t *testing.T, _ *tracedGate, k *sweptCall) {
		if err := k.call(t); err != nil {
			t.Fatal(err)
		}
	},
	run: func(s *sweep, t *testing.T, g *tracedGate, k *sweptCall) error {
		if err := k.vote(t.Context(), g); err != nil {
			return err
		}
		if !g.Await(t, "the call runs by itself", func() bool { return callCounts(s.rec)[k.args] > 0 }) {
			return errors.New("toolgate is gone")
		}
		for !k.done {
			if err := k.call(t); err != nil {
				return err
			}
		}
		return nil
	},
}

// TestKillSweep: kill -9 before every write, sync and send of one approve-and-run.
// After the restart no call has run twice, what people and agents were told
// still holds, and everything can be brought to its end. The trail is whole.
func TestKillSweep(t *testing.T) {
	t.Parallel()
	requireTracing(t)
	for _, l := range []scenario{askApproveRun, approvedWhileHeld, executedOnApproval} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			s := &sweep{rec: recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}}), scenario: l, left: map[string]int{}}
			s.dir = configure(t, setup{servers: []server{httpOf("rec", s.rec, shared())}, policy: l.policy, hold: l.hold})
			s.run(t)
		})
	}
}

// run makes the sweep: first a life without a kill, for the number of its steps.
func (s *sweep) run(t *testing.T) {
	g := serveTraced(t, s.dir)
	k, whole := s.round(t, g, 0, 0)
	t.Logf("%d steps:\n%s", len(whole), strings.Join(whole, "\n"))
	stops, steps := stopsOf(whole), whole
	for _, step := range stops {
		g = serveTraced(t, s.dir)
		s.check(t, g, k, steps)
		k, steps = s.round(t, g, step, step)
	}
	g = serveTraced(t, s.dir)
	s.check(t, g, k, steps)
	tickets := g.carol().allTickets(t)
	g.stop(t)
	t.Logf("%d kills left tickets %v", len(stops), s.left)
	for _, state := range s.scenario.states {
		if s.left[state] == 0 {
			t.Errorf("no kill left a ticket %q", state)
		}
	}
	if r := verifyTrail(t, s.dir); len(r.Chains) != len(stops)+2 {
		t.Errorf("the trail has %d chains of %d starts", len(r.Chains), len(stops)+2)
	}
	s.checkTrail(t, tickets)
}

// stopsOf chooses the steps to stop at: all in the long form. In the short one
// of several writes to one file in a row, of which only the last can matter,
// the first, the last and every fifth. No two lives take exactly the same
// steps, so it goes a little beyond the last.
func stopsOf(steps []string) (stops []int) {
	for i, step := range steps {
		inside := i > 0 && i < len(steps)-1 && steps[i-1] == step && steps[i+1] == step
		if !inside || i%shortOrSoak(5, 1) == 0 {
			stops = append(stops, i+1)
		}
	}
	return append(stops, len(steps)+1, len(steps)+2)
}

// trailed holds the trail to what was run and to what became of the tickets: no
// call without a decision on record, no two decisions on one call, and no change
// of a ticket without its record. A record of a change that a kill has undone
// may be there too.
func (s *sweep) checkTrail(t *testing.T, tickets []ticketView) {
	t.Helper()
	out, code := runCommand(t, s.dir, "audit", "tail", "-n", "1000000")
	if code != 0 {
		t.Fatalf("audit tail: exit %d", code)
	}
	type step struct{ ticket, from, to, who string }
	decided, changed, ran := map[string]int{}, map[step]int{}, callCounts(s.rec)
	for line := range strings.Lines(out) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("reading %s: %v", line, err)
		}
		switch r.Kind {
		case audit.KindDecision:
			decided[string(r.Arguments)]++
		case audit.KindTicket:
			changed[step{r.Ticket, r.Change.From, r.Change.To, r.Change.Who}]++
		}
	}
	for _, k := range tickets {
		for _, c := range k.History {
			if changed[step{k.ID, c.From, c.To, c.Who}] == 0 {
				t.Errorf("%s went from %q to %q by %s without a record", k.ID, c.From, c.To, c.Who)
			}
		}
	}
	for args, n := range decided {
		if n > 1 {
			t.Errorf("%s was decided on %d times", args, n)
		}
	}
	for args := range ran {
		if decided[args] == 0 {
			t.Errorf("%s was run without a record", args)
		}
	}
}

// round takes one call as far as it gets when toolgate dies before its step-th
// step, 0 = when it is through.
func (s *sweep) round(t *testing.T, g *tracedGate, n, step int) (*sweptCall, []string) {
	t.Helper()
	k := &sweptCall{args: fmt.Sprintf(`{"n":%d}`, n), door: openHTTP(t, g.Agents+"/mcp", agentToken)}
	s.scenario.prepare(s, t, g, k)
	g.arm(t, step)
	err := s.scenario.run(s, t, g, k)
	steps := g.recorded(t)[1:]
	g.stop(t)
	fell := strings.HasPrefix(steps[len(steps)-1], "dies")
	if err != nil && !fell {
		t.Fatalf("%s: %v, after\n%s", k.args, err, strings.Join(steps, "\n"))
	}
	return k, steps
}

// check holds what a kill has left to what was acknowledged before it, and brings
// the call to its end.
func (s *sweep) check(t *testing.T, g *tracedGate, k *sweptCall, steps []string) {
	t.Helper()
	carol := g.carol()
	id := k.find(t, carol)
	for s.scenario.runsAlone && (k.state == "approved" || k.state == "dispatching") {
		program.Await(t, "what is approved runs by itself", func() bool { return carol.ticket(t, id).State != k.state })
		k.state = carol.ticket(t, id).State
	}
	ran := callCounts(s.rec)[k.args]
	s.left[k.state]++
	wrong := func(format string, args ...any) {
		t.Errorf("%s: %s; ticket %s %q, run %d times; told: ticket %q, voted %v, done %v; toolgate\n%s",
			k.args, fmt.Sprintf(format, args...), id, k.state, ran, k.ticket, k.voted, k.done, strings.Join(steps, "\n"))
	}
	most := map[string]int{"unknown": 1, "done": 1}
	switch {
	case ran > most[k.state], k.state == "done" && ran != 1:
		wrong("so many runs are wrong")
	case k.ticket != "" && id != k.ticket:
		wrong("a ticket was lost")
	case k.voted && (k.state == "proposed" || len(carol.ticket(t, id).Votes) != 1):
		wrong("a vote was lost")
	case k.done && k.state != "done":
		wrong("a result was lost")
	case !slices.Contains(s.scenario.states, k.state):
		wrong("no kill leaves that state")
	}
	s.finish(t, g, k, id)
}

// find gives the ticket of a call, and notes its state.
func (k *sweptCall) find(t *testing.T, d approver) (id string) {
	t.Helper()
	for _, one := range d.list(t, "") {
		if string(one.Arguments) != k.args {
			continue
		}
		if id != "" {
			t.Errorf("%s has two tickets, %s and %s", k.args, id, one.ID)
		}
		id, k.state = one.ID, one.State
	}
	return id
}

// finish calls again, approves what waits and calls until it has an answer. What
// is unknown stays so and is never run again, everything else has run once at the
// end.
func (s *sweep) finish(t *testing.T, g *tracedGate, k *sweptCall, id string) {
	t.Helper()
	before, d := callCounts(s.rec)[k.args], openHTTP(t, g.Agents+"/mcp", agentToken)
	ask := func() <-chan answer { return startCall(t, d, "rec__pay", k.args) }
	if k.state == "" || k.state == "proposed" {
		wait := ask()
		g.carol().mustVote(t, g.carol().awaitTicket(t, k.args).ID, "approve")
		<-wait
	}
	var end string
	program.Await(t, "the call has its answer", func() bool {
		end = outcome(t, (<-ask()).mustText(t))
		return end != "pending" && end != "running"
	})
	after := callCounts(s.rec)[k.args]
	if k.state == "unknown" {
		if end != "TOOL_FAILED" || after != before {
			t.Errorf("%s, unknown after the kill, then came to %s and was run %d times, before %d", k.args, end, after, before)
		}
		s.reconcile(t, g, k, id)
		if end, last := outcome(t, (<-ask()).mustText(t)), callCounts(s.rec)[k.args]; end != "TOOL_FAILED" || last != before {
			t.Errorf("%s, found out about, then came to %s and was run %d times, before %d", k.args, end, last, before)
		}
		return
	}
	if end != "done" && end != "replayed" || after != 1 {
		t.Errorf("%s, %q after the kill, then came to %s and was run %d times", k.args, k.state, end, after)
	}
}

// reconcile has carol say what she found out about a call that is unknown: the
// server's own record says whether it ran. The agent may not say it.
func (s *sweep) reconcile(t *testing.T, g *tracedGate, k *sweptCall, id string) {
	t.Helper()
	outcome := []string{"failed", "done"}[callCounts(s.rec)[k.args]]
	body := `{"outcome":"` + outcome + `","reason":"the server's record says so"}`
	for _, tc := range []struct {
		who  approver
		want verdict
	}{
		{approver{g.Admin, agentToken}, verdict{http.StatusForbidden, "SELF_APPROVAL", ""}},
		{g.carol(), verdict{http.StatusOK, "", outcome}},
		{approver{g.Admin, daveToken}, verdict{http.StatusConflict, "NOT_UNKNOWN", ""}},
	} {
		if v, err := tc.who.vote(t.Context(), id, "reconcile", body); err != nil || v != tc.want {
			t.Errorf("%s, found out by %s: %+v, %v, want %+v", k.args, tc.who.token, v, err, tc.want)
		}
	}
}
