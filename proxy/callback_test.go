package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// client is the far end of a door: what it is asked, told, and says.
type client struct {
	mu     sync.Mutex // protects the fields below
	rounds [][]string // the methods and params of each round
	told   []string
	says   func(q registry.Question) registry.Answer
	fewer  bool // leaves the last answer out
	panics bool
}

func (c *client) Ask(_ context.Context, round []registry.Question) []registry.Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.panics {
		panic("planted in the door")
	}
	var asked []string
	var answers []registry.Answer
	for _, q := range round {
		asked = append(asked, strings.TrimSpace(q.Method+" "+string(q.Params)))
		answers = append(answers, c.says(q))
	}
	c.rounds = append(c.rounds, asked)
	if c.fewer {
		answers = answers[:len(answers)-1]
	}
	return answers
}

func (c *client) Tell(method string, params json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, strings.TrimSpace(method+" "+string(params)))
}

// askingServer is a library whose server sends questions and notifications during a call.
type askingServer struct {
	*library
	client, home *client
	during       func(ctx context.Context, from registry.Downstream) // what the server does while it is called
}

const everything = `{"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{}}`

func newAskingServer(t *testing.T) *askingServer {
	t.Helper()
	echo := func(q registry.Question) registry.Answer {
		return registry.Answer{Result: json.RawMessage(`{"to": "` + q.Method + `","n":1e2}`)}
	}
	i := &askingServer{library: newLibrary(t), client: &client{says: echo}, home: &client{says: echo}}
	g, err := proxy.New(proxy.Options{Identifier: i, Policy: i.library, Limiter: i, Tickets: i, Recorder: i, Servers: i, Stops: &i.brake,
		Upstreams: i, Settings: proxy.Settings{Methods: map[string][]string{"web": {"vendor/thing", "notifications/vendor/thing"}}}})
	if err != nil {
		t.Fatal(err)
	}
	i.Gate = g
	return i
}

func (i *askingServer) View(_ context.Context, route string, from registry.Downstream) registry.View {
	if i.listed != nil {
		i.listed(from)
	}
	return registry.NewCatalogue([]string{"web"}, searcher).View(route)
}

func (i *askingServer) Forward(ctx context.Context, _ *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	if i.during != nil {
		i.during(ctx, out.From)
	}
	return json.RawMessage(i.bench.result), i.forwardErr
}

// ask has the server ask a round of questions in the course of a call.
func (i *askingServer) ask(t *testing.T, capabilities string, round ...registry.Question) (answers []registry.Answer) {
	t.Helper()
	i.during = func(ctx context.Context, from registry.Downstream) { answers = from.Peer.Ask(ctx, round) }
	i.callAs(t, capabilities)
	return answers
}

func (i *askingServer) callAs(t *testing.T, capabilities string) {
	t.Helper()
	in := request(t, plain)
	in.Session, in.Era, in.Peer, in.Home = "ses_1", "2025-11-25", i.client, i.home
	in.Capabilities = json.RawMessage(capabilities)
	if _, f := i.Call(t.Context(), in); f != nil {
		t.Fatal(f)
	}
}

func question(method, params string) registry.Question {
	q := registry.Question{Method: method}
	if params != "" {
		q.Params = json.RawMessage(params)
	}
	return q
}

// What a server asks reaches the client byte for byte, but that an elicitation says
// which server asks. It is judged and recorded as what it is, and answered byte for
// byte.
func TestQuestions(t *testing.T) {
	for _, tt := range []struct{ method, params, arguments, asked string }{
		{"sampling/createMessage", `{ "messages": [], "maxTokens": 1e2, "_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}`, "", ""},
		{"sampling/createMessage", `{"messages":[],"tools":[]}`, "", ""},
		{"elicitation/create", `{"message":"who?","requestedSchema":{}}`, "", `{"message":"web asks: who?","requestedSchema":{}}`},
		{"elicitation/create", `{"mode":"form","message":"who?"}`, "", `{"mode":"form","message":"web asks: who?"}`},
		{"elicitation/create", `{"mode":"url","url":"https://a"}`, "", `{"mode":"url","url":"https://a","message":"web asks"}`},
		{"roots/list", "", "{}", ""},
	} {
		i := newAskingServer(t)
		q := question(tt.method, tt.params)
		q.Key = "k"
		answers := i.ask(t, everything, q)
		if want := `{"to": "` + tt.method + `","n":1e2}`; len(answers) != 1 || string(answers[0].Result) != want || answers[0].Error != nil {
			t.Errorf("%s: answered %s", tt.method, answers)
		}
		asked := tt.asked
		if asked == "" {
			asked = tt.params
		}
		if diff := cmp.Diff([][]string{{strings.TrimSpace(tt.method + " " + asked)}}, i.client.rounds); diff != "" {
			t.Errorf("%s asked (-want +got):\n%s", tt.method, diff)
		}
		if tt.arguments == "" {
			tt.arguments = tt.params
		}
		got := i.inputs[1] // after that of the call
		want := policy.Input{Action: tt.method, Principal: i.who, Server: &policy.Server{Name: "web", Asks: tt.method}, Arguments: json.RawMessage(tt.arguments)}
		if got.Request.Transport != "http" || got.Request.Era != "2025-11-25" || got.Request.ID != "k" {
			t.Errorf("%s: judged request %+v", tt.method, got.Request)
		}
		got.Request = policy.Request{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s judged (-want +got):\n%s", tt.method, diff)
		}
		call, d, o := i.decisions[0], i.decisions[1], i.outcomes[0] // the call is closed after its question
		if d.Method != tt.method || d.Server != "web" || d.ParentID != call.CallID || d.TraceID != call.TraceID || d.CallID == call.CallID ||
			d.Session != "ses_1" || string(d.Arguments) != tt.arguments {
			t.Errorf("%s: decision record %+v", tt.method, d)
		}
		if o.Outcome != audit.Allowed || o.DecisionID != d.DecisionID || o.ParentID != call.CallID || o.ResultBytes == 0 || o.ResultTokens != (o.ResultBytes+3)/4 {
			t.Errorf("%s: outcome record %+v", tt.method, o)
		}
	}
}

// Each row breaks one control. What was refused before forward has reached no
// client, leaves exactly one outcome record and tells the server no reason.
func TestEveryCallbackStageRefuses(t *testing.T) {
	const sampling = "sampling/createMessage"
	for _, tt := range []struct {
		name, capabilities, method, params string
		set                                func(*askingServer)
		code, stage                        string
		rpc                                string
		asked                              bool
	}{
		{name: "a method without a row", method: "vendor/thing", code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "ping", method: "ping", code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "no capabilities", capabilities: "{}", method: sampling, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "a capability that is no object", capabilities: `{"sampling":true}`, method: sampling, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "sampling with tools", capabilities: `{"sampling":{}}`, method: sampling, params: `{"tools":[]}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "sampling that chooses tools", capabilities: `{"sampling":{}}`, method: sampling, params: `{"toolChoice":{}}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "a task", method: sampling, params: `{"task":{}}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "no elicitation", capabilities: `{"sampling":{}}`, method: "elicitation/create", code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "a url for a client of forms", capabilities: `{"elicitation":{}}`, method: "elicitation/create", params: `{"mode":"url"}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "a form for a client of urls", capabilities: `{"elicitation":{"url":{}}}`, method: "elicitation/create", params: `{}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "a mode that nobody knows", method: "elicitation/create", params: `{"mode":"moon"}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "an elicitation as a task", method: "elicitation/create", params: `{"task":{}}`, code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "no roots", capabilities: `{}`, method: "roots/list", code: signal.CodeEnvelopeMethod, stage: "receive", rpc: "-32601"},
		{name: "denied", method: sampling, set: func(i *askingServer) { i.refuses = sampling }, code: signal.CodePolicyDenied, stage: "decide", rpc: "-32600"},
		{name: "held", method: sampling, set: func(i *askingServer) { i.holds = sampling }, code: signal.CodePolicyDenied, stage: "decide", rpc: "-32600"},
		{name: "over the limit", method: sampling, set: func(i *askingServer) { i.exceeds = sampling }, code: signal.CodeRateLimited, stage: "limit", rpc: "-32001"},
		{name: "no record", method: sampling, set: func(i *askingServer) { i.unrecorded = sampling }, code: signal.CodeAuditUnavailable, stage: "record", rpc: "-32603"},
		{name: "the client refuses", method: sampling, asked: true, set: func(i *askingServer) {
			i.client.says = func(registry.Question) registry.Answer {
				return registry.Answer{Error: json.RawMessage(`{"code": -1,"message":"no"}`)}
			}
		}, code: signal.CodeToolFailed, stage: "forward", rpc: "-1"},
		{name: "the client's answer is no object", method: sampling, asked: true, set: func(i *askingServer) {
			i.client.says = func(registry.Question) registry.Answer { return registry.Answer{Result: json.RawMessage(`[]`)} }
		}, code: signal.CodeOutputInvalid, stage: "forward", rpc: "-32603"},
		{name: "the door leaves it out", method: sampling, asked: true, set: func(i *askingServer) { i.client.fewer = true }, code: signal.CodeOutputInvalid, stage: "forward", rpc: "-32603"},
		{name: "the door panics", method: sampling, set: func(i *askingServer) { i.client.panics = true }, code: signal.CodeInternal, stage: "forward", rpc: "-32603"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newAskingServer(t)
			if tt.set != nil {
				tt.set(i)
			}
			if tt.capabilities == "" {
				tt.capabilities = everything
			}
			answers := i.ask(t, tt.capabilities, question(tt.method, tt.params))
			if len(answers) != 1 || answers[0].Result != nil {
				t.Fatalf("answered %s", answers)
			}
			var rpc struct {
				Code    json.Number
				Message string
			}
			if err := json.Unmarshal(answers[0].Error, &rpc); err != nil || rpc.Code.String() != tt.rpc || rpc.Message == "" {
				t.Errorf("answered %s, want code %s", answers[0].Error, tt.rpc)
			}
			if strings.Contains(string(answers[0].Error), "secret reason") {
				t.Errorf("the server learns why: %s", answers[0].Error)
			}
			if asked := len(i.client.rounds) > 0; asked != tt.asked {
				t.Errorf("reached the client: %v", i.client.rounds)
			}
			if len(i.outcomes) != 2 || i.outcomes[0].Code != tt.code || i.outcomes[0].Stage != tt.stage || i.outcomes[0].Method != tt.method {
				t.Errorf("records %+v, want %s at %s and the call's", i.outcomes, tt.code, tt.stage)
			}
		})
	}
}

// The questions of a round that are let pass go to the client together; each is
// answered in its place.
func TestARoundOfQuestions(t *testing.T) {
	i := newAskingServer(t)
	i.refuses = "elicitation/create"
	answers := i.ask(t, everything, question("roots/list", ""), question("elicitation/create", "{}"), question("nope", ""), question("sampling/createMessage", "{}"))
	if diff := cmp.Diff([][]string{{"roots/list", "sampling/createMessage {}"}}, i.client.rounds); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	var got []string
	for _, a := range answers {
		got = append(got, string(a.Result))
	}
	want := []string{`{"to": "roots/list","n":1e2}`, "", "", `{"to": "sampling/createMessage","n":1e2}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if len(i.outcomes) != 5 {
		t.Errorf("records %+v", i.outcomes)
	}
}

// A panic about one question is the end of that question.
func TestAPanicIsOneQuestion(t *testing.T) {
	i := newAskingServer(t)
	i.library.panics = "elicitation/create"
	answers := i.ask(t, everything, question("elicitation/create", "{}"), question("roots/list", ""))
	if answers[0].Result != nil || strings.Contains(string(answers[0].Error), "planted") || string(answers[1].Result) != `{"to": "roots/list","n":1e2}` {
		t.Errorf("answered %s", answers)
	}
	if len(i.outcomes) != 3 || i.outcomes[0].Code != signal.CodeInternal || i.outcomes[0].Stage != "decide" {
		t.Errorf("records %+v", i.outcomes)
	}
}

// Listing roots costs no quota.
func TestFreeQuestions(t *testing.T) {
	i := newAskingServer(t)
	i.exceeds = "roots/list"
	if answers := i.ask(t, everything, question("roots/list", "")); answers[0].Error != nil {
		t.Errorf("answered %s", answers[0].Error)
	}
}

// What the policy wants redacted does not reach the server.
func TestAnswersAreRedacted(t *testing.T) {
	i := newAskingServer(t)
	i.decision.Redact = []string{"/n"}
	if answers := i.ask(t, everything, question("roots/list", "")); string(answers[0].Result) != `{"to": "roots/list","n":"[redacted]"}` {
		t.Errorf("answered %s", answers[0].Result)
	}
}

// A question that belongs to no call goes to the session's own end, and is
// judged for whoever handed that end down.
func TestQuestionsOfNoCall(t *testing.T) {
	i := newAskingServer(t)
	var home registry.Peer
	i.during = func(_ context.Context, from registry.Downstream) { home = from.Home }
	i.callAs(t, everything)
	i.who = policy.Principal{Subject: "bob"}
	if answers := home.Ask(t.Context(), []registry.Question{question("roots/list", "")}); answers[0].Error != nil {
		t.Fatalf("answered %s", answers[0].Error)
	}
	if len(i.home.rounds) != 1 || len(i.client.rounds) != 0 {
		t.Errorf("asked at home %v, in the call %v", i.home.rounds, i.client.rounds)
	}
	call, d := i.decisions[0], i.decisions[1]
	if d.ParentID != "" || d.TraceID == call.TraceID || d.Principal.Subject != "ann" {
		t.Errorf("decision record %+v", d)
	}
}

// A server whose name is not known asks and tells nothing; the registry names
// it where one Downstream stands for several.
func TestAServerWithoutAName(t *testing.T) {
	i := newAskingServer(t)
	var from registry.Downstream
	i.during = func(context.Context, registry.Downstream) {}
	i.listed = func(got registry.Downstream) { from = got }
	in := &proxy.Call{Transport: "http", Session: "ses_1", Home: i.home, Capabilities: json.RawMessage(everything)}
	i.List(t.Context(), in, i.who)
	round := []registry.Question{question("roots/list", "")}
	if answers := from.Home.Ask(t.Context(), round); answers[0].Error == nil || len(i.home.rounds) != 0 {
		t.Errorf("a nameless server was answered %s", answers)
	}
	from.Home.Tell("notifications/message", nil)
	if len(i.home.told) != 0 {
		t.Errorf("a nameless server told %v", i.home.told)
	}
	named := from.Home.(interface{ For(string) registry.Peer }).For("web")
	if answers := named.Ask(t.Context(), round); answers[0].Error != nil {
		t.Errorf("answered %s", answers[0].Error)
	}
}

// Without an end of the client's there is nobody to ask, and the road says so.
func TestNobodyToAsk(t *testing.T) {
	i := newAskingServer(t)
	i.during = func(_ context.Context, from registry.Downstream) {
		if from.Peer != nil || from.Home != nil {
			t.Errorf("got %v, %v", from.Peer, from.Home)
		}
	}
	if _, f := i.call(t, plain); f != nil {
		t.Fatal(f)
	}
}

// A server that no longer waits gets no answer, and the record says so.
func TestAServerThatNoLongerWaits(t *testing.T) {
	i := newAskingServer(t)
	i.during = func(ctx context.Context, from registry.Downstream) {
		ctx, stop := context.WithCancel(ctx)
		i.client.says = func(registry.Question) registry.Answer {
			stop()
			return registry.Answer{Error: json.RawMessage(`{"code":1,"message":"late"}`)}
		}
		from.Peer.Ask(ctx, []registry.Question{question("roots/list", "")})
	}
	i.callAs(t, everything)
	if i.outcomes[0].Outcome != audit.Cancelled {
		t.Errorf("records %+v", i.outcomes[0])
	}
}

// Too many questions at once are refused.
func TestQuestionsOverload(t *testing.T) {
	i := newAskingServer(t)
	i.Apply(proxy.Settings{InFlight: 2})
	var inner []registry.Answer
	i.during = func(ctx context.Context, from registry.Downstream) {
		two := []registry.Question{question("roots/list", ""), question("roots/list", "")}
		i.client.says = func(registry.Question) registry.Answer {
			if inner == nil {
				inner = from.Home.Ask(ctx, two)
			}
			return registry.Answer{Result: json.RawMessage("{}")}
		}
		for _, a := range from.Peer.Ask(ctx, two) {
			if a.Error != nil {
				t.Errorf("answered %s", a.Error)
			}
		}
	}
	i.callAs(t, everything)
	if inner == nil || inner[0].Error == nil || len(i.home.rounds) != 0 {
		t.Errorf("the third and fourth were answered %s", inner)
	}
}

// A notification of a server's passes when a row names it, or the operator did.
func TestNotificationsOfServers(t *testing.T) {
	for _, tt := range []struct {
		method string
		passes bool
	}{
		{"notifications/message", true},
		{"notifications/resources/updated", true},
		{"notifications/resources/list_changed", true},
		{"notifications/prompts/list_changed", true},
		{"notifications/elicitation/complete", true},
		{"notifications/vendor/thing", true},
		{"notifications/vendor/other", false},
		{"notifications/progress", false},
		{"notifications/cancelled", false},
		{"vendor/thing", false},
		{"tools/call", false},
	} {
		i := newAskingServer(t)
		i.during = func(_ context.Context, from registry.Downstream) {
			from.Peer.Tell(tt.method, json.RawMessage(`{"a": 1e2}`))
			from.Home.Tell(tt.method, nil)
		}
		i.callAs(t, everything)
		var call, home []string
		if tt.passes {
			call, home = []string{tt.method + ` {"a": 1e2}`}, []string{tt.method}
		}
		if diff := cmp.Diff([][]string{call, home}, [][]string{i.client.told, i.home.told}); diff != "" {
			t.Errorf("%s told (-want +got):\n%s", tt.method, diff)
		}
	}
}

func (i *askingServer) notify(t *testing.T, route, method, params string) *proxy.Failure {
	t.Helper()
	in := relayed(t, route, method, params)
	in.Message.Kind, in.Message.ID = notification, nil
	return i.Gate.Notify(t.Context(), in)
}

// A notification of a client's reaches the servers of its session when a row
// names it; one of an extension is judged first.
func TestNotificationsOfClients(t *testing.T) {
	for _, tt := range []struct {
		name, route, method string
		set                 func(*askingServer)
		sent                []string
		records             int
	}{
		{name: "roots", route: "web", method: "notifications/roots/list_changed", sent: []string{"web s1 notifications/roots/list_changed {}"}},
		{name: "roots, to all servers", method: "notifications/roots/list_changed", sent: []string{" s1 notifications/roots/list_changed {}"}},
		{name: "roots of nobody", route: "web", method: "notifications/roots/list_changed", set: func(i *askingServer) { i.whoErr = errors.New("down") }},
		{name: "an extension", route: "web", method: "notifications/vendor/thing", sent: []string{"web s1 notifications/vendor/thing {}"}, records: 1},
		{name: "an extension, to all servers", method: "notifications/vendor/thing"},
		{name: "an extension that is denied", route: "web", method: "notifications/vendor/thing", set: func(i *askingServer) { i.refuses = "notifications/vendor/thing" }, records: 1},
		{name: "an extension over the limit", route: "web", method: "notifications/vendor/thing", set: func(i *askingServer) { i.exceeds = "notifications/vendor/thing" }, records: 1},
		{name: "an extension without a record", route: "web", method: "notifications/vendor/thing", set: func(i *askingServer) { i.unrecorded = "notifications/vendor/thing" }, records: 1},
		{name: "an extension of nobody", route: "web", method: "notifications/vendor/thing", set: func(i *askingServer) { i.whoErr = errors.New("down") }, records: 1},
		{name: "what nobody named", route: "web", method: "notifications/vendor/other"},
		{name: "a request", route: "web", method: "vendor/thing"},
		{name: "what the door answers", route: "web", method: "notifications/cancelled"},
	} {
		i := newAskingServer(t)
		if tt.set != nil {
			tt.set(i)
		}
		f := i.notify(t, tt.route, tt.method, `{}`)
		if (f == nil) != (tt.sent != nil) {
			t.Errorf("%s: %v", tt.name, f)
		}
		if diff := cmp.Diff(tt.sent, i.noted); diff != "" {
			t.Errorf("%s sent (-want +got):\n%s", tt.name, diff)
		}
		if len(i.outcomes) != tt.records {
			t.Errorf("%s: records %+v", tt.name, i.outcomes)
		}
	}
}

// A method of an extension is relayed on the route of the server that the
// operator named it for, and judged by its own name.
func TestMethodsOfExtensions(t *testing.T) {
	i := newAskingServer(t)
	reply, f := i.Relay(t.Context(), relayed(t, "web", "vendor/thing", `{"a": 1e2}`))
	if f != nil || string(reply.Result) != i.library.result {
		t.Fatalf("got %v, %v", reply, f)
	}
	if diff := cmp.Diff([]string{`web vendor/thing {"a": 1e2}`}, i.asked); diff != "" {
		t.Error(diff)
	}
	got := i.inputs[0]
	if got.Action != "vendor/thing" || got.Server == nil || got.Server.Name != "web" || got.Server.Tools != nil || string(got.Arguments) != `{"a": 1e2}` {
		t.Errorf("judged %+v", got)
	}
	for _, tt := range []struct{ route, method string }{{"web", "vendor/other"}, {"other", "vendor/thing"}, {"", "vendor/thing"}, {"web", "notifications/vendor/thing"}} {
		if _, f := i.Relay(t.Context(), relayed(t, tt.route, tt.method, `{}`)); f == nil || f.Kernel.Code != signal.CodeEnvelopeMethod {
			t.Errorf("%s at %q: %v", tt.method, tt.route, f)
		}
	}
	i.exceeds = "vendor/thing"
	if _, f := i.Relay(t.Context(), relayed(t, "web", "vendor/thing", `{}`)); f == nil || f.Kernel.Code != signal.CodeRateLimited {
		t.Errorf("over the limit: %v", f)
	}
}

var errDisk = errors.New("disk full")

// Spend refuses what the bench says, and one method.
func (l *library) Spend(now time.Time, p policy.Principal, t policy.Tool, extra *policy.Limit) *limit.Exceeded {
	if l.exceeds != "" && t.Exposed == l.exceeds {
		return &limit.Exceeded{RetryAfter: time.Second, Limit: "secret reason"}
	}
	return l.bench.Spend(now, p, t, extra)
}

// Write fails for the decisions about one method.
func (l *library) Write(kind audit.Kind, r *audit.Record) error {
	if kind == audit.KindDecision && l.unrecorded != "" && r.Method == l.unrecorded {
		return errDisk
	}
	return l.bench.Write(kind, r)
}

// A server that wants a person to do something first, and says so in an error,
// asks as if it did so by a request of its own.
func TestElicitationInPlaceOfAResult(t *testing.T) {
	const one, two = `{"mode":"url","elicitationId":"1", "url":"https://a"}`, `{"mode":"url","elicitationId":"2","url":"https://b"}`
	asks := func(list string) string {
		return `{"code":-32042,"message":"sign in", "data":{"elicitations":` + list + `,"x":1e2}}`
	}
	for _, tt := range []struct {
		name, capabilities, rpc string
		set                     func(*askingServer)
		want                    string // what reaches the client, "" = nothing of it
		judged                  int
	}{
		{name: "permitted", rpc: asks(`[` + one + `,` + two + `]`), want: asks(`[` + one + `,` + two + `]`), judged: 2},
		{name: "one is no url", rpc: asks(`[{"mode":"moon"},` + two + `]`), want: asks(`[` + two + `]`), judged: 2},
		{name: "denied", rpc: asks(`[` + one + `]`), set: func(i *askingServer) { i.refuses = "elicitation/create" }, judged: 1},
		{name: "over the limit", rpc: asks(`[` + one + `]`), set: func(i *askingServer) { i.exceeds = "elicitation/create" }, judged: 1},
		{name: "without a record", rpc: asks(`[` + one + `]`), set: func(i *askingServer) { i.unrecorded = "elicitation/create" }, judged: 1},
		{name: "a client that opens no urls", capabilities: `{"elicitation":{}}`, rpc: asks(`[` + one + `]`), judged: 1},
		{name: "nothing asked", rpc: `{"code":-32042,"message":"?"}`},
		{name: "another error", rpc: `{"code":-32041,"message":"no","data":{"elicitations":[]}}`, want: `{"code":-32041,"message":"no","data":{"elicitations":[]}}`},
	} {
		for _, relay := range []bool{false, true} {
			i := newAskingServer(t)
			if tt.set != nil {
				tt.set(i)
			}
			err := &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(tt.rpc)}
			in, road := request(t, plain), i.Call
			if relay {
				in, road = relayed(t, "web", "resources/read", `{"uri":"file:///a"}`), i.Relay
			}
			i.forwardErr, i.library.err = err, err
			if in.Capabilities = json.RawMessage(tt.capabilities); tt.capabilities == "" {
				in.Capabilities = json.RawMessage(everything)
			}
			_, f := road(t.Context(), in)
			want := tt.want
			if !relay { // where all servers are, the question says who asks
				want = strings.NewReplacer(`"https://a"`, `"https://a","message":"web asks"`, `"https://b"`, `"https://b","message":"web asks"`).Replace(want)
			}
			if f == nil || f.Kernel.Code != signal.CodeToolFailed || string(f.Upstream) != want {
				t.Errorf("%s, relay %v: %v with %s\nwant %s", tt.name, relay, f, f.Upstream, want)
			}
			if len(i.outcomes) != 1+tt.judged {
				t.Errorf("%s, relay %v: records %+v", tt.name, relay, i.outcomes)
			}
			for _, o := range i.outcomes[:tt.judged] {
				if o.Method != "elicitation/create" || o.ParentID != i.outcomes[tt.judged].CallID || o.Server != "web" {
					t.Errorf("%s, relay %v: record %+v", tt.name, relay, o)
				}
			}
		}
	}
}
