package proxy_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// taskGate is a ticketGate with servers. It keeps its claims.
type taskGate struct {
	*ticketGate
	held   []approval.Held
	asked  []string // of servers: server and method
	answer string   // to all of it
	waits  func(id string)
}

func newTaskGate(t *testing.T, tickets ...approval.Ticket) *taskGate {
	t.Helper()
	b := &taskGate{ticketGate: newTicketGate(t, nil, tickets...), answer: `{"tasks":[]}`, waits: func(string) {}}
	b.decision = held
	required := *searcher
	required.Name, required.Exposed, required.Definition = "slow", "web__slow", json.RawMessage(`{"execution":{"taskSupport":"required"}}`)
	g, err := proxy.New(proxy.Options{
		Identifier: b, Policy: b, Limiter: b, Tickets: b, Waiter: b, Recorder: b, Book: b, Servers: b,
		Upstreams: upstreams{bench: b.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher, &required)},
		Settings:  proxy.Settings{ConsoleURL: consoleURL, Hold: new(time.Duration(0))},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Gate = g
	return b
}

// Decide judges calls by what is set, and lets everything else pass that is not
// denied.
func (b *taskGate) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	d, err := b.bench.Decide(ctx, in)
	if in.Action != "" && d.Effect == policy.Hold {
		d = policy.Decision{Effect: policy.Allow, Rule: "R", Revision: "sha256:p"}
	}
	return d, err
}

func (b *taskGate) Claim(ctx context.Context, h approval.Held) (approval.Claim, error) {
	b.held = append(b.held, h)
	return b.bench.Claim(ctx, h)
}

func (b *taskGate) Wait(ctx context.Context, id string) error {
	b.waits(id)
	return ctx.Err()
}

func (b *taskGate) Offers(context.Context) []registry.Offer {
	return []registry.Offer{{Server: "web", Capabilities: json.RawMessage(`{"tasks":{"list":{}}}`)}}
}

func (b *taskGate) Ask(_ context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	b.asked = append(b.asked, server+" "+ask.Method)
	return json.RawMessage(b.answer), nil
}

func (b *taskGate) Notify(string, string, string, json.RawMessage) {}

const knows = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

func (b *taskGate) dig(t *testing.T, era, can, params string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := request(t, params)
	in.Era, in.Capabilities, in.Session = era, json.RawMessage(can), "s1"
	return b.Call(t.Context(), in)
}

// about relays a request about the task apr_1.
func (b *taskGate) about(t *testing.T, era, route, method, id string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := relayed(t, route, method, `{"taskId":"`+id+`"}`)
	in.Era, in.Session = era, "s2"
	return b.Relay(t.Context(), in)
}

func text(raw json.RawMessage, path ...string) string {
	for _, step := range path {
		raw, _ = jsonrpc.Get(raw, step)
	}
	if s, ok := jsonrpc.Text(raw); ok {
		return s
	}
	return string(raw)
}

const (
	sessions, rounds = "2025-11-25", "2026-07-28"
	taskWanted       = `{"name":"web__find","arguments":{"n":1},"task":{"ttl":60000}}`
)

// Who gets a task for a held call, and what of it becomes of the ticket.
func TestWhoGetsATaskForAHeldCall(t *testing.T) {
	pending, running := slip("apr_1", "ann", approval.StateProposed), slip("apr_1", "ann", approval.StateDispatching)
	done, denied := slip("apr_1", "ann", approval.StateDone), slip("apr_1", "ann", approval.StateDenied)
	for _, tt := range []struct {
		name, era, can, params string
		claim                  approval.Claim
		status                 string // "" = no task
		execute                bool
	}{
		{"asked for", sessions, "", taskWanted, approval.Claim{Ticket: pending, Outcome: approval.Pending}, "working", true},
		{"asked for, running", sessions, "", taskWanted, approval.Claim{Ticket: running, Outcome: approval.InFlight}, "working", true},
		{"asked for, done", sessions, "", taskWanted, approval.Claim{Ticket: done, Outcome: approval.Replay}, "completed", true},
		{"asked for, denied", sessions, "", taskWanted, approval.Claim{Ticket: denied, Outcome: approval.Denied}, "failed", true},
		{"asked for, granted", sessions, "", taskWanted, approval.Claim{Ticket: running, Outcome: approval.Granted}, "working", true},
		{"asked for, too many", sessions, "", taskWanted, approval.Claim{Outcome: approval.TooMany}, "", true},
		{"not asked for", sessions, knows, plain, approval.Claim{Ticket: pending, Outcome: approval.Pending}, "", false},
		{"a task at its server", sessions, "", strings.Replace(taskWanted, "find", "slow", 1), approval.Claim{Ticket: pending, Outcome: approval.Pending}, "", false},
		{"known", rounds, knows, plain, approval.Claim{Ticket: pending, Outcome: approval.Pending}, "working", true},
		{"known, granted", rounds, knows, plain, approval.Claim{Ticket: running, Outcome: approval.Granted}, "", true},
		{"known, done", rounds, knows, plain, approval.Claim{Ticket: done, Outcome: approval.Replay}, "", true},
		{"not known", rounds, "{}", plain, approval.Claim{Ticket: pending, Outcome: approval.Pending}, "", false},
	} {
		b := newTaskGate(t)
		b.claim = tt.claim
		reply, f := b.dig(t, tt.era, tt.can, tt.params)
		state := json.RawMessage(nil)
		if f == nil {
			state = reply.Result
			if text(state, "resultType") != "task" {
				state, _ = jsonrpc.Get(state, "task")
			}
		}
		if status := text(state, "status"); status != tt.status || len(b.held) != 1 || b.held[0].Execute != tt.execute {
			t.Errorf("%s: status %q, held %+v, %v", tt.name, status, b.held, f)
		}
		if tt.status == "" {
			continue
		}
		if text(state, "taskId") != "apr_1" || !strings.Contains(string(reply.Result), `"io.toolgate/approval"`) || len(b.sent) > 0 || len(b.outcomes) != 1 {
			t.Errorf("%s: %s, sent %v", tt.name, reply.Result, b.sent)
		}
		if granted := tt.claim.Outcome == approval.Granted; granted != (len(b.released) == 1) {
			t.Errorf("%s: released %v", tt.name, b.released)
		}
	}
}

// The state of a task is that of its ticket, in the words of either revision.
func TestTasksThatAreTickets(t *testing.T) {
	failed := slip("apr_1", "ann", approval.StateDone)
	failed.Result = json.RawMessage(`{"content":[],"isError":true}`)
	for _, tt := range []struct {
		ticket           approval.Ticket
		sessions, rounds string
		code             string // of tasks/result
	}{
		{slip("apr_1", "ann", approval.StateDenied), "failed", "completed", signal.CodeApprovalDenied},
		{slip("apr_1", "ann", approval.StateExpired), "failed", "completed", signal.CodeApprovalExpired},
		{slip("apr_1", "ann", approval.StateFailed), "failed", "completed", signal.CodeToolFailed},
		{slip("apr_1", "ann", approval.StateUnknown), "failed", "completed", signal.CodeToolFailed},
		{slip("apr_1", "ann", approval.StateSuperseded), "cancelled", "cancelled", signal.CodeApprovalExpired},
		{slip("apr_1", "ann", approval.StateDone), "completed", "completed", ""},
		{failed, "failed", "completed", ""},
		{slip("apr_1", "ann", approval.StateProposed), "working", "working", "-"},
		{slip("apr_1", "ann", approval.StateApproved), "working", "working", "-"},
		{slip("apr_1", "ann", approval.StateDispatching), "working", "working", "-"},
	} {
		b := newTaskGate(t, tt.ticket)
		reply, f := b.about(t, sessions, "", "tasks/get", "apr_1")
		if f != nil || text(reply.Result, "status") != tt.sessions || text(reply.Result, "ttl") != "1000000000000" || text(reply.Result, "result") != "" {
			t.Fatalf("%s in %s: %v, %v", tt.ticket.State, sessions, reply, f)
		}
		reply, f = b.about(t, rounds, "web", "tasks/get", "apr_1")
		if f != nil || text(reply.Result, "status") != tt.rounds || text(reply.Result, "ttlMs") != "1000000000000" {
			t.Fatalf("%s in %s: %v, %v", tt.ticket.State, rounds, reply, f)
		}
		if inline := text(reply.Result, "result", "resultType"); (inline == "complete") != (tt.rounds == "completed") {
			t.Errorf("%s: its result is %s", tt.ticket.State, text(reply.Result, "result"))
		}
		if made := strings.Contains(string(reply.Result), "paid"); made != (tt.ticket.State == approval.StateDone && tt.ticket.Note != "" && len(failed.Result) != len(tt.ticket.Result)) {
			t.Errorf("%s: %s", tt.ticket.State, reply.Result)
		}
		if tt.code == "-" {
			continue
		}
		reply, f = b.about(t, sessions, "", "tasks/result", "apr_1")
		if tt.code != "" {
			if f == nil || f.Kernel.Code != tt.code || f.Plain {
				t.Errorf("the result of %s: %v, %v", tt.ticket.State, reply, f)
			}
		} else if f != nil || text(reply.Result, "_meta", "io.modelcontextprotocol/related-task", "taskId") != "apr_1" {
			t.Errorf("the result of %s: %v, %v", tt.ticket.State, reply, f)
		}
		if len(b.asked) > 0 || len(b.sent) > 0 {
			t.Errorf("%s: servers were asked %v, %v", tt.ticket.State, b.asked, b.sent)
		}
		for _, r := range b.decisions {
			if r.Ticket != "apr_1" || r.Server != "web" || r.Exposed != "web__find" {
				t.Errorf("%s: recorded %+v", tt.ticket.State, r)
			}
		}
	}
}

// tasks/result waits until the call came to something, or nobody wants it.
func TestTheResultOfATaskIsWaitedFor(t *testing.T) {
	b := newTaskGate(t, slip("apr_1", "ann", approval.StateProposed))
	b.waits = func(string) { b.tickets[0].State = approval.StateDone }
	if reply, f := b.about(t, sessions, "", "tasks/result", "apr_1"); f != nil || !strings.Contains(string(reply.Result), "paid") {
		t.Errorf("got %v, %v", reply, f)
	}
	for _, state := range []approval.State{approval.StateProposed, approval.StateDispatching} {
		b = newTaskGate(t, slip("apr_1", "ann", state))
		ctx, stop := context.WithCancel(t.Context())
		stop()
		in := relayed(t, "", "tasks/result", `{"taskId":"apr_1"}`)
		if _, f := b.Relay(ctx, in); f == nil || f.Kernel.Code != signal.CodeCancelled {
			t.Errorf("%s: %v", state, f)
		}
	}
}

// A ticket is a task of its principal's, in any session, and of nobody else's;
// one of another, of another road and one that never was look alike. The policy is
// not asked about them, only about what their calls came to.
func TestWhoseTaskATicketIs(t *testing.T) {
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"} {
		b := newTaskGate(t, slip("apr_1", "ann", approval.StateProposed), slip("apr_2", "bob", approval.StateProposed))
		var refusals []string
		for _, at := range [][2]string{{"", "apr_2"}, {"", "apr_9"}, {"other", "apr_1"}} {
			_, f := b.about(t, sessions, at[0], method, at[1])
			if f == nil || f.Kernel.Code != signal.CodeNotFound {
				t.Fatalf("%s of %v: %v", method, at, f)
			}
			refusals = append(refusals, f.Reason+f.Remedy)
		}
		if refusals[0] != refusals[1] || refusals[0] != refusals[2] || len(b.ended) > 0 || len(b.asked) > 0 {
			t.Errorf("%s: %v, ended %v, asked %v", method, refusals, b.ended, b.asked)
		}
	}
	for _, at := range [][2]string{{sessions, "tasks/result"}, {rounds, "tasks/get"}} {
		b := newTaskGate(t, slip("apr_1", "ann", approval.StateDone))
		b.decision = policy.Decision{Effect: policy.Deny, Rule: "no"}
		if _, f := b.about(t, at[0], "", at[1], "apr_1"); f == nil || f.Kernel.Code != signal.CodePolicyDenied {
			t.Errorf("a result that is denied by now, with %s: %v", at[1], f)
		}
		if r := b.outcomes[0]; r.Policy.Effect != "deny" || r.Policy.Rule != "no" {
			t.Errorf("recorded %+v", r.Policy)
		}
	}
}

// A task is withdrawn by the one who began it, while nothing has been made of it.
func TestTasksAreWithdrawn(t *testing.T) {
	for _, tt := range []struct {
		state  approval.State
		era    string
		answer string // "" = refused
		ended  bool
	}{
		{approval.StateProposed, sessions, "cancelled", true},
		{approval.StateApproved, sessions, "cancelled", true},
		{approval.StateDispatching, sessions, "", false},
		{approval.StateDone, sessions, "", false},
		{approval.StateProposed, rounds, "{}", true},
		{approval.StateDispatching, rounds, "{}", false},
	} {
		b := newTaskGate(t, slip("apr_1", "ann", tt.state))
		reply, f := b.about(t, tt.era, "", "tasks/cancel", "apr_1")
		got := ""
		if f == nil {
			got = string(reply.Result)
			if status := text(reply.Result, "status"); status != "" {
				got = status
			}
		} else if f.Kernel.Code != signal.CodeEnvelopeParams {
			t.Errorf("%s: %v", tt.state, f)
		}
		if got != tt.answer || (len(b.ended) == 1) != tt.ended || tt.ended && b.ended[0] != "apr_1 ann" {
			t.Errorf("%s in %s: %q, ended %v", tt.state, tt.era, got, b.ended)
		}
	}
}

// A list of tasks begins with the tickets that run without their agent; where the
// server of the road has no tasks they are all there is.
func TestTicketsAmongTasks(t *testing.T) {
	mine, passive, theirs := slip("apr_1", "ann", approval.StateProposed), slip("apr_2", "ann", approval.StateProposed), slip("apr_3", "bob", approval.StateProposed)
	mine.Execute, theirs.Execute = true, true
	for _, tt := range []struct {
		name, route, answer, params string
		want                        []string
	}{
		{"all servers", "", `{"tasks":[]}`, `{}`, []string{"apr_1"}},
		{"one server", "web", `{"tasks":[]}`, `{}`, []string{"apr_1"}},
		{"a server without tasks", "web", `7`, `{}`, []string{"apr_1"}},
		{"another server", "other", `{"tasks":[]}`, `{}`, nil},
	} {
		b := newTaskGate(t, mine, passive, theirs)
		b.answer = tt.answer
		in := relayed(t, tt.route, "tasks/list", tt.params)
		in.Era, in.Session = sessions, "s1"
		page, f := b.Enumerate(t.Context(), in, b.who)
		if f != nil {
			t.Fatalf("%s: %v", tt.name, f)
		}
		var got []string
		list, _ := jsonrpc.Get(page, "tasks")
		for e := range jsonrpc.Elements(list) {
			got = append(got, text(e, "taskId"))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}
