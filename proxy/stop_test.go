package proxy_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/stop"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// brake stops the requests of one subject, or at one server. The zero brake stops nothing.
type brake struct {
	mu              sync.Mutex // protects the fields below
	subject, server string
}

func (b *brake) stopServer(server string) { b.server = server }

func (b *brake) stop(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subject = subject
}

func (b *brake) Find(p *policy.Principal, server, _ string) *stop.Stop {
	b.mu.Lock()
	defer b.mu.Unlock()
	if (b.subject == "" || p.Subject != b.subject) && (b.server == "" || server != b.server) {
		return nil
	}
	return &stop.Stop{ID: "stp_1", Kind: stop.Principal, Name: b.subject, Reason: "incident 7"}
}

// wantStopped checks the refusal of a request that is stopped, and its one record.
func wantStopped(t *testing.T, f *proxy.Failure, id string, outcomes []audit.Record) {
	t.Helper()
	if f == nil || f.Kernel.Code != signal.CodeStopped || f.Kernel.Detail["stop"] != id || !strings.Contains(f.Reason, "incident 7") {
		t.Errorf("got %v, want the stop %s", f, id)
	}
	if len(outcomes) != 1 || outcomes[0].Outcome != audit.Denied || outcomes[0].Code != signal.CodeStopped ||
		!strings.Contains(outcomes[0].Error, id) || !strings.Contains(outcomes[0].Error, "incident 7") {
		t.Errorf("recorded as %+v", outcomes)
	}
}

// TestWhatIsStopped is the rule for ann with role r, and the tool web__find of server web: a request
// that is stopped is refused before it costs anything, and any other passes.
func TestWhatIsStopped(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	stops, err := stop.Open(t.Context(), stop.Options{DB: db, Instance: "ins_1"})
	if err != nil {
		t.Fatal(err)
	}
	const anyRequest, call = "any", "call"
	for _, tt := range []struct {
		kind    stop.Kind
		name    string
		stopped string // which requests
	}{
		{stop.All, "", anyRequest},
		{stop.Principal, "ann", anyRequest},
		{stop.Role, "r", anyRequest},
		{stop.Server, "web", anyRequest},
		{stop.Tool, "web__find", call},
		{stop.Principal, "bob", ""},
		{stop.Role, "boss", ""},
		{stop.Server, "other", ""},
		{stop.Tool, "find", ""},
	} {
		s, err := stops.Add(t.Context(), stop.Stop{Kind: tt.kind, Name: tt.name, Reason: "incident 7"})
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range []struct {
			name string
			make func(l *library) *proxy.Failure
		}{
			{call, func(l *library) *proxy.Failure { _, f := l.Call(t.Context(), request(t, plain)); return f }},
			{"resource", func(l *library) *proxy.Failure {
				_, f := l.Relay(t.Context(), relayed(t, "web", "resources/read", `{"uri":"file:///a"}`))
				return f
			}},
			{"prompt", func(l *library) *proxy.Failure {
				_, f := l.Relay(t.Context(), relayed(t, "web", "prompts/get", `{"name":"p"}`))
				return f
			}},
			{"level", func(l *library) *proxy.Failure {
				_, f := l.Relay(t.Context(), relayed(t, "web", "logging/setLevel", `{"level":"info"}`))
				return f
			}},
			{"notice", func(l *library) *proxy.Failure {
				in := relayed(t, "web", "notifications/vendor/thing", `{}`)
				in.Message.Kind = notification
				return l.Gate.Notify(t.Context(), in)
			}},
		} {
			l := newLibrary(t)
			l.Gate, err = proxy.New(proxy.Options{
				Identifier: l, Policy: l, Limiter: l, Tickets: l, Recorder: l, Servers: l, Stops: stops,
				Upstreams: upstreams{bench: l.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher)},
				Settings:  proxy.Settings{Methods: map[string][]string{"web": {"notifications/vendor/thing"}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			f := request.make(l)
			if tt.stopped != anyRequest && tt.stopped != request.name {
				if f != nil {
					t.Errorf("%s %s: a %s is refused: %v", tt.kind, tt.name, request.name, f)
				}
				continue
			}
			wantStopped(t, f, s.ID, l.outcomes)
			if len(l.sent)+len(l.bench.asked)+len(l.asked)+len(l.noted)+len(l.decisions) != 0 {
				t.Errorf("the policy was asked %v, the server %v %v %v", l.bench.asked, l.sent, l.asked, l.noted)
			}
		}
		if err := stops.Resume(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// A stopped principal has no lists and gets no notifications. Where all servers are, one that is
// stopped is not asked.
func TestListsThatAreStopped(t *testing.T) {
	for _, route := range []string{"", "web"} {
		l := newLibrary(t)
		l.brake.stop("ann")
		if got, f := l.Enumerate(t.Context(), relayed(t, route, "prompts/list", `{}`), l.who); f == nil || f.Kernel.Code != signal.CodeStopped || len(l.asked)+l.offered != 0 {
			t.Errorf("%s, %v; asked %v, waited for servers %d times", got, f, l.asked, l.offered)
		}
	}
	l := newLibrary(t)
	l.brake.stop("ann") // nor is any server asked where something is
	if _, f := l.Relay(t.Context(), relayed(t, "", "prompts/get", `{"name":"web__p"}`)); f == nil || f.Kernel.Code != signal.CodeStopped || len(l.asked) != 0 {
		t.Errorf("%v; asked %v", f, l.asked)
	}
	i := newAskingServer(t)
	i.during = func(ctx context.Context, from registry.Downstream) {
		from.Peer.Tell("notifications/message", json.RawMessage(`{"n":1}`))
		i.brake.stop("ann")
		from.Peer.Tell("notifications/message", json.RawMessage(`{"n":2}`))
		for _, a := range from.Peer.Ask(ctx, []registry.Question{{Method: "roots/list"}}) {
			if a.Error == nil {
				t.Errorf("answered with %s", a.Result)
			}
		}
	}
	i.callAs(t, everything)
	if want := []string{`notifications/message {"n":1}`}; !slices.Equal(i.client.told, want) || len(i.client.rounds) != 0 {
		t.Errorf("told %v, asked %v", i.client.told, i.client.rounds)
	}
}

// A principal that is stopped ends its own tasks, and does nothing else with them. Nothing goes to a server that is
// stopped.
func TestAStoppedPrincipalCancels(t *testing.T) {
	for _, row := range []string{"tasks/get", "tasks/result", "tasks/update", "tasks/cancel", "tasks/cancel at a stopped server"} {
		method, at, _ := strings.Cut(row, " ")
		w := newWorker(t)
		if _, f := w.dig(t, "s1", wanted); f != nil {
			t.Fatal(f)
		}
		w.outcomes, w.answers[method] = nil, `{"taskId":"t1","status":"cancelled"}`
		w.brake.stop("ann")
		if at != "" {
			w.brake.stopServer("web")
		}
		_, f := w.about(t, "s1", "", method, `{"taskId":"t1"}`)
		if row != "tasks/cancel" {
			if wantStopped(t, f, "stp_1", w.outcomes); len(w.asked) != 0 {
				t.Errorf("asked %v", w.asked)
			}
		} else if f != nil || !slices.Equal(w.asked, []string{`web tasks/cancel {"taskId":"t1"}`}) {
			t.Errorf("%v, asked %v", f, w.asked)
		}
	}
}

// A server that is stopped is asked for nothing where all servers are: its lists are left out, and
// what it has is refused.
func TestAServerThatIsStopped(t *testing.T) {
	l := newLibrary(t)
	l.result = `{"prompts":[{"name":"p"}]}`
	list := func() string {
		got, f := l.Enumerate(t.Context(), relayed(t, "", "prompts/list", `{}`), l.who)
		if f != nil && f.Kernel.Code != signal.CodeStopped {
			t.Error(f)
		}
		return string(got)
	}
	if got := list(); got != `{"prompts":[{"name":"web__p"}]}` {
		t.Fatal(got)
	}
	l.brake.stopServer("web")
	l.asked = nil
	if got := list(); got != "" || len(l.asked) != 0 {
		t.Errorf("listed %s, asked %v", got, l.asked)
	}
	_, f := l.Relay(t.Context(), relayed(t, "", "prompts/get", `{"name":"web__p"}`))
	if wantStopped(t, f, "stp_1", l.outcomes); len(l.asked)+len(l.decisions) != 0 {
		t.Errorf("asked %v, recorded %v", l.asked, l.decisions)
	}
}

// slow is a gate whose server answers when the test lets it, or when the request is cancelled.
type slow struct {
	*bench
	arrived chan string // subject of each request at the server
	answer  chan bool
	unsent  bool // what is cancelled was not sent
}

func newSlow(t *testing.T) *slow {
	t.Helper()
	s := &slow{bench: newBench(t), arrived: make(chan string), answer: make(chan bool)}
	var err error
	s.Gate, err = proxy.New(proxy.Options{Identifier: s.bench, Policy: s.bench, Limiter: s.bench, Tickets: s.bench, Recorder: s.bench, Upstreams: s, Servers: s, Stops: &s.brake})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *slow) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return registry.NewCatalogue([]string{"web"}, searcher).View(route)
}

func (s *slow) Forward(ctx context.Context, _ *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	s.arrived <- out.From.Subject
	select {
	case <-s.answer:
		return json.RawMessage(s.result), nil
	case <-ctx.Done():
		return nil, &registry.ForwardError{Kind: registry.Cancelled, Sent: !s.unsent, Err: ctx.Err()}
	}
}

func (s *slow) Ask(ctx context.Context, _ string, ask registry.Ask) (json.RawMessage, error) {
	return s.Forward(ctx, nil, registry.Outgoing{From: ask.From})
}

func (s *slow) Offers(context.Context) []registry.Offer { return nil }

func (s *slow) Notify(string, string, string, json.RawMessage) {}

// What is at its server when it is stopped is cancelled, and recorded so; its caller, who has not
// cancelled it, is answered. The ticket of what was sent is unknown, and of what was not, approved.
// What others do goes on.
func TestStoppedInFlight(t *testing.T) {
	for _, tt := range []struct {
		what         string
		held, unsent bool
		finished     []string
		released     []string
	}{
		{what: "a call"},
		{what: "a call that was not sent", unsent: true},
		{what: "a held call", held: true, finished: []string{"apr_1 unknown"}},
		{what: "a held call that was not sent", held: true, unsent: true, released: []string{"apr_1"}},
		{what: "resources/read"},
	} {
		s := newSlow(t)
		if s.unsent = tt.unsent; tt.held {
			s.decision, s.claim = held, approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		}
		failed := make(chan *proxy.Failure, 1)
		go func() {
			var f *proxy.Failure
			if tt.what == "resources/read" {
				_, f = s.Relay(t.Context(), relayed(t, "web", tt.what, `{"uri":"file:///a"}`))
			} else {
				_, f = s.Call(t.Context(), request(t, plain))
			}
			failed <- f
		}()
		<-s.arrived
		s.CancelStopped() // nothing is
		s.brake.stop("bob")
		s.CancelStopped()
		s.brake.stop("ann")
		s.CancelStopped()
		f := <-failed
		if f == nil || f.Kernel.Code != signal.CodeStopped || f.Kernel.Detail["stop"] != "stp_1" || strings.Contains(f.Reason, "unknown") == tt.unsent {
			t.Errorf("%s: %v", tt.what, f)
		}
		if r := s.outcomes[0]; len(s.outcomes) != 1 || r.Outcome != audit.Cancelled || r.Code != signal.CodeCancelled || !strings.Contains(r.Error, "stp_1") {
			t.Errorf("%s: recorded as %+v", tt.what, s.outcomes)
		}
		if !slices.Equal(s.finished, tt.finished) || !slices.Equal(s.released, tt.released) {
			t.Errorf("%s: its ticket: finished %v, released %v", tt.what, s.finished, s.released)
		}
	}
}

func TestOthersGoOn(t *testing.T) {
	s := newSlow(t)
	answered := make(chan *proxy.Failure, 1)
	go func() {
		_, f := s.Call(t.Context(), request(t, plain))
		answered <- f
	}()
	<-s.arrived
	s.brake.stop("bob")
	s.CancelStopped()
	s.answer <- true
	if f := <-answered; f != nil {
		t.Error(f)
	}
}

// A call that is stopped while it is on the road is not made, and its grant is not spent.
func TestStoppedOnTheRoad(t *testing.T) {
	d := newHoldingGate(t, time.Hour, proxy.Settings{})
	d.claims = []approval.Claim{{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}}
	g, err := proxy.New(proxy.Options{Identifier: d, Policy: d, Limiter: d, Tickets: d, Recorder: &stopsLate{d.bench}, Upstreams: d, Stops: &d.brake})
	if err != nil {
		t.Fatal(err)
	}
	_, f := g.Call(t.Context(), request(t, plain))
	wantStopped(t, f, "stp_1", d.outcomes)
	if len(d.sent) != 0 || !slices.Equal(d.released, []string{"apr_1"}) {
		t.Errorf("sent %v, released %v", d.sent, d.released)
	}
	l := newLibrary(t)
	if l.Gate, err = proxy.New(proxy.Options{Identifier: l, Policy: l, Limiter: l, Tickets: l, Recorder: &stopsLate{l.bench}, Upstreams: d, Servers: l, Stops: &l.brake}); err != nil {
		t.Fatal(err)
	}
	_, f = l.Relay(t.Context(), relayed(t, "web", "prompts/get", `{"name":"p"}`))
	if wantStopped(t, f, "stp_1", l.outcomes); len(l.asked) != 0 {
		t.Errorf("asked %v", l.asked)
	}
}

// stopsLate stops a call once its decision is recorded.
type stopsLate struct{ *bench }

func (s *stopsLate) Write(kind audit.Kind, r *audit.Record) error {
	s.brake.stop("ann")
	return s.bench.Write(kind, r)
}

// While its requester is stopped, a ticket waits: people may approve it, its call is not made, and
// neither it nor a review ends the ticket. When the requester is resumed, the call is made.
func TestTicketsWait(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		id := m.ask(t, `{"n":1}`)
		m.brake.stop("ann")
		m.worker.Recheck()
		if k := m.get(t, id, time.Second); k.State != approval.StateProposed {
			t.Errorf("%s (%s) before anybody approved", k.State, k.Note)
		}
		m.approve(t, id)
		m.worker.Recheck()
		if k := m.get(t, id, 250*time.Second); k.State != approval.StateApproved || len(m.arrivals()) != 0 {
			t.Errorf("%s (%s) while it is stopped, arrived %v", k.State, k.Note, m.arrivals())
		}
		m.brake.stop("")
		if k := m.get(t, id, 7*time.Second); k.State != approval.StateDone || len(m.arrivals()) != 1 {
			t.Errorf("%s (%s) when it was resumed, arrived %v", k.State, k.Note, m.arrivals())
		}
	})
}

// A ticket whose requester is stopped still ends when its own time is over.
func TestTicketsWaitWithinTheirTime(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		id := m.ask(t, `{"n":1}`)
		m.brake.stop("ann")
		if k := m.get(t, id, 11*time.Minute); k.State != approval.StateExpired {
			t.Errorf("%s after its time", k.State)
		}
	})
}
