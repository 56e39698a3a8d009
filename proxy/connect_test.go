package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/credential"
	"github.com/toolgate/toolgate/signal"
)

// people has the credentials of callers. A zero people has none, and none is needed.
type people struct {
	mu    sync.Mutex // protects the fields below
	find  func() (*registry.Credential, error)
	asked []string // server and person of each look-up
}

func (p *people) Credential(_ context.Context, server string, from registry.Downstream) (*registry.Credential, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, strings.Join([]string{server, from.Issuer, from.Tenant, from.Subject, string(from.Token)}, " "))
	if p.find == nil {
		return nil, nil
	}
	return p.find()
}

// have sets what look-ups find from now on.
func (p *people) have(found *registry.Credential, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.find = func() (*registry.Credential, error) { return found, err }
}

// grantOf is the credential of a subject as change leaves it.
func grantOf(subject string, change func(*registry.Credential)) *registry.Credential {
	c := &registry.Credential{
		ID: "crd_1", Type: "oauth", Person: credential.Person{Subject: subject}, Issuer: "https://as.example.org", Account: subject + "@web",
		Scopes: []string{"read", "write"}, Until: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	if change != nil {
		change(c)
	}
	return c
}

// notConnected is the error for a caller without a credential.
var notConnected = &registry.Missing{Server: "web", Reason: "you are not connected", Connects: true}

const connectionURL = consoleURL + "/connections/web"

// connecting is a waiting gate that counts what a call costs. Its callers need a credential.
type connecting struct {
	*waiting
	people
	held                   []approval.Held // of each claim
	quota, counted, undone int
}

func newConnecting(t *testing.T, s proxy.Settings) *connecting {
	t.Helper()
	c := &connecting{waiting: newWaiting(t, s, granted())}
	c.decision = policy.Decision{Effect: policy.Allow, Rule: "R1", Reason: "because", Revision: "sha256:p"}
	c.have(nil, notConnected)
	if s.ConsoleURL == "" {
		s.ConsoleURL = consoleURL
	}
	if s.ConsoleURL == "none" {
		s.ConsoleURL = ""
	}
	g, err := proxy.New(proxy.Options{
		Identifier: c, Policy: c, Limiter: c, Usage: c, Tickets: c, Waiter: c, Recorder: c, Settings: s, Credentials: &c.people, Servers: c,
		Upstreams: upstreams{bench: c.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher)},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Gate = g
	return c
}

func (c *connecting) Meters(policy.Tool) []policy.Meter { return dayMeter }

func (c *connecting) Spend(time.Time, policy.Principal, policy.Tool, *policy.Limit) *limit.Exceeded {
	c.quota++
	return nil
}

func (c *connecting) Read(context.Context, *limit.Use) (map[string]policy.Reading, error) {
	return nil, nil
}

func (c *connecting) Reserve(context.Context, *limit.Use, map[string]policy.Reading, func(map[string]policy.Reading) bool) (*limit.Reservation, error) {
	c.counted++
	return &limit.Reservation{}, nil
}

func (c *connecting) Return(context.Context, *limit.Reservation) error {
	c.undone++
	return nil
}

// Claim answers like approval.Tickets whose ticket is approved.
func (c *connecting) Claim(_ context.Context, h approval.Held) (approval.Claim, error) {
	c.held = append(c.held, h)
	if h.Unconnected == "" {
		return granted(), nil
	}
	k := ticket(approval.StateNeedsConnection)
	k.Unconnected = h.Unconnected
	return approval.Claim{Ticket: k, Outcome: approval.Unconnected}, nil
}

func (c *connecting) Offers(context.Context) []registry.Offer {
	return []registry.Offer{{Server: "web", Prefix: "web__", Capabilities: json.RawMessage(`{"resources":{},"prompts":{},"completions":{}}`)}}
}

func (c *connecting) Ask(_ context.Context, _ string, ask registry.Ask) (json.RawMessage, error) {
	c.sent = append(c.sent, ask.Method)
	return json.RawMessage(`{}`), c.forwardErr
}

func (c *connecting) Notify(string, string, string, json.RawMessage) {}

// ask calls as a client of era with capabilities.
func (c *connecting) ask(t *testing.T, era, capabilities string) (*proxy.Reply, *proxy.Failure) {
	t.Helper()
	in := request(t, plain)
	in.Era, in.Capabilities, in.Peer = era, json.RawMessage(capabilities), c.waiting
	return c.Gate.Call(t.Context(), in)
}

// refused checks that a request ended with code in one record, cost nothing and reached no server.
func (c *connecting) refused(t *testing.T, f *proxy.Failure, code string) {
	t.Helper()
	if f == nil || f.Kernel.Code != code {
		t.Fatalf("got %v, want %s", f, code)
	}
	if len(c.sent) > 0 || c.quota > 0 || c.counted > c.undone || len(c.decisions) > 0 {
		t.Errorf("sent %v, quota %d, counted %d, given back %d, decisions %d", c.sent, c.quota, c.counted, c.undone, len(c.decisions))
	}
	if len(c.outcomes) != 1 || c.outcomes[0].Code != code || c.outcomes[0].Stage != "connect" {
		t.Errorf("outcomes %+v", c.outcomes)
	}
}

// A call without a credential is refused before it costs anything, and says where to connect,
// where there is such a page.
func TestConnectionRequired(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		console, era, can string
		missing           registry.Missing
		url               string
		elicits           bool
		list              bool
	}{
		"a client without pages":   {"", "2025-11-25", asksForms, *notConnected, connectionURL, false, true},
		"a client with pages":      {"", "2025-11-25", shows, *notConnected, connectionURL, true, true},
		"an earlier revision":      {"", "2025-06-18", shows, *notConnected, connectionURL, false, true},
		"rounds, without pages":    {"", "2026-07-28", asksForms, *notConnected, connectionURL, false, false},
		"outside MCP":              {"", "", "", *notConnected, connectionURL, false, true},
		"no console":               {"none", "2025-11-25", shows, *notConnected, "", false, false},
		"nothing to be done there": {"", "2025-11-25", shows, registry.Missing{Reason: "the token endpoint refuses"}, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConnecting(t, proxy.Settings{ConsoleURL: tt.console, Hold: new(time.Duration(0))})
			c.have(nil, &tt.missing)
			_, f := c.ask(t, tt.era, tt.can)
			c.refused(t, f, signal.CodeConnectionRequired)
			if c.outcomes[0].Outcome != audit.Denied || f.Reason != tt.missing.Reason || f.Remedy == "" {
				t.Errorf("outcome %s, reason %q, remedy %q", c.outcomes[0].Outcome, f.Reason, f.Remedy)
			}
			said, _ := f.Kernel.Detail["connect_url"].(string)
			if said != tt.url || strings.Contains(f.Remedy, connectionURL) != (tt.url != "") {
				t.Errorf("links %q, remedy %q", said, f.Remedy)
			}
			if f.Elicits != tt.elicits || (f.Elicitations != nil) != tt.list {
				t.Errorf("elicits %v: %s", f.Elicits, f.Elicitations)
			}
			for e := range jsonrpc.Elements(f.Elicitations) {
				url, _ := jsonrpc.TextAt(e, "url")
				mode, _ := jsonrpc.TextAt(e, "mode")
				if id, _ := jsonrpc.TextAt(e, "elicitationId"); mode != "url" || url != connectionURL || id == "" {
					t.Errorf("elicitation %s", e)
				}
			}
			if len(c.waiting.asked) > 0 {
				t.Errorf("asked %v", c.waiting.asked)
			}
		})
	}
}

// Everything but a credential of the caller's own refuses the call.
func TestCredentialFailsClosed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		found *registry.Credential
		err   error
		code  string
	}{
		"it cannot be looked up":           {nil, errors.New("boom"), signal.CodeUpstreamUnavailable},
		"the state is away":                {nil, store.ErrAway, signal.CodeStoreUnavailable},
		"another person's":                 {grantOf("bob", nil), nil, signal.CodeUpstreamUnavailable},
		"another tenant's":                 {grantOf("ann", func(c *registry.Credential) { c.Person.Tenant = "t" }), nil, signal.CodeUpstreamUnavailable},
		"another issuer's, with her name":  {grantOf("ann", func(c *registry.Credential) { c.Person.Issuer = "https://evil" }), nil, signal.CodeUpstreamUnavailable},
		"one without a subject, of issuer": {grantOf("", func(c *registry.Credential) { c.Person.Issuer = "https://evil" }), nil, signal.CodeUpstreamUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConnecting(t, proxy.Settings{})
			c.have(tt.found, tt.err)
			_, f := c.ask(t, "2025-11-25", shows)
			c.refused(t, f, tt.code)
			if c.outcomes[0].Credential != nil {
				t.Errorf("recorded %+v", c.outcomes[0].Credential)
			}
		})
	}
}

// With a credential the call is made, and both records say with which, but never a token.
func TestCredentialIsRecorded(t *testing.T) {
	t.Parallel()
	c := newConnecting(t, proxy.Settings{})
	c.who.Issuer = "https://idp.example.org"
	c.have(grantOf("ann", func(g *registry.Credential) { g.Person.Issuer = c.who.Issuer }), nil)
	in := request(t, plain)
	in.Credential = identity.Credential{Bearer: "secret-token"}
	if _, f := c.Gate.Call(t.Context(), in); f != nil || c.quota != 1 || c.counted != 1 || c.undone != 0 || len(c.sent) != 1 {
		t.Fatalf("%v; quota %d, counted %d, given back %d, sent %v", f, c.quota, c.counted, c.undone, c.sent)
	}
	if want := []string{"web https://idp.example.org  ann secret-token"}; !cmp.Equal(c.people.asked, want) {
		t.Errorf("looked up %q, want %q", c.people.asked, want)
	}
	want := &audit.Credential{
		ID: "crd_1", Type: "oauth", Issuer: "https://as.example.org", Account: "ann@web", Scopes: []string{"read", "write"}, Until: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for _, r := range slices.Concat(c.decisions, c.outcomes) {
		if diff := cmp.Diff(want, r.Credential); diff != "" {
			t.Error(diff)
		}
		if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), "secret-token") {
			t.Errorf("%s, %v", text, err)
		}
	}
	c.have(nil, nil)
	if _, f := c.Gate.Call(t.Context(), in); f != nil || c.outcomes[1].Credential != nil {
		t.Errorf("the same for all: %v, recorded %+v", f, c.outcomes[1].Credential)
	}
}

// A request that the server refuses for its credential was not made: the grant and the usage are
// given back.
func TestUnconnectedAtTheServer(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"the server refuses it": &registry.ForwardError{Kind: registry.Unconnected, Sent: true, Err: errors.New("401")},
		"it ended meanwhile":    &registry.ForwardError{Kind: registry.Unconnected, Err: notConnected},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConnecting(t, proxy.Settings{})
			c.have(grantOf("ann", nil), nil)
			c.decision, c.forwardErr = held, err
			_, f := c.ask(t, "2025-11-25", asksForms)
			if f == nil || f.Kernel.Code != signal.CodeConnectionRequired || f.Kernel.Detail["connect_url"] != connectionURL {
				t.Fatalf("got %v", f)
			}
			if len(c.released) != 1 || len(c.finished) > 0 || c.counted != 1 || c.undone != 1 || len(c.outcomes) != 1 {
				t.Errorf("released %v, finished %v, counted %d, given back %d, records %d", c.released, c.finished, c.counted, c.undone, len(c.outcomes))
			}
		})
	}
}

// Requests that call no tool need the credential too; those about the gate's own things, and
// lists, do not.
func TestRelayedConnections(t *testing.T) {
	t.Parallel()
	for method, params := range map[string]string{
		"prompts/get":         `{"name":"web__p"}`,
		"resources/read":      `{"uri":"file:///a"}`,
		"resources/subscribe": `{"uri":"file:///a"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"web__p"},"argument":{"name":"a","value":""}}`,
	} {
		t.Run(method, func(t *testing.T) {
			c := newConnecting(t, proxy.Settings{})
			in := request(t, plain)
			in.Route, in.Era = "web", "2025-11-25"
			var err error
			if in.Message, err = jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":`+params+`}`), jsonrpc.MostLimits()); err != nil {
				t.Fatal(err)
			}
			_, f := c.Relay(t.Context(), in)
			c.refused(t, f, signal.CodeConnectionRequired)
			if !f.Plain || f.Kernel.Detail["connect_url"] != connectionURL || f.Elicitations == nil {
				t.Errorf("got %+v", f)
			}
			c.have(grantOf("ann", nil), nil)
			if _, f := c.Relay(t.Context(), in); f != nil || len(c.sent) != 1 || c.outcomes[1].Credential == nil {
				t.Errorf("connected: %v, sent %v", f, c.sent)
			}
		})
	}
	c := newConnecting(t, proxy.Settings{})
	in := request(t, plain)
	var err error
	if in.Message, err = jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"logging/setLevel","params":{"level":"info"}}`), jsonrpc.MostLimits()); err != nil {
		t.Fatal(err)
	}
	if _, f := c.Relay(t.Context(), in); f != nil || len(c.people.asked) > 0 {
		t.Errorf("logging/setLevel: %v, looked up %v", f, c.people.asked)
	}
}

// A client that shows pages gets the link, and its call waits for the person: until the person has
// connected, has declined, or the time is over.
func TestWaitsForTheConnection(t *testing.T) {
	const complete = "notifications/elicitation/complete"
	accepts, declines := `{"action":"accept"}`, `{"action":"decline"}`
	for name, tt := range map[string]struct {
		era      string
		answer   string        // "" = the client does not answer
		after    time.Duration // until the person is connected; 0 = never
		longest  time.Duration // of the client's profile; 0 = as the settings say
		code     string
		waits    time.Duration
		complete bool
	}{
		"connects":                          {"2025-11-25", accepts, 2500 * time.Millisecond, 0, "", 3 * time.Second, true},
		"connects, the client says nothing": {"2025-11-25", "", 19500 * time.Millisecond, 0, "", 20 * time.Second, true},
		"declines":                          {"2025-11-25", declines, 0, 0, signal.CodeConnectionRequired, 0, false},
		"cancels":                           {"2025-11-25", `{"action":"cancel"}`, 0, 0, signal.CodeConnectionRequired, 0, false},
		"too late":                          {"2025-11-25", accepts, 0, 0, signal.CodeConnectionRequired, 45 * time.Second, false},
		"too late for the client":           {"2025-11-25", accepts, 20 * time.Second, 10 * time.Second, signal.CodeConnectionRequired, 10 * time.Second, false},
		"rounds, connects":                  {"2026-07-28", accepts, 2500 * time.Millisecond, 0, "", 3 * time.Second, false},
		"rounds, declines":                  {"2026-07-28", declines, 0, 0, signal.CodeConnectionRequired, 0, false},
		"rounds, too late":                  {"2026-07-28", accepts, 0, 0, signal.CodeConnectionRequired, 45 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := proxy.Settings{}
				if tt.longest > 0 {
					s.Clients = []proxy.ClientProfile{{Longest: &tt.longest}}
				}
				c := newConnecting(t, s)
				if tt.answer != "" {
					c.answer = &registry.Answer{Result: json.RawMessage(tt.answer)}
				}
				begun := time.Now()
				if tt.after > 0 {
					time.AfterFunc(tt.after, func() { c.have(grantOf("ann", nil), nil) })
				}
				_, f := c.ask(t, tt.era, shows)
				if waited := time.Since(begun); waited != tt.waits {
					t.Errorf("waited %s, want %s", waited, tt.waits)
				}
				if tt.code != "" {
					c.refused(t, f, tt.code)
				} else if f != nil || len(c.sent) != 1 || c.quota != 1 || c.counted != 1 || len(c.judged) != 2 {
					t.Errorf("got %v, sent %v, quota %d, counted %d, judged %d times", f, c.sent, c.quota, c.counted, len(c.judged))
				}
				if len(c.waiting.asked) != 1 {
					t.Fatalf("asked %d times", len(c.waiting.asked))
				}
				q := c.waiting.asked[0]
				if url, _ := jsonrpc.TextAt(q.Params, "url"); url != connectionURL || !q.Anew || q.Key == "" || q.Method != "elicitation/create" {
					t.Errorf("asked %+v", q)
				}
				if told := slices.ContainsFunc(c.events, func(e string) bool { return strings.HasPrefix(e, complete) }); told != tt.complete {
					t.Errorf("events %v", c.events)
				}
			})
		})
	}
}

// A call that has waited for its person is judged by what holds then.
func TestJudgedAfterTheConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *connecting)
		code   string
	}{
		"the policy denies it":       {func(c *connecting) { c.decision = policy.Decision{Effect: policy.Deny, Rule: "D", Reason: "no"} }, signal.CodePolicyDenied},
		"the caller's token expired": {func(c *connecting) { c.whoErr = identity.ErrUnauthenticated }, signal.CodeUnauthenticated},
		"the connection has ended":   {func(c *connecting) { c.find = func() (*registry.Credential, error) { return nil, notConnected } }, signal.CodeConnectionRequired},
		"the tool is hidden":         {func(c *connecting) { c.hidden = true }, signal.CodeToolNotFound},
		"the token is another's":     {func(c *connecting) { c.who.Subject = "bob" }, signal.CodeUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newConnecting(t, proxy.Settings{})
				looks := 0
				c.find = func() (*registry.Credential, error) {
					if looks++; looks < 4 {
						return nil, notConnected
					}
					tt.change(c)
					return grantOf("ann", nil), nil
				}
				_, f := c.ask(t, "2025-11-25", shows)
				c.refused(t, f, tt.code)
			})
		})
	}
}

// A caller that gives up while its person connects has cancelled the call.
func TestCancelledBeforeTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConnecting(t, proxy.Settings{})
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, stop)
		in := request(t, plain)
		in.Era, in.Capabilities, in.Peer = "2025-11-25", json.RawMessage(shows), c.waiting
		_, f := c.Gate.Call(ctx, in)
		c.refused(t, f, signal.CodeCancelled)
	})
}

// A held call without a credential says so to its ticket, and asks nobody to approve anything.
func TestHeldWithoutConnection(t *testing.T) {
	t.Parallel()
	c := newConnecting(t, proxy.Settings{})
	c.decision = held
	_, f := c.ask(t, "2025-11-25", asksForms)
	c.refused(t, f, signal.CodeConnectionRequired)
	if len(c.held) != 1 || c.held[0].Unconnected != notConnected.Reason || c.held[0].RunsAs != nil || c.outcomes[0].Ticket != "apr_1" || len(c.released) > 0 {
		t.Errorf("claimed %+v, ticket %q", c.held, c.outcomes[0].Ticket)
	}
	c.have(grantOf("ann", nil), nil)
	if _, f := c.ask(t, "2025-11-25", asksForms); f != nil || len(c.held) != 2 {
		t.Fatalf("connected: %v, %d claims", f, len(c.held))
	}
	want := &approval.Account{
		ID: "crd_1", Type: "oauth", Issuer: "https://as.example.org", Account: "ann@web", Scopes: []string{"read", "write"}, Until: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	if diff := cmp.Diff(want, c.held[1].RunsAs); diff != "" {
		t.Error(diff)
	}
}

// An approved call runs with the credential that was approved, by the ticket worker as by its
// agent. Until that is there it needs a connection, and leaves one record.
func TestApprovedCallsNeedTheirConnection(t *testing.T) {
	back := grantOf("ann", nil)
	for name, tt := range map[string]struct {
		found *registry.Credential
		err   error
		why   string
	}{
		"missing":          {nil, notConnected, "you are not connected"},
		"narrowed":         {grantOf("ann", func(c *registry.Credential) { c.Scopes = []string{"read"} }), nil, "fewer scopes"},
		"another account":  {grantOf("ann", func(c *registry.Credential) { c.ID, c.Account = "crd_2", "ops@web" }), nil, "another account"},
		"another issuer":   {grantOf("ann", func(c *registry.Credential) { c.ID, c.Issuer = "crd_2", "https://evil" }), nil, "another issuer"},
		"another kind":     {grantOf("ann", func(c *registry.Credential) { c.ID, c.Type = "crd_2", "command" }), nil, "another kind"},
		"the same for all": {nil, nil, "another kind"},
	} {
		t.Run(name, func(t *testing.T) {
			withWorkerGate(t, func(t *testing.T, m *workerGate) {
				m.grants.have(back, nil)
				k := m.get(t, m.ask(t, `{"n":1}`), 0)
				if k.RunsAs == nil || k.RunsAs.ID != "crd_1" {
					t.Fatalf("runs as %+v", k.RunsAs)
				}
				m.grants.have(tt.found, tt.err)
				m.approve(t, k.ID)
				got := m.get(t, k.ID, 3*time.Minute)
				if got.State != approval.StateNeedsConnection || !strings.Contains(got.Unconnected, tt.why) || len(m.arrivals()) > 0 {
					t.Fatalf("%s: %q, ran at %v", got.State, got.Unconnected, m.arrivals())
				}
				if len(m.outcomes) != 2 || m.outcomes[1].Code != signal.CodeConnectionRequired || m.outcomes[1].Ticket != k.ID {
					t.Errorf("recorded %+v", m.outcomes)
				}
				in := request(t, plain)
				in.Credential = identity.Credential{Bearer: "ann-token"}
				_, f := m.Call(t.Context(), in)
				if f == nil || f.Kernel.Code != signal.CodeConnectionRequired || f.Kernel.Detail["ticket"] != k.ID {
					t.Errorf("its agent got %v", f)
				}
				m.grants.have(back, nil)
				if got := m.get(t, k.ID, 10*time.Second); got.State != approval.StateDone || len(m.arrivals()) != 1 {
					t.Errorf("%s, ran at %v", got.State, m.arrivals())
				}
			})
		})
	}
}

// An approved call whose server refuses the credential that is there is made once with it, and again
// once there is another, or its agent calls again.
func TestRefusedCredentialIsNotTriedAgain(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		m.grants.have(grantOf("ann", nil), nil)
		m.forwardErr = &registry.ForwardError{Kind: registry.Unconnected, Err: notConnected, Sent: true}
		id := m.ask(t, `{"n":1}`)
		m.approve(t, id)
		got := m.get(t, id, 5*time.Minute)
		if got.State != approval.StateNeedsConnection || got.Unconnected != "the server refuses the credential crd_1" || len(m.arrivals()) != 1 {
			t.Fatalf("%s: %q, ran at %v", got.State, got.Unconnected, m.arrivals())
		}
		in := request(t, plain)
		in.Credential = identity.Credential{Bearer: "ann-token"}
		if _, f := m.Call(t.Context(), in); f == nil || f.Kernel.Code != signal.CodeConnectionRequired || len(m.arrivals()) != 2 {
			t.Errorf("its agent got %v, ran at %v", f, m.arrivals())
		}
		m.set(func() { m.forwardErr, m.sent = nil, nil })
		if got := m.get(t, id, time.Minute); got.State != approval.StateNeedsConnection || len(m.arrivals()) != 2 {
			t.Errorf("%s, ran at %v", got.State, m.arrivals())
		}
		m.grants.have(grantOf("ann", func(c *registry.Credential) { c.ID = "crd_2" }), nil)
		if got := m.get(t, id, 10*time.Second); got.State != approval.StateDone || len(m.arrivals()) != 3 {
			t.Errorf("connected again: %s, ran at %v", got.State, m.arrivals())
		}
	})
}

// Nobody else's credential runs an approved call, whatever else is the same, up to its end.
func TestApprovedCallNeverRunsAsAnother(t *testing.T) {
	withWorkerGate(t, func(t *testing.T, m *workerGate) {
		m.grants.have(grantOf("ann", nil), nil)
		k := m.get(t, m.ask(t, `{"n":1}`), 0)
		m.grants.have(grantOf("ann", func(c *registry.Credential) { c.Person.Subject = "bob" }), nil)
		m.approve(t, k.ID)
		in := request(t, plain)
		in.Credential = identity.Credential{Bearer: "ann-token"}
		if _, f := m.Call(t.Context(), in); f == nil || f.Kernel.Code != signal.CodeUpstreamUnavailable {
			t.Errorf("its agent got %v", f)
		}
		if got := m.get(t, k.ID, 15*time.Minute); got.State != approval.StateExpired || len(m.arrivals()) > 0 {
			t.Errorf("%s, ran at %v", got.State, m.arrivals())
		}
	})
}

// A held call whose connection ends while it waits for its approval does not run when it is
// approved.
func TestConnectionEndsDuringTheHold(t *testing.T) {
	for name, tt := range map[string]struct {
		found *registry.Credential
		err   error
	}{
		"missing":  {nil, notConnected},
		"narrowed": {grantOf("ann", func(c *registry.Credential) { c.Scopes = nil }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			synctest.Test(t, func(t *testing.T) {
				m := openWorkerGate(t, path, proxy.Settings{Hold: new(time.Minute), ConsoleURL: consoleURL})
				m.grants.have(grantOf("ann", nil), nil)
				in := request(t, plain)
				in.Credential = identity.Credential{Bearer: "ann-token"}
				done := make(chan *proxy.Failure)
				go func() {
					_, f := m.Call(t.Context(), in)
					done <- f
				}()
				time.Sleep(10 * time.Second)
				found, err := m.tickets.List(t.Context(), approval.Filter{})
				if err != nil || len(found) != 1 {
					t.Fatalf("%v, %v", found, err)
				}
				m.grants.have(tt.found, tt.err)
				m.approve(t, found[0].ID)
				if f := <-done; f == nil || f.Kernel.Code != signal.CodeConnectionRequired || f.Kernel.Detail["ticket"] != found[0].ID {
					t.Errorf("got %v", f)
				}
				in.Message = request(t, `{"name":"approval_status","arguments":{}}`).Message
				reply, f := m.Call(t.Context(), in)
				if f != nil || !strings.Contains(string(reply.Result), `"connect_url":"`+connectionURL+`"`) || !strings.Contains(string(reply.Result), `"status":"needs_connection"`) {
					t.Errorf("the agent hears %v, %v", reply, f)
				}
				if k := m.get(t, found[0].ID, time.Minute); k.State != approval.StateNeedsConnection || len(m.arrivals()) > 0 {
					t.Errorf("%s, ran at %v", k.State, m.arrivals())
				}
			})
		})
	}
}
