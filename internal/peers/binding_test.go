package peers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// bindings are calls that follow a held call and differ from it in one respect, and
// their outcome.
var bindings = []struct {
	what string
	// args are the arguments of the later call, with a number per row; "" for firstArgs.
	args string
	from func(t *testing.T, b *bindingTest, args string) (came, ticket string) // nil for the same session
	want string
}{
	{what: "the same call", want: same},
	{what: "another session", want: same, from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		return b.call(t, openHTTP(t, b.gates[0].Agents+"/mcp", agentToken), "rec__pay", args)
	}},
	{what: "another toolgate on the same state", want: same, from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		return b.call(t, b.doors[1], "rec__pay", args)
	}},
	{what: "the route of the one server", want: same, from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		return b.call(t, openHTTP(t, b.gates[0].Agents+"/mcp/rec", agentToken), "pay", args)
	}},
	{what: "stdio", want: same, from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		d := openStdio(t, b.gates[0].Dir)
		awaitTools(t, d, 3) // one of them is approval_status, for principals with a ticket
		return b.call(t, d, "rec__pay", args)
	}},
	{what: "REST", want: same, from: callREST},

	{what: "another amount", args: `{"amount":6,"to":"acme","n":%d}`, want: another},
	{what: "another payee", args: `{"amount":5,"to":"evil","n":%d}`, want: another},
	{what: "two values swapped", args: `{"amount":"acme","to":5,"n":%d}`, want: another},
	{what: "one member more", args: `{"amount":5,"to":"acme","n":%d,"fast":true}`, want: another},
	{what: "one member less", args: `{"amount":5,"n":%d}`, want: another},
	{what: "another order of keys", args: `{"to":"acme","amount":5,"n":%d}`, want: another},
	{what: "a number with a fraction", args: `{"amount":5.0,"to":"acme","n":%d}`, want: another},
	{what: "a number with an exponent", args: `{"amount":5e0,"to":"acme","n":%d}`, want: another},
	{what: "a number as text", args: `{"amount":"5","to":"acme","n":%d}`, want: another},
	{what: "a letter escaped", args: `{"amount":5,"to":"\u0061cme","n":%d}`, want: another},
	{what: "a key escaped", args: `{"\u0061mount":5,"to":"acme","n":%d}`, want: another},
	{what: "white space", args: `{"amount": 5,"to":"acme","n":%d}`, want: another},
	{what: "a zero-width character", args: "{\"amount\":5,\"to\":\"ac\u200bme\",\"n\":%d}", want: another},
	{what: "another principal", want: another, from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		return b.call(t, openHTTP(t, b.gates[0].Agents+"/mcp", tokenOf(0)), "rec__pay", args)
	}},
	{what: "the same tool of another server", want: another, from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		return b.call(t, b.doors[0], "twin__pay", args)
	}},

	{what: "a key in another case", args: `{"amount":5,"to":"acme","n":%d,"Amount":500}`, want: "INVALID_ENVELOPE"},
	{what: "a key in another case, below", args: `{"amount":5,"to":{"iban":1,"IBAN":2},"n":%d}`, want: "INVALID_ENVELOPE"},
	{what: "a key twice", args: `{"amount":5,"to":"acme","n":%d,"amount":500}`, want: "INVALID_ENVELOPE"},
	{what: "a key twice, once escaped", args: `{"amount":5,"to":"acme","n":%d,"\u0061mount":500}`, want: "INVALID_ENVELOPE"},
	{what: "a key twice, below", args: `{"amount":5,"to":{"a":1,"a":2},"n":%d}`, want: "INVALID_ENVELOPE"},
	{what: "an unknown token", want: "UNAUTHORIZED", from: func(t *testing.T, b *bindingTest, args string) (string, string) {
		d := *b.doors[0]
		d.token = "nonsense"
		d.exchange(t, callMessage("1", "rec__pay", args))
		return map[int]string{http.StatusUnauthorized: "UNAUTHORIZED"}[d.status], ""
	}},
}

const (
	firstArgs = `{"amount":5,"to":"acme","n":%d}`
	same      = "the same ticket"
	another   = "another ticket"
)

// bindingTest is two toolgates with two servers that have the same tool.
type bindingTest struct {
	gatePair
	twin *recorder.Recorder
}

// call makes a call and returns its outcome and its ticket.
func (b *bindingTest) call(t *testing.T, d rawClient, tool, args string) (end, ticket string) {
	t.Helper()
	answer := d.exchange(t, callMessage("7", tool, args))
	if result, _ := splitAnswer(answer); result != nil {
		_, ticket = ticketOf(t, result)
	}
	return outcome(t, answer), ticket
}

// callREST makes the call over REST.
func callREST(t *testing.T, b *bindingTest, args string) (end, ticket string) {
	t.Helper()
	var body struct{ Details struct{ Ticket string } }
	status, err := requestJSON(t.Context(), http.MethodPost, b.gates[0].Agents+"/v1/jobs", agentToken, `{"tool":"rec__pay","args":`+args+`}`, &body)
	if err != nil {
		t.Fatal(err)
	}
	return map[int]string{http.StatusOK: "done", http.StatusAccepted: "pending"}[status], body.Details.Ticket
}

// TestBinding: a ticket, proposed or approved, is bound to one call. A call that
// differs never runs on the ticket and does not change it.
func TestBinding(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	servers := func() *recorder.Recorder {
		return recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	}
	b := &bindingTest{gatePair: gatePair{rec: servers()}, twin: servers()}
	dir := configure(t, setup{servers: []server{httpOf("rec", b.rec, shared()), httpOf("twin", b.twin, shared())}, policy: holdAll, agents: 1})
	for i := range b.gates {
		b.gates[i] = serveReady(t, dir)
		b.doors[i] = openHTTP(t, b.gates[i].Agents+"/mcp", agentToken)
	}
	n := 0
	for _, row := range bindings {
		for _, approved := range []bool{false, true} {
			n++
			first, later := fmt.Sprintf(firstArgs, n), row.args
			if later == "" {
				later = firstArgs
			}
			later = fmt.Sprintf(later, n)
			from := row.from
			if from == nil {
				from = func(t *testing.T, b *bindingTest, args string) (string, string) {
					return b.call(t, b.doors[0], "rec__pay", args)
				}
			}
			t.Run(fmt.Sprintf("%s, approved %v", row.what, approved), func(t *testing.T) {
				b.check(t, first, approved, row.want, func() (string, string) { return from(t, b, later) })
			})
		}
	}
	for args, times := range callCounts(b.twin) {
		t.Errorf("the other server ran %s %d times", args, times)
	}
}

// check makes the first call, decides on it, makes the later call and checks its
// outcome.
func (b *bindingTest) check(t *testing.T, first string, approved bool, want string, later func() (string, string)) {
	t.Helper()
	carol, before := b.gates[1].carol(), len(b.rec.Calls())
	id := holdCall(t, b.doors[0], "rec__pay", first)
	state := "proposed"
	if approved {
		carol.mustVote(t, id, "approve")
		state = "approved"
	}
	end, ticket := later()
	switch {
	case want == same && approved:
		if end != "done" || len(b.rec.Calls()) != before+1 {
			t.Errorf("outcome %s with %d runs, want one run", end, len(b.rec.Calls())-before)
		}
		state = "done"
	case want == same:
		if end != "pending" || ticket != id {
			t.Errorf("outcome %s, ticket %s, want pending with %s", end, ticket, id)
		}
	case want == another:
		if end != "pending" || ticket == "" || ticket == id {
			t.Errorf("outcome %s, ticket %s, want pending with a ticket other than %s", end, ticket, id)
		}
	case end != want || ticket != "":
		t.Errorf("outcome %s, ticket %q, want %s", end, ticket, want)
	}
	if got := carol.ticket(t, id).State; got != state {
		t.Errorf("the ticket is %s, want %s", got, state)
	}
	if want != same && len(b.rec.Calls()) != before {
		t.Errorf("a call ran: %s", b.rec.Calls()[before].Arguments)
	}
	if !approved {
		carol.mustVote(t, id, "approve")
	}
	if end, _ := b.call(t, b.doors[0], "rec__pay", first); end != "done" && end != "replayed" {
		t.Errorf("outcome of the approved first call: %s", end)
	}
	if calls := b.rec.Calls()[before:]; len(calls) != 1 || string(calls[0].Arguments) != first {
		t.Errorf("the server received %d calls, want the approved bytes once", len(calls))
	}
	for _, left := range carol.proposed(t) { // a principal may have a limited number of tickets
		_, _ = carol.vote(t.Context(), left.ID, "deny", `{"reason":"leftover"}`)
	}
}

// TestQuorum: a quorum of two needs two approvers, and the requester cannot vote.
func TestQuorum(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	p := startPair(t, setup{policy: strings.Replace(holdAll, `["approver"]`, `["approver", "agent"], "quorum": 2`, 1), agents: 1}, recorder.Tool{})
	id := holdCall(t, p.doors[0], "rec__pay", `{}`)
	for _, tc := range []struct {
		who, code, state string
	}{
		{agentToken, "SELF_APPROVAL", ""},
		{approverToken, "", "proposed"},
		{approverToken, "ALREADY_VOTED", ""},
		{"nonsense", "UNAUTHENTICATED", ""},
		{tokenOf(0), "", "approved"}, // another agent than the requester
		{daveToken, "NOT_PENDING", ""},
	} {
		if end := outcome(t, p.doors[1].exchange(t, callMessage("1", "rec__pay", `{}`))); end != "pending" && tc.who != daveToken {
			t.Errorf("before the vote of %s: outcome %s", tc.who, end)
		}
		v, err := (approver{p.gates[1].Admin, tc.who}).vote(t.Context(), id, "approve", `{}`)
		if err != nil || v.code != tc.code || v.state != tc.state {
			t.Errorf("the vote of %s: %+v, %v", tc.who, v, err)
		}
		if tc.state == "approved" {
			wantRuns(t, p.rec, `{}`, 0)
		}
	}
	wantRuns(t, p.rec, `{}`, 1)
}

// TestStaleVote: a vote with the digest of other arguments is rejected, and so is a
// denial without a reason.
func TestStaleVote(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	p := startPair(t, setup{}, recorder.Tool{})
	carol := p.gates[1].carol()
	other, id := holdCall(t, p.doors[0], "rec__pay", `{"n":1}`), holdCall(t, p.doors[0], "rec__pay", `{"n":2}`)
	stale, right := carol.ticket(t, other).Digest, carol.ticket(t, id).Digest
	for _, tc := range []struct{ action, body, code string }{
		{"approve", `{"digest":"` + stale + `"}`, "STALE_DIGEST"},
		{"deny", `{"reason":"no","digest":"` + stale + `"}`, "STALE_DIGEST"},
		{"deny", `{"digest":"` + right + `"}`, "REASON_REQUIRED"},
		{"approve", `{"digest":"` + right + `"}`, ""},
	} {
		if v, err := carol.vote(t.Context(), id, tc.action, tc.body); err != nil || v.code != tc.code {
			t.Errorf("%s %s: %+v, %v", tc.action, tc.body, v, err)
		}
	}
	if k := carol.ticket(t, id); k.State != "approved" || len(k.Votes) != 1 {
		t.Errorf("the ticket is %s with %d votes", k.State, len(k.Votes))
	}
	mustCall(t, p.doors[0], "rec__pay", `{"n":2}`)
	wantRuns(t, p.rec, `{"n":1}`, 0)
}

// drift is a change while a call is held or after its approval, and the outcome of
// the same call after the change.
type drift struct {
	what   string
	pin    bool // of the server
	change func(t *testing.T, p gatePair)
	// want is another ticket, or the code of a refusal.
	want string
}

var drifts = []drift{
	{"the policy, by a comment", true, func(t *testing.T, p gatePair) { p.setPolicy(t, "# new\n"+holdAll) }, another},
	{"who approves", true, func(t *testing.T, p gatePair) {
		p.setPolicy(t, strings.Replace(holdAll, `["approver"]`, `["approver", "auditor"]`, 1))
	}, another},
	{"how many approve", true, func(t *testing.T, p gatePair) {
		p.setPolicy(t, strings.Replace(holdAll, `["approver"]`, `["approver"], "quorum": 2`, 1))
	}, another},
	{"the policy, which now denies the call", true, func(t *testing.T, p gatePair) {
		p.setPolicy(t, denyAll+" if count(input.arguments) > 0\n"+holdAll+" if count(input.arguments) == 0")
	}, "POLICY_DENIED"},
	{"the policy, which now hides the tool", true, func(t *testing.T, p gatePair) { p.setPolicy(t, denyAll) }, "TOOL_NOT_FOUND"},
	{"the definition of the tool", true, func(_ *testing.T, p gatePair) { p.rec.SetTools(true, redefined) }, "TOOL_QUARANTINED"},
	{"the definition of a tool without a pin", false, func(_ *testing.T, p gatePair) { p.rec.SetTools(true, redefined) }, another},
}

const denyAll = `decision := {"effect": "deny", "rule": "no", "reason": "no"}`

var redefined = recorder.Tool{Name: "pay", Definition: json.RawMessage(`{"name":"pay","description":"Pays twice.","inputSchema":{"type":"object"}}`)}

// setPolicy replaces the policy.
func (p gatePair) setPolicy(t *testing.T, policy string) {
	t.Helper()
	write(t, filepath.Join(p.gates[0].Dir, "policy", "p.rego"), "package toolgate\n\nimport rego.v2\n\n"+policy+"\n")
}

// TestDrift: an approval under other terms is void. The same call is judged under
// the current terms, and its old ticket is superseded.
func TestDrift(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	for _, d := range drifts {
		for _, approved := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, approved %v", d.what, approved), func(t *testing.T) {
				t.Parallel()
				p := startPairWith(t, setup{}, recorder.Tool{}, map[string]any{"isolation": "shared", "pin": d.pin})
				carol := p.gates[1].carol()
				id := holdCall(t, p.doors[0], "rec__pay", `{"n":1}`)
				if approved {
					carol.mustVote(t, id, "approve")
				}
				p.awaitChange(t, func() { d.change(t, p) })
				program.Await(t, "the old ticket is superseded without a call", func() bool {
					return carol.ticket(t, id).State == "superseded"
				})
				answer := p.doors[0].exchange(t, callMessage("1", "rec__pay", `{"n":1}`))
				end, ticket := outcome(t, answer), ""
				if result, _ := splitAnswer(answer); result != nil {
					_, ticket = ticketOf(t, result)
				}
				if d.want == another && (end != "pending" || ticket == id) || d.want != another && end != d.want {
					t.Errorf("outcome %s with ticket %s, want %s than %s", end, ticket, d.want, id)
				}
				if v, err := carol.vote(t.Context(), id, "approve", `{}`); err != nil || v.code != "NOT_PENDING" {
					t.Errorf("vote on the old ticket: %+v, %v", v, err)
				}
				for i := range p.doors {
					if end := outcome(t, p.doors[i].exchange(t, callMessage("1", "rec__pay", `{"n":1}`))); end == "done" {
						t.Error("the call ran")
					}
				}
				wantRuns(t, p.rec, `{"n":1}`, 0)
			})
		}
	}
}

// awaitChange makes a change and waits until both toolgates apply it: until a held
// call of each gets another answer.
func (p gatePair) awaitChange(t *testing.T, change func()) {
	t.Helper()
	var doors [2]*rawHTTP // of a client without a hold
	for i := range doors {
		doors[i] = openAs(t, "toolgate-cli", p.gates[i].Agents+"/mcp", agentToken)
	}
	probe := func(i int) string {
		answer := doors[i].exchange(t, callMessage("1", "rec__pay", fmt.Sprintf(`{"probe":%d}`, i)))
		if result, _ := splitAnswer(answer); result != nil {
			_, ticket := ticketOf(t, result)
			return ticket
		}
		return outcome(t, answer)
	}
	before := [2]string{probe(0), probe(1)}
	change()
	for i := range before {
		program.Await(t, "the change is applied", func() bool { return probe(i) != before[i] })
	}
}

// TestDriftInTheHold: an approval during the hold is void too if the terms have
// changed. The call is judged again.
func TestDriftInTheHold(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	for _, d := range drifts {
		t.Run(d.what, func(t *testing.T) {
			t.Parallel()
			p := startPairWith(t, setup{hold: holdByClient}, recorder.Tool{}, map[string]any{"isolation": "shared", "pin": d.pin})
			carol, args, want := p.gates[1].carol(), `{"n":1}`, d.want
			wait, k := startHeld(t, p, 0, args)
			p.awaitChange(t, func() { d.change(t, p) })
			if v, err := carol.vote(t.Context(), k.ID, "approve", `{}`); err != nil || v.code != "" && v.code != "NOT_PENDING" {
				t.Errorf("vote on the old ticket: %+v, %v", v, err)
			}
			if d.want == another { // the call is still held, with another ticket
				var next ticketView
				program.Await(t, "the call has another ticket", func() bool {
					next = carol.awaitTicket(t, args)
					return next.ID != k.ID
				})
				carol.mustVote(t, next.ID, "deny")
				want = "APPROVAL_DENIED"
			}
			if end := outcome(t, (<-wait).mustText(t)); end != want {
				t.Errorf("outcome of the held call: %s, want %s", end, want)
			}
			wantRuns(t, p.rec, args, 0)
		})
	}
}
