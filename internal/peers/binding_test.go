package peers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// bound are calls that come after one that has a ticket, each differing from it
// in one thing, and what they get.
var bound = []struct {
	what string
	// args are those of the later call, with a number that keeps the rows apart;
	// "" = those of the first, amount.
	args string
	from func(t *testing.T, b *counters, args string) (came, ticket string) // nil = by the same session
	want string
}{
	{what: "the same call", want: same},
	{what: "another session", want: same, from: func(t *testing.T, b *counters, args string) (string, string) {
		return b.ask(t, openHTTP(t, b.gates[0].Agents+"/mcp", agentToken), "rec__pay", args)
	}},
	{what: "another toolgate on the same state", want: same, from: func(t *testing.T, b *counters, args string) (string, string) {
		return b.ask(t, b.doors[1], "rec__pay", args)
	}},
	{what: "the route of the one server", want: same, from: func(t *testing.T, b *counters, args string) (string, string) {
		return b.ask(t, openHTTP(t, b.gates[0].Agents+"/mcp/rec", agentToken), "pay", args)
	}},
	{what: "stdio", want: same, from: func(t *testing.T, b *counters, args string) (string, string) {
		d := openStdio(t, b.gates[0].Dir)
		awaitTools(t, d, 3) // approval_status is offered to whoever has a ticket
		return b.ask(t, d, "rec__pay", args)
	}},
	{what: "REST", want: same, from: job},

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
	{what: "another principal", want: another, from: func(t *testing.T, b *counters, args string) (string, string) {
		return b.ask(t, openHTTP(t, b.gates[0].Agents+"/mcp", tokenOf(0)), "rec__pay", args)
	}},
	{what: "the same tool of another server", want: another, from: func(t *testing.T, b *counters, args string) (string, string) {
		return b.ask(t, b.doors[0], "twin__pay", args)
	}},

	{what: "a key in another case", args: `{"amount":5,"to":"acme","n":%d,"Amount":500}`, want: "INVALID_ENVELOPE"},
	{what: "a key in another case, below", args: `{"amount":5,"to":{"iban":1,"IBAN":2},"n":%d}`, want: "INVALID_ENVELOPE"},
	{what: "a key twice", args: `{"amount":5,"to":"acme","n":%d,"amount":500}`, want: "INVALID_ENVELOPE"},
	{what: "a key twice, once escaped", args: `{"amount":5,"to":"acme","n":%d,"\u0061mount":500}`, want: "INVALID_ENVELOPE"},
	{what: "a key twice, below", args: `{"amount":5,"to":{"a":1,"a":2},"n":%d}`, want: "INVALID_ENVELOPE"},
	{what: "nobody's token", want: "stranger", from: func(t *testing.T, b *counters, args string) (string, string) {
		d := *b.doors[0]
		d.token = "nonsense"
		d.exchange(t, callMessage("1", "rec__pay", args))
		return map[int]string{http.StatusUnauthorized: "stranger"}[d.status], ""
	}},
}

const (
	amount  = `{"amount":5,"to":"acme","n":%d}`
	same    = "the same ticket"
	another = "another ticket"
)

// counters are two toolgates with two servers that have the same tool.
type counters struct {
	pair
	twin *recorder.Recorder
}

// ask calls, and gives what came of it with its ticket.
func (b *counters) ask(t *testing.T, d door, tool, args string) (end, ticket string) {
	t.Helper()
	answer := d.exchange(t, callMessage("7", tool, args))
	if result, _ := parts(answer); result != nil {
		_, ticket = ticketOf(t, result)
	}
	return came(t, answer), ticket
}

// job makes the call over REST.
func job(t *testing.T, b *counters, args string) (end, ticket string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.gates[0].Agents+"/v1/jobs", strings.NewReader(`{"tool":"rec__pay","args":`+args+`}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+agentToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Details struct{ Ticket string } }
	if err := json.Unmarshal(text, &said); err != nil {
		t.Fatalf("reading %s: %v", text, err)
	}
	return map[int]string{http.StatusOK: "done", http.StatusAccepted: "pending"}[res.StatusCode], said.Details.Ticket
}

// TestBinding: what a ticket answers and what it does not, while it waits and
// after its approval. A call that differs in anything never runs on it, and
// leaves it as it is.
func TestBinding(t *testing.T) {
	t.Parallel()
	servers := func() *recorder.Recorder {
		return recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	}
	b := &counters{pair: pair{rec: servers()}, twin: servers()}
	dir := configure(t, setup{servers: []server{httpOf("rec", b.rec, shared()), httpOf("twin", b.twin, shared())}, policy: holdAll, agents: 1})
	for i := range b.gates {
		b.gates[i] = serveReady(t, dir)
		b.doors[i] = openHTTP(t, b.gates[i].Agents+"/mcp", agentToken)
	}
	n := 0
	for _, row := range bound {
		for _, approved := range []bool{false, true} {
			n++
			first, later := fmt.Sprintf(amount, n), row.args
			if later == "" {
				later = amount
			}
			later = fmt.Sprintf(later, n)
			from := row.from
			if from == nil {
				from = func(t *testing.T, b *counters, args string) (string, string) {
					return b.ask(t, b.doors[0], "rec__pay", args)
				}
			}
			t.Run(fmt.Sprintf("%s, approved %v", row.what, approved), func(t *testing.T) {
				b.try(t, first, approved, row.want, func() (string, string) { return from(t, b, later) })
			})
		}
	}
	for args, times := range runs(b.twin) {
		t.Errorf("the other server ran %s %d times", args, times)
	}
}

// try makes the first call, decides on it, makes the later one and wants of it
// what the table says.
func (b *counters) try(t *testing.T, first string, approved bool, want string, later func() (string, string)) {
	t.Helper()
	carol, before := b.gates[1].desk(), len(b.rec.Calls())
	id := hold(t, b.doors[0], "rec__pay", first)
	state := "proposed"
	if approved {
		carol.must(t, id, "approve")
		state = "approved"
	}
	end, ticket := later()
	switch {
	case want == same && approved:
		if end != "done" || len(b.rec.Calls()) != before+1 {
			t.Errorf("came to %s with %d runs, want the run", end, len(b.rec.Calls())-before)
		}
		state = "done"
	case want == same:
		if end != "pending" || ticket != id {
			t.Errorf("came to %s, ticket %s, want pending with %s", end, ticket, id)
		}
	case want == another:
		if end != "pending" || ticket == "" || ticket == id {
			t.Errorf("came to %s, ticket %s, want pending with another than %s", end, ticket, id)
		}
	case end != want || ticket != "":
		t.Errorf("came to %s, ticket %q, want %s", end, ticket, want)
	}
	if got := carol.ticket(t, id).State; got != state {
		t.Errorf("the ticket is %s, want %s", got, state)
	}
	if want != same && len(b.rec.Calls()) != before {
		t.Errorf("something ran: %s", b.rec.Calls()[before].Arguments)
	}
	if !approved {
		carol.must(t, id, "approve")
	}
	if end, _ := b.ask(t, b.doors[0], "rec__pay", first); end != "done" && end != "replayed" {
		t.Errorf("the first call, approved, came to %s", end)
	}
	if calls := b.rec.Calls()[before:]; len(calls) != 1 || string(calls[0].Arguments) != first {
		t.Errorf("%d calls were made, want the approved bytes once", len(calls))
	}
	for _, left := range carol.waiting(t) { // so that nobody has too many
		_, _ = carol.vote(t.Context(), left.ID, "deny", `{"reason":"not asked for"}`)
	}
}

// TestQuorum: two of two approvers are needed, one vote each, and the requester
// is none of them.
func TestQuorum(t *testing.T) {
	t.Parallel()
	p := paired(t, setup{policy: strings.Replace(holdAll, `["approver"]`, `["approver", "agent"], "quorum": 2`, 1), agents: 1}, recorder.Tool{})
	id := hold(t, p.doors[0], "rec__pay", `{}`)
	for _, tc := range []struct {
		who, code, state string
	}{
		{agentToken, "SELF_APPROVAL", ""},
		{approverToken, "", "proposed"},
		{approverToken, "ALREADY_VOTED", ""},
		{"nonsense", "UNAUTHENTICATED", ""},
		{tokenOf(0), "", "approved"}, // another agent, and so no requester
		{daveToken, "NOT_PENDING", ""},
	} {
		if end := came(t, p.doors[1].exchange(t, callMessage("1", "rec__pay", `{}`))); end != "pending" && tc.who != daveToken {
			t.Errorf("before the vote of %s the call came to %s", tc.who, end)
		}
		v, err := (desk{p.gates[1].Admin, tc.who}).vote(t.Context(), id, "approve", `{}`)
		if err != nil || v.code != tc.code || v.state != tc.state {
			t.Errorf("the vote of %s: %+v, %v", tc.who, v, err)
		}
		if tc.state == "approved" {
			wantRuns(t, p.rec, `{}`, 0)
		}
	}
	wantRuns(t, p.rec, `{}`, 1)
}

// TestOlderPage: a vote that was meant for other arguments counts for nothing,
// and neither does a denial without a reason.
func TestOlderPage(t *testing.T) {
	t.Parallel()
	p := paired(t, setup{}, recorder.Tool{})
	carol := p.gates[1].desk()
	older, id := hold(t, p.doors[0], "rec__pay", `{"n":1}`), hold(t, p.doors[0], "rec__pay", `{"n":2}`)
	seen, right := carol.ticket(t, older).Digest, carol.ticket(t, id).Digest
	for _, tc := range []struct{ action, body, code string }{
		{"approve", `{"digest":"` + seen + `"}`, "STALE_DIGEST"},
		{"deny", `{"reason":"no","digest":"` + seen + `"}`, "STALE_DIGEST"},
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

// drift is what changes while a call waits, or when it has been approved, and
// what the same call gets then.
type drift struct {
	what   string
	pin    bool // of the server
	change func(t *testing.T, p pair)
	// wants is what the call comes to once the change has been taken over: another
	// ticket, or a refusal.
	want string
}

var drifts = []drift{
	{"the policy, by a comment", true, func(t *testing.T, p pair) { p.judge(t, "# new\n"+holdAll) }, another},
	{"who approves", true, func(t *testing.T, p pair) {
		p.judge(t, strings.Replace(holdAll, `["approver"]`, `["approver", "auditor"]`, 1))
	}, another},
	{"how many approve", true, func(t *testing.T, p pair) {
		p.judge(t, strings.Replace(holdAll, `["approver"]`, `["approver"], "quorum": 2`, 1))
	}, another},
	{"the policy, which now denies the call", true, func(t *testing.T, p pair) {
		p.judge(t, denyAll+" if count(input.arguments) > 0\n"+holdAll+" if count(input.arguments) == 0")
	}, "POLICY_DENIED"},
	{"the policy, which now hides the tool", true, func(t *testing.T, p pair) { p.judge(t, denyAll) }, "TOOL_NOT_FOUND"},
	{"the definition of the tool", true, func(_ *testing.T, p pair) { p.rec.SetTools(true, redefined) }, "TOOL_QUARANTINED"},
	{"the definition of a tool without a pin", false, func(_ *testing.T, p pair) { p.rec.SetTools(true, redefined) }, another},
}

const denyAll = `decision := {"effect": "deny", "rule": "no", "reason": "no"}`

var redefined = recorder.Tool{Name: "pay", Definition: json.RawMessage(`{"name":"pay","description":"Pays twice.","inputSchema":{"type":"object"}}`)}

// judge puts another policy in force.
func (p pair) judge(t *testing.T, policy string) {
	t.Helper()
	write(t, filepath.Join(p.gates[0].Dir, "policy", "p.rego"), "package toolgate\n\nimport rego.v2\n\n"+policy+"\n")
}

// TestDrift: what was approved under other terms does not run. The same call is
// judged as things are now, and its old ticket answers nothing any more.
func TestDrift(t *testing.T) {
	t.Parallel()
	for _, d := range drifts {
		for _, approved := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, approved %v", d.what, approved), func(t *testing.T) {
				t.Parallel()
				p := pairedWith(t, setup{}, recorder.Tool{}, map[string]any{"isolation": "shared", "pin": d.pin})
				carol := p.gates[1].desk()
				id := hold(t, p.doors[0], "rec__pay", `{"n":1}`)
				if approved {
					carol.must(t, id, "approve")
				}
				p.takeOver(t, func() { d.change(t, p) })
				program.Await(t, "the old ticket is superseded before anybody calls", func() bool {
					return carol.ticket(t, id).State == "superseded"
				})
				answer := p.doors[0].exchange(t, callMessage("1", "rec__pay", `{"n":1}`))
				end, ticket := came(t, answer), ""
				if result, _ := parts(answer); result != nil {
					_, ticket = ticketOf(t, result)
				}
				if d.want == another && (end != "pending" || ticket == id) || d.want != another && end != d.want {
					t.Errorf("came to %s with ticket %s, want %s than %s", end, ticket, d.want, id)
				}
				if v, err := carol.vote(t.Context(), id, "approve", `{}`); err != nil || v.code != "NOT_PENDING" {
					t.Errorf("a vote on the old ticket: %+v, %v", v, err)
				}
				for i := range p.doors {
					if end := came(t, p.doors[i].exchange(t, callMessage("1", "rec__pay", `{"n":1}`))); end == "done" {
						t.Error("it ran")
					}
				}
				wantRuns(t, p.rec, `{"n":1}`, 0)
			})
		}
	}
}

// takeOver changes something and waits until both toolgates judge by it: until a
// call of each that waited before gets another answer.
func (p pair) takeOver(t *testing.T, change func()) {
	t.Helper()
	var doors [2]*httpDoor // of a client that does not wait
	for i := range doors {
		doors[i] = openAs(t, "toolgate-cli", p.gates[i].Agents+"/mcp", agentToken)
	}
	probe := func(i int) string {
		answer := doors[i].exchange(t, callMessage("1", "rec__pay", fmt.Sprintf(`{"probe":%d}`, i)))
		if result, _ := parts(answer); result != nil {
			_, ticket := ticketOf(t, result)
			return ticket
		}
		return came(t, answer)
	}
	before := [2]string{probe(0), probe(1)}
	change()
	for i := range before {
		program.Await(t, "the change is taken over", func() bool { return probe(i) != before[i] })
	}
}

// TestDriftInTheHold: what is approved while its call waits does not run either
// when the terms have changed meanwhile: the call is judged again.
func TestDriftInTheHold(t *testing.T) {
	t.Parallel()
	for _, d := range drifts {
		t.Run(d.what, func(t *testing.T) {
			t.Parallel()
			p := pairedWith(t, setup{hold: byClient}, recorder.Tool{}, map[string]any{"isolation": "shared", "pin": d.pin})
			carol, args, want := p.gates[1].desk(), `{"n":1}`, d.want
			wait, k := begunWith(t, p, 0, args)
			p.takeOver(t, func() { d.change(t, p) })
			if v, err := carol.vote(t.Context(), k.ID, "approve", `{}`); err != nil || v.code != "" && v.code != "NOT_PENDING" {
				t.Errorf("a vote on the old ticket: %+v, %v", v, err)
			}
			if d.want == another { // it waits on, with another ticket
				var next shown
				program.Await(t, "the call has another ticket", func() bool {
					next = carol.asked(t, args)
					return next.ID != k.ID
				})
				carol.must(t, next.ID, "deny")
				want = "APPROVAL_DENIED"
			}
			if end := came(t, (<-wait).want(t)); end != want {
				t.Errorf("the call that waited came to %s, want %s", end, want)
			}
			wantRuns(t, p.rec, args, 0)
		})
	}
}
