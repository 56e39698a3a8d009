package proxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// worker is an askingServer whose servers answer by method; calls and requests come
// from sessions.
type worker struct {
	*askingServer
	now     time.Time
	tools   []*registry.Tool
	answers map[string]string // :: method ⇒ result
	begins  string            // what a tool call comes to
	tasks   []string          // the task member of each call
	later   bool              // the last one was handed who hears of its task
	kept    string            // the result of a held call
}

var digger = &registry.Tool{
	Server: "web", Name: "dig", Exposed: "web__dig", Fingerprint: "sha256:d", Timeout: time.Second, OutputMode: "enforce",
	Input: mustSchema(`{"type":"object"}`), Output: mustSchema(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`),
}

var miner = &registry.Tool{Server: "mine", Name: "dig", Exposed: "mine__dig", Fingerprint: "sha256:m", Timeout: time.Second, OutputMode: "off", Input: mustSchema(`{"type":"object"}`)}

func newWorker(t *testing.T) *worker {
	t.Helper()
	w := &worker{
		askingServer: newAskingServer(t), now: time.Unix(1e9, 0), tools: []*registry.Tool{digger, miner},
		answers: map[string]string{}, begins: `{"task":{"taskId":"t1","status":"working","ttl":60000},"x":1e2}`,
	}
	g, err := proxy.New(proxy.Options{
		Identifier: w, Policy: w.library, Limiter: w, Tickets: w, Recorder: w, Servers: w, Upstreams: w, Stops: &w.brake,
		Settings: proxy.Settings{Results: "off"}, Now: func() time.Time { return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Gate = g
	return w
}

func (w *worker) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return registry.NewCatalogue([]string{"web", "mine"}, w.tools...).View(route)
}

func (w *worker) Forward(ctx context.Context, _ *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	w.tasks, w.later = append(w.tasks, string(out.Task)), out.Later != nil
	if w.during != nil {
		w.during(ctx, out.From)
	}
	return growing(w.begins), nil
}

func (w *worker) Ask(_ context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	w.asked = append(w.asked, server+" "+ask.Method+" "+string(ask.Params))
	if answer, ok := w.answers[server+" "+ask.Method]; ok {
		return json.RawMessage(answer), nil
	}
	return json.RawMessage(w.answers[ask.Method]), nil
}

func (w *worker) Finish(_ context.Context, _ string, _ approval.State, result []byte, _ string) error {
	w.kept = string(result)
	return nil
}

func (w *worker) Offers(context.Context) []registry.Offer {
	can := json.RawMessage(`{"tasks":{"list":{}}}`)
	return []registry.Offer{{Server: "web", Capabilities: can}, {Server: "mine", Order: 1, Capabilities: can}}
}

const extension = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"sampling":{},"elicitation":{}}`

// dig calls a tool for a task in session.
func (w *worker) dig(t *testing.T, session, params string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := request(t, params)
	in.Session, in.Peer, in.Home, in.Capabilities = session, w.client, w.home, json.RawMessage(extension)
	return w.Call(t.Context(), in)
}

// about sends a request about a task in session.
func (w *worker) about(t *testing.T, session, route, method, params string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := relayed(t, route, method, params)
	in.Session, in.Peer, in.Capabilities = session, w.client, json.RawMessage(extension)
	return w.Relay(t.Context(), in)
}

const wanted = `{"name":"web__dig","arguments":{"n":1},"task":{"ttl": 6e4}}`

// Only a call that wants a task is reported on after its answer.
func TestWhatIsReportedOnLater(t *testing.T) {
	for params, want := range map[string]bool{wanted: true, `{"name":"web__dig","arguments":{"n":1}}`: false} {
		w := newWorker(t)
		in := request(t, params)
		in.Session, in.Later = "s1", func(json.RawMessage) {}
		w.Call(t.Context(), in)
		if len(w.tasks) != 1 || w.later != want {
			t.Errorf("%s: %d calls, handed on: %t", params, len(w.tasks), w.later)
		}
	}
}

// A call that wants a task sends and records its parameter, and its handle comes
// back byte for byte.
func TestACallBecomesATask(t *testing.T) {
	w := newWorker(t)
	reply, f := w.dig(t, "s1", wanted)
	if f != nil || string(reply.Result) != w.begins {
		t.Fatalf("got %v, %v", reply, f)
	}
	if diff := cmp.Diff([]string{`{"ttl": 6e4}`}, w.tasks); diff != "" {
		t.Error(diff)
	}
	if string(w.decisions[0].Task) != `{"ttl": 6e4}` || string(w.outcomes[0].Task) != `{"ttl": 6e4}` {
		t.Errorf("records %s, %s", w.decisions[0].Task, w.outcomes[0].Task)
	}
}

func TestTasksThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, session, params, begins string
		code                          string
		sent                          bool
	}{
		{name: "task is no object", session: "s1", params: `{"name":"web__dig","task":true}`, code: signal.CodeEnvelopeInvalid},
		{name: "no session", params: wanted, code: signal.CodeEnvelopeInvalid},
		{name: "a handle that nobody asked for", session: "s1", params: `{"name":"web__dig"}`, code: signal.CodeOutputInvalid, sent: true},
		{name: "no id", session: "s1", params: wanted, begins: `{"task":{"status":"working"}}`, code: signal.CodeOutputInvalid, sent: true},
		{name: "an id that is no string", session: "s1", params: wanted, begins: `{"task":{"taskId":1}}`, code: signal.CodeOutputInvalid, sent: true},
	} {
		w := newWorker(t)
		if tt.begins != "" {
			w.begins = tt.begins
		}
		_, f := w.dig(t, tt.session, tt.params)
		if f == nil || f.Kernel.Code != tt.code || (len(w.tasks) > 0) != tt.sent {
			t.Errorf("%s: %v, sent %v, want %s", tt.name, f, w.tasks, tt.code)
		}
	}
}

// A task can be asked after in its own session until it ends, on its own server's
// route, by its own principal; anything else is answered as one that never was.
func TestWhoseTaskItIs(t *testing.T) {
	for _, tt := range []struct {
		name, session, route, id string
		set                      func(*worker)
		known                    bool
	}{
		{name: "the session", session: "s1", id: "t1", known: true},
		{name: "the session, on the server's route", session: "s1", route: "web", id: "t1", known: true},
		{name: "near its end", session: "s1", id: "t1", set: func(w *worker) { w.now = w.now.Add(time.Minute - 1) }, known: true},
		{name: "another id", session: "s1", id: "t2"},
		{name: "another session", session: "s2", id: "t1"},
		{name: "no session", id: "t1"},
		{name: "another server's route", session: "s1", route: "mine", id: "t1"},
		{name: "another principal", session: "s1", id: "t1", set: func(w *worker) { w.who = policy.Principal{Subject: "bob"} }},
		{name: "another tenant", session: "s1", id: "t1", set: func(w *worker) { w.who.Tenant = "t" }},
		{name: "after its end", session: "s1", id: "t1", set: func(w *worker) { w.now = w.now.Add(time.Minute) }},
		{name: "after the session's end", session: "s1", id: "t1", set: func(w *worker) { w.EndSession("s1") }},
		{name: "after another session's end", session: "s1", id: "t1", set: func(w *worker) { w.EndSession("s2") }, known: true},
	} {
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"} {
			w := newWorker(t)
			w.answers[method] = `{"taskId":"t1","structuredContent":{"n":1},"content":[]}`
			if _, f := w.dig(t, "s1", wanted); f != nil {
				t.Fatal(f)
			}
			if tt.set != nil {
				tt.set(w)
			}
			_, f := w.about(t, tt.session, tt.route, method, `{"taskId":"`+tt.id+`"}`)
			if (f == nil) != tt.known || len(w.asked) > 0 != tt.known {
				t.Errorf("%s, %s: %v, asked %v, want %v", tt.name, method, f, w.asked, tt.known)
			}
			if f != nil && (f.Kernel.Code != signal.CodeNotFound || f.Reason != "no such task") {
				t.Errorf("%s, %s: %v says %q", tt.name, method, f, f.Reason)
			}
		}
	}
}

// Requests about a task are judged as what they are, recorded with the tool and
// the call that it came of, and answered byte for byte.
func TestRequestsAboutATask(t *testing.T) {
	for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
		w := newWorker(t)
		w.answers[method] = `{"taskId": "t1","status":"working","n":1e2}`
		if _, f := w.dig(t, "s1", wanted); f != nil {
			t.Fatal(f)
		}
		reply, f := w.about(t, "s1", "", method, `{"taskId": "t1"}`)
		if f != nil || string(reply.Result) != w.answers[method] {
			t.Fatalf("%s: %v, %v", method, reply, f)
		}
		if diff := cmp.Diff([]string{"web " + method + ` {"taskId": "t1"}`}, w.asked); diff != "" {
			t.Errorf("%s asked (-want +got):\n%s", method, diff)
		}
		got := w.inputs[1]
		want := policy.Input{Action: method, Principal: w.who, Server: &policy.Server{Name: "web", Tools: []string{"web__dig"}}, Arguments: json.RawMessage(`{"taskId": "t1"}`)}
		got.Request = policy.Request{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s judged (-want +got):\n%s", method, diff)
		}
		if o := w.outcomes[1]; o.Server != "web" || o.Tool != "dig" || o.Method != method || o.ParentID != w.outcomes[0].CallID {
			t.Errorf("%s: record %+v", method, o)
		}
		w.refuses = method
		if _, f := w.about(t, "s1", "", method, `{"taskId":"t1"}`); f == nil || f.Kernel.Code != signal.CodePolicyDenied || len(w.asked) != 1 {
			t.Errorf("%s, denied: %v, asked %v", method, f, w.asked)
		}
	}
}

// The result of a task is held to what its call was: the tool's output schema,
// and the redaction of the decision under which it was made.
func TestTheResultOfATask(t *testing.T) {
	const good = `{"content":[{"type":"text","text":"7"}],"structuredContent":{"n": 7,"s":"x"}}`
	for _, tt := range []struct {
		name, answer string
		redact       []string
		want         string // "" = withheld
	}{
		{name: "as it came", answer: good, want: good},
		{name: "redacted", answer: good, redact: []string{"/structuredContent/s"},
			want: `{"content":[{"type":"text","text":"{\"n\": 7,\"s\":\"[redacted]\"}"}],"structuredContent":{"n": 7,"s":"[redacted]"}}`},
		{name: "against the output schema", answer: `{"content":[],"structuredContent":{"n":"x"}}`},
		{name: "without structured content", answer: `{"content":[]}`},
		{name: "the tool's own failure", answer: `{"content":[],"isError":true}`, want: `{"content":[],"isError":true}`},
		{name: "no object", answer: `[]`},
	} {
		for method, wrap := range map[string]string{"tasks/result": "?", "tasks/get": `{"taskId":"t1","status":"completed","result":?}`} {
			w := newWorker(t)
			w.decision.Redact = tt.redact
			if _, f := w.dig(t, "s1", wanted); f != nil {
				t.Fatal(f)
			}
			w.decision.Redact = nil
			w.answers[method] = strings.Replace(wrap, "?", tt.answer, 1)
			reply, f := w.about(t, "s1", "", method, `{"taskId":"t1"}`)
			switch {
			case tt.want == "" && (f == nil || f.Kernel.Code != signal.CodeOutputInvalid):
				t.Errorf("%s, %s: %+v, %v, want it withheld", tt.name, method, reply, f)
			case tt.want != "" && (f != nil || string(reply.Result) != strings.Replace(wrap, "?", tt.want, 1)):
				t.Errorf("%s, %s: got %+v, %v\nwant %s", tt.name, method, reply, f, tt.want)
			}
		}
	}
}

// A server does not put one task in the place of another, and does not answer
// about another than was asked for.
func TestTasksAreNotConfused(t *testing.T) {
	w := newWorker(t)
	for i, params := range []string{wanted, wanted, strings.Replace(wanted, "web__", "mine__", 1)} {
		if _, f := w.dig(t, "s1", params); (f == nil) != (i == 0) {
			t.Errorf("call %d: %v", i, f)
		}
	}
	if _, f := w.dig(t, "s2", wanted); f != nil {
		t.Errorf("the same id in another session: %v", f)
	}
	w.answers["tasks/get"] = `{"taskId":"t2","status":"working"}`
	if _, f := w.about(t, "s1", "", "tasks/get", `{"taskId":"t1"}`); f == nil || f.Kernel.Code != signal.CodeOutputInvalid {
		t.Errorf("the state of another task: %v", f)
	}
}

// Where replicas name themselves in IDs, the caller gets the named ID, and servers their own. The ticket of a held
// call keeps the named one, for a repetition at another replica.
func TestTaskIDForTheCaller(t *testing.T) {
	name := func(id string) string { return id + ".r1" }
	for begins, want := range map[string]string{
		`{"task":{"taskId":"t1", "ttl":1e5},"x":1e2}`:         `{"task":{"taskId":"t1.r1", "ttl":1e5},"x":1e2}`,
		`{"resultType":"task","taskId": "t1","task":{"n":1}}`: `{"resultType":"task","taskId": "t1.r1","task":{"n":1}}`,
	} {
		w := newWorker(t)
		w.begins, w.decision.Effect, w.decision.Approval = begins, policy.Hold, &policy.Approval{Roles: []string{"boss"}}
		w.claim = approval.Claim{Outcome: approval.Granted, Ticket: approval.Ticket{ID: "apr_1"}}
		in := request(t, wanted)
		in.Session, in.Capabilities, in.TaskID = "s1", json.RawMessage(extension), name
		if reply, f := w.Call(t.Context(), in); f != nil || string(reply.Result) != want {
			t.Fatalf("the call: %v, %v\nwant %s", reply, f, want)
		}
		if w.kept != want {
			t.Errorf("the ticket keeps %s\nwant %s", w.kept, want)
		}
		w.decision = policy.Decision{Effect: policy.Allow, Rule: "all"}
		for answer, want := range map[string]string{
			`{"taskId":"t1","n":1e2}`:  `{"taskId":"t1.r1","n":1e2}`,
			`{}`:                       `{}`,
			`{"taskId":"t1","task":1}`: `{"taskId":"t1.r1","task":1}`,
		} {
			w.answers["tasks/get"], w.answers["tasks/cancel"], w.asked = answer, answer, nil
			for _, method := range []string{"tasks/get", "tasks/cancel"} {
				in := relayed(t, "", method, `{"taskId":"t1"}`)
				in.TaskID = name
				reply, f := w.Relay(t.Context(), in)
				if answer == `{}` && method == "tasks/get" { // about no task
					continue
				}
				if f != nil || string(reply.Result) != want || !strings.HasSuffix(w.asked[len(w.asked)-1], `{"taskId":"t1"}`) {
					t.Errorf("%s: %v, %v, asked %v\nwant %s", method, reply, f, w.asked, want)
				}
			}
		}
	}
}

// A session that was taken over may have begun the task at a replica that is gone: nobody says that
// there was none.
func TestTasksOfASessionThatWasTakenOver(t *testing.T) {
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"} {
		w := newWorker(t)
		w.answers[method] = `{"taskId":"t1","structuredContent":{"n":1},"content":[]}`
		if _, f := w.dig(t, "s1", wanted); f != nil {
			t.Fatal(f)
		}
		for _, tt := range []struct {
			id, route string
			known     bool
		}{{"t1", "", true}, {"t1", "web", true}, {"t1", "mine", false}, {"t0", "", false}, {"apr_0", "", false}} {
			in := relayed(t, tt.route, method, `{"taskId":"`+tt.id+`"}`)
			in.TakenOver = true
			_, f := w.Relay(t.Context(), in)
			switch {
			case tt.known && f != nil:
				t.Errorf("%s %s at %q: %v", method, tt.id, tt.route, f)
			case !tt.known && (f == nil || f.Kernel.Code != signal.CodeToolFailed || !strings.Contains(f.Reason, "it is lost, and whether it took effect is unknown")):
				t.Errorf("%s %s at %q: %v", method, tt.id, tt.route, f)
			}
		}
	}
}

// A list of tasks has those of the session, of one server or of all.
func TestListsOfTasks(t *testing.T) {
	w := newWorker(t)
	w.answers["web tasks/list"] = `{"tasks":[{"taskId":"t1","n":1e2},{"taskId":"other"},{"taskId":"t2"}]}`
	w.answers["mine tasks/list"] = `{"tasks":[{"taskId":"t1"},{"taskId":"t2","mine":true}]}`
	for id, tool := range map[string]string{"t1": "web__dig", "t2": "mine__dig"} {
		w.begins = `{"task":{"taskId":"` + id + `"}}`
		if _, f := w.dig(t, "s1", `{"name":"`+tool+`","task":{}}`); f != nil {
			t.Fatal(f)
		}
	}
	for _, tt := range []struct{ session, route, want string }{
		{"s1", "web", `{"tasks":[{"taskId":"t1","n":1e2}]}`},
		{"s1", "mine", `{"tasks":[{"taskId":"t2","mine":true}]}`},
		{"s1", "", `{"tasks":[{"taskId":"t1","n":1e2},{"taskId":"t2","mine":true}]}`},
		{"s2", "", `{"tasks":[]}`},
	} {
		in := relayed(t, tt.route, "tasks/list", "{}")
		in.Session = tt.session
		if got, f := w.Enumerate(t.Context(), in, w.who); f != nil || string(got) != tt.want {
			t.Errorf("%s at %q: %s, %v\nwant %s", tt.session, tt.route, got, f, tt.want)
		}
	}
	w.refuses = "tasks/list"
	if got, f := w.Enumerate(t.Context(), relayed(t, "web", "tasks/list", "{}"), w.who); f != nil || string(got) != `{"tasks":[]}` {
		t.Errorf("denied: %s, %v", got, f)
	}
}

// A server's word on a task reaches the session that has it, held to the task's
// decision.
func TestWordOnATask(t *testing.T) {
	for _, tt := range []struct{ method, params, want string }{
		{"notifications/tasks/status", `{"taskId":"t1", "status":"working"}`, `{"taskId":"t1", "status":"working"}`},
		{"notifications/tasks/status", `{"taskId":"t2"}`, ""},
		{"notifications/tasks/status", `{}`, ""},
		{"notifications/tasks", `{"taskId":"t1","status":"completed","result":{"content":[],"structuredContent":{"n":1,"s":"x"}}}`,
			`{"taskId":"t1","status":"completed","result":{"content":[],"structuredContent":{"n":1,"s":"[redacted]"}}}`},
		{"notifications/tasks", `{"taskId":"t1","result":{"content":[]}}`, ""},
		{"notifications/tasks", `{"taskId":"t1","inputRequests":{}}`, ""},
	} {
		w := newWorker(t)
		w.decision.Redact = []string{"/structuredContent/s"}
		var home registry.Peer
		w.during = func(_ context.Context, from registry.Downstream) { home = from.Home }
		if _, f := w.dig(t, "s1", wanted); f != nil {
			t.Fatal(f)
		}
		home.Tell(tt.method, json.RawMessage(tt.params))
		home.(interface{ For(string) registry.Peer }).For("mine").Tell(tt.method, json.RawMessage(tt.params))
		var want []string
		if tt.want != "" {
			want = []string{tt.method + " " + tt.want}
		}
		if diff := cmp.Diff(want, w.home.told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.params, diff)
		}
	}
}

// What a task asks of the client is judged once, shown if it is permitted, and
// only what was shown can be answered (extension io.modelcontextprotocol/tasks).
func TestQuestionsOfATask(t *testing.T) {
	w := newWorker(t)
	w.begins = `{"resultType":"task","taskId":"t1","status":"working","ttlMs":null}`
	if reply, f := w.dig(t, "s1", `{"name":"web__dig"}`); f != nil || string(reply.Result) != w.begins {
		t.Fatalf("got %v, %v", reply, f)
	}
	w.refuses = "sampling/createMessage"
	w.decision.Redact = []string{"/content/pin"}
	const asks = `"taskId":"t1","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?"}},"b":{"method":"sampling/createMessage"},"c":{"method":"roots/list"},"d":7}`
	w.answers["tasks/get"], w.answers["tasks/update"] = `{`+asks+`}`, `{}`
	for range 2 {
		reply, f := w.about(t, "s1", "", "tasks/get", `{"taskId":"t1"}`)
		const want = `{"taskId":"t1","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"web asks: ?"}}}}`
		if f != nil || string(reply.Result) != want {
			t.Fatalf("got %+v, %v", reply, f)
		}
	}
	var judged []string
	for _, o := range w.outcomes[1:] {
		judged = append(judged, o.Method+" "+string(o.Outcome))
		if o.Method == "elicitation/create" && (o.ParentID != w.outcomes[0].CallID || o.RequestID != "a") {
			t.Errorf("record %+v", o)
		}
	}
	want := []string{"elicitation/create allowed", "sampling/createMessage denied", "roots/list invalid", " invalid", "tasks/get allowed", "tasks/get allowed"}
	if diff := cmp.Diff(want, judged); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	w.asked = nil
	if _, f := w.about(t, "s1", "", "tasks/update", `{"taskId":"t1","inputResponses":{"b":{},"a":{"action":"accept", "content":{"pin":1}},"x":{}},"z":1e2}`); f != nil {
		t.Fatal(f)
	}
	if diff := cmp.Diff([]string{`web tasks/update {"taskId":"t1","inputResponses":{"a":{"action":"accept", "content":{"pin":"[redacted]"}}},"z":1e2}`}, w.asked); diff != "" {
		t.Errorf("answered (-want +got):\n%s", diff)
	}
	if len(w.client.rounds) != 0 {
		t.Errorf("asked the client: %v", w.client.rounds)
	}
}

// A server that lets its client answer by a task may ask after that task, and
// after no other, by the right with which it asked for it.
func TestTasksOfTheClient(t *testing.T) {
	const can = `{"sampling":{},"tasks":{"list":{},"requests":{"sampling":{"createMessage":{}}}}}`
	i := newAskingServer(t)
	i.client.says = func(q registry.Question) registry.Answer {
		switch q.Method {
		case "sampling/createMessage":
			return registry.Answer{Result: json.RawMessage(`{"task":{"taskId":"c1","ttl":null}}`)}
		case "tasks/list":
			return registry.Answer{Result: json.RawMessage(`{"tasks":[{"taskId":"c1"},{"taskId":"c2"}]}`)}
		}
		return registry.Answer{Result: json.RawMessage(`{"said":"it"}`)}
	}
	i.decision.Redact = []string{"/said"}
	one := func(method, params string) string {
		t.Helper()
		a := i.ask(t, can, question(method, params))[0]
		return string(a.Result) + string(a.Error)
	}
	const unknown = `{"code":-32602,"message":"no such task","data":{"code":"T4_SUBJECT_NOT_FOUND"}}`
	if got := one("tasks/get", `{"taskId":"c1"}`); got != unknown {
		t.Errorf("before it began: %s", got)
	}
	if got := one("sampling/createMessage", `{"task":{}}`); got != `{"task":{"taskId":"c1","ttl":null}}` {
		t.Errorf("began: %s", got)
	}
	i.decision.Redact = nil
	for _, tt := range []struct{ method, params, want string }{
		{"tasks/get", `{"taskId":"c1"}`, `{"said":"[redacted]"}`},
		{"tasks/result", `{"taskId":"c1"}`, `{"said":"[redacted]"}`},
		{"tasks/get", `{"taskId":"c2"}`, unknown},
		{"tasks/result", `{}`, unknown},
		{"tasks/list", `{}`, `{"tasks":[{"taskId":"c1"}]}`},
		{"tasks/cancel", `{"taskId":"c1"}`, `{"code":-32601,"message":"the client does not take this request","data":{"code":"T0_ENVELOPE_METHOD"}}`},
		{"sampling/createMessage", `{"task":{}}`, `{"code":-32603,"message":"the client gave no valid answer","data":{"code":"T4_TOOL_OUTPUT_INVALID"}}`},
	} {
		if got := one(tt.method, tt.params); got != tt.want {
			t.Errorf("%s %s: %s\nwant %s", tt.method, tt.params, got, tt.want)
		}
	}
	for _, in := range i.inputs {
		if in.Action == "tasks/get" && in.Server.Asks != "sampling/createMessage" {
			t.Errorf("judged %+v", in.Server)
		}
	}
	// The client's own word on it goes to the server that asked.
	in := relayed(t, "", "notifications/tasks/status", `{"taskId":"c1"}`)
	in.Message.Kind, in.Session = notification, "ses_1"
	if f := i.Gate.Notify(t.Context(), in); f != nil || len(i.noted) != 1 || !strings.HasPrefix(i.noted[0], "web ses_1 ") {
		t.Errorf("noted %v, %v", i.noted, f)
	}
	for _, other := range []struct{ route, session, id string }{{"", "ses_2", "c1"}, {"", "ses_1", "c2"}, {"other", "ses_1", "c1"}} {
		in := relayed(t, other.route, "notifications/tasks/status", `{"taskId":"`+other.id+`"}`)
		in.Message.Kind, in.Session = notification, other.session
		if f := i.Gate.Notify(t.Context(), in); f == nil || len(i.noted) != 1 {
			t.Errorf("%+v: noted %v", other, i.noted)
		}
	}
}

// A session has room for a thousand tasks; then the one that ends first is
// forgotten.
func TestTooManyTasks(t *testing.T) {
	w := newWorker(t)
	w.answers["tasks/get"] = `{"taskId":"t0"}`
	for i := range 1001 {
		w.begins = fmt.Sprintf(`{"task":{"taskId":"t%d","ttl":%d}}`, i, 100_000+i)
		if _, f := w.dig(t, "s1", wanted); f != nil {
			t.Fatal(f)
		}
		if _, f := w.about(t, "s1", "", "tasks/get", `{"taskId":"t0"}`); (f == nil) != (i < 1000) {
			t.Fatalf("after task %d: %v", i, f)
		}
	}
}
