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
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// sweep kills toolgate before every step of one scenario of a held call. All rounds
// share one state directory: each start reads what the previous kill left.
type sweep struct {
	rec      *recorder.Recorder
	dir      string
	scenario scenario
	left     map[string]int // :: state after a kill ⇒ number of kills
}

// scenario is what people and the agent do with one call: prepare before the steps
// are counted, run while they are. A failed request ends it: toolgate was killed.
type scenario struct {
	name, policy, hold string
	states             []string // states after a kill, each at least once; "" for no ticket
	runsAlone          bool     // an approved call runs without its agent
	prepare            func(s *sweep, t *testing.T, g *tracedGate, k *sweptCall)
	run                func(s *sweep, t *testing.T, g *tracedGate, k *sweptCall) error
}

// sweptCall is one call, and what toolgate had acknowledged of it before the kill.
type sweptCall struct {
	args   string
	door   *rawHTTP
	wait   <-chan answer // of a held call
	ticket string        // "" before it was acknowledged
	voted  bool
	done   bool   // its result was returned
	state  string // of its ticket after the restart, "" for no ticket
}

// record records the answer of the call.
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

// vote approves the call as carol.
func (k *sweptCall) vote(ctx context.Context, g *tracedGate) error {
	v, err := g.carol().vote(ctx, k.ticket, "approve", `{"reason":"swept"}`)
	if err == nil && v.status != http.StatusOK {
		return fmt.Errorf("the vote was refused: %+v", v)
	}
	k.voted = err == nil
	return err
}

// askApproveRun: the agent calls, carol approves, the agent calls again. Every step
// counts, from the creation of the ticket on.
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

// approvedWhileHeld: the call is approved during its hold.
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

// executedOnApproval: the call runs on approval, and its agent returns afterwards.
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
		if !g.Await(t, "the call runs on approval", func() bool { return callCounts(s.rec)[k.args] > 0 }) {
			return errors.New("toolgate has exited")
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
// After the restart no call has run twice, every acknowledged state holds, every
// call can be completed, and the trail is intact.
func TestKillSweep(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
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

// run counts the steps of a round without a kill, then makes one round per step.
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
			t.Errorf("no kill left a ticket in state %q", state)
		}
	}
	if r := verifyTrail(t, s.dir); len(r.Chains) != len(stops)+2 {
		t.Errorf("the trail has %d chains, want %d: one per start", len(r.Chains), len(stops)+2)
	}
	s.checkTrail(t, tickets)
}

// stopsOf returns the steps to stop at: every step with TOOLGATE_SOAK=1. Otherwise,
// of several writes to one file in a row, only the first, the last and every fifth:
// only the last can matter. Rounds differ in a few steps, so it includes two steps
// after the last.
func stopsOf(steps []string) (stops []int) {
	for i, step := range steps {
		inside := i > 0 && i < len(steps)-1 && steps[i-1] == step && steps[i+1] == step
		if !inside || i%shortOrSoak(5, 1) == 0 {
			stops = append(stops, i+1)
		}
	}
	return append(stops, len(steps)+1, len(steps)+2)
}

// checkTrail compares the trail with the calls at the server and with the tickets:
// no call without a decision, one decision per call, and no ticket change without a
// record. A record of a change that a kill has undone is permitted.
func (s *sweep) checkTrail(t *testing.T, tickets []ticketView) {
	t.Helper()
	out, code := runCommand(t, s.dir, "audit", "tail", "-o", "json", "-n", "1000000")
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
			t.Errorf("%s has %d decisions, want 1", args, n)
		}
	}
	for args := range ran {
		if decided[args] == 0 {
			t.Errorf("%s ran without a record", args)
		}
	}
}

// round makes one call until it is complete or toolgate dies before a step, 0 for
// never.
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

// check compares the state after a kill with what was acknowledged before it, and
// completes the call.
func (s *sweep) check(t *testing.T, g *tracedGate, k *sweptCall, steps []string) {
	t.Helper()
	carol := g.carol()
	id := k.find(t, carol)
	for s.scenario.runsAlone && (k.state == "approved" || k.state == "dispatching") {
		program.Await(t, "the approved call runs", func() bool { return carol.ticket(t, id).State != k.state })
		k.state = carol.ticket(t, id).State
	}
	ran := callCounts(s.rec)[k.args]
	s.left[k.state]++
	wrong := func(format string, args ...any) {
		t.Errorf("%s: %s; ticket %s %q, %d runs; acknowledged: ticket %q, voted %v, done %v; steps of toolgate\n%s",
			k.args, fmt.Sprintf(format, args...), id, k.state, ran, k.ticket, k.voted, k.done, strings.Join(steps, "\n"))
	}
	most := map[string]int{"unknown": 1, "done": 1}
	switch {
	case ran > most[k.state], k.state == "done" && ran != 1:
		wrong("wrong number of runs")
	case k.ticket != "" && id != k.ticket:
		wrong("a ticket was lost")
	case k.voted && (k.state == "proposed" || len(carol.ticket(t, id).Votes) != 1):
		wrong("a vote was lost")
	case k.done && k.state != "done":
		wrong("a result was lost")
	case !slices.Contains(s.scenario.states, k.state):
		wrong("unexpected state")
	}
	s.finish(t, g, k, id)
}

// find returns the ticket of the call and records its state.
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

// finish calls again, approves if needed, and repeats the call until it has an
// answer. An unknown call stays unknown and never runs again; any other call has run
// once.
func (s *sweep) finish(t *testing.T, g *tracedGate, k *sweptCall, id string) {
	t.Helper()
	before, d := callCounts(s.rec)[k.args], openHTTP(t, g.Agents+"/mcp", agentToken)
	ask := func() <-chan answer { return startCall(t, d, "rec__pay", k.args) }
	if k.state == "" || k.state == "proposed" {
		wait := ask()
		id = s.approve(t, g.carol(), k.args)
		<-wait
	}
	var end string
	program.Await(t, "the call has its answer", func() bool {
		end = outcome(t, (<-ask()).mustText(t))
		return end != "pending" && end != "running"
	})
	after := callCounts(s.rec)[k.args]
	if isBehind(g.carol().ticket(t, id)) {
		k.state = "unknown"
	}
	if k.state == "unknown" {
		if end != "TOOL_FAILED" || after != before {
			t.Errorf("%s, unknown after the kill: outcome %s, %d runs, before %d", k.args, end, after, before)
		}
		s.reconcile(t, g, k, id)
		if end, last := outcome(t, (<-ask()).mustText(t)), callCounts(s.rec)[k.args]; end != "TOOL_FAILED" || last != before {
			t.Errorf("%s, reconciled: outcome %s, %d runs, before %d", k.args, end, last, before)
		}
		return
	}
	if end != "done" && end != "replayed" || after != 1 {
		t.Errorf("%s, %q after the kill: outcome %s, %d runs", k.args, k.state, end, after)
	}
}

// approve approves the ticket of a call, and returns its ID.
func (s *sweep) approve(t *testing.T, carol approver, args string) (id string) {
	t.Helper()
	program.Await(t, "a ticket for "+args, func() bool {
		for _, one := range carol.list(t, "") {
			if string(one.Arguments) == args && (one.State == "proposed" || isBehind(one)) {
				id = one.ID
			}
		}
		return id != ""
	})
	if v, err := carol.vote(t.Context(), id, "approve", `{}`); (err != nil || v.status != http.StatusOK) && !isBehind(carol.ticket(t, id)) {
		t.Fatalf("approve %s: %+v, %v", id, v, err)
	}
	return id
}

// isBehind reports whether a ticket is unknown because the kill came after the record
// of a change and before its commit: the store looks like an older one then.
func isBehind(k ticketView) bool {
	return k.State == "unknown" && strings.Contains(k.Note, "the audit trail has change")
}

// reconcile records as carol whether an unknown call ran, by the calls that the
// server received. The agent cannot record it.
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
			t.Errorf("%s, reconciled by %s: %+v, %v, want %+v", k.args, tc.who.token, v, err, tc.want)
		}
	}
}
