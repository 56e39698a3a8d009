package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	alice = policy.Principal{Subject: "alice", Roles: []string{"researcher"}}
	bob   = policy.Principal{Subject: "bob", Roles: []string{"researcher"}}
)

// known are the tokens: NAME-token for each.
func known(names ...string) identity.Config {
	c := identity.Config{Configured: true}
	for _, name := range names {
		c.Tokens = append(c.Tokens, identity.Token{Subject: name, Roles: []string{"researcher"}, SHA256: identity.HashToken(name + "-token")})
	}
	return c
}

// gate is a real road whose controls are hand-made. What a tool does is in its
// name: see forward, Decide and Spend. A tool named after a kernel code fails
// with it before the road does.
type gate struct {
	*proxy.Gate
	who     *identity.Authenticator
	tools   *registry.Catalogue
	schemas *registry.SchemaRegistry
	store   func() *artifact.Store // opened by the first that asks
	bus     *bus.Bus
	started chan struct{} // told when the tool "wait" begins
	finish  chan struct{} // closed, lets it end; nil = only its cancellation does
	silent  bool          // Call gives nothing at all
	visible func(p policy.Principal, t policy.Tool) bool

	mu       sync.Mutex // protects the fields below
	sent     []string   // argument bytes that reached a tool
	metas    []string   // their _meta
	judged   []string   // argument bytes that the policy saw
	calls    []*proxy.Call
	outcomes []audit.Record
}

const anyInput = `{"type":"object","properties":{"n":{"type":"integer"}}}`

// tool makes a tool of server demo from its definition.
func tool(name, rest string) *registry.Tool {
	definition := json.RawMessage(fmt.Sprintf(`{"name":%q,"inputSchema":%s%s}`, name, anyInput, rest))
	listed, err := jsonrpc.Set(definition, "name", jsonrpc.Quote("demo__"+name))
	if err != nil {
		panic(err)
	}
	return &registry.Tool{
		Server: "demo", Name: name, Exposed: "demo__" + name, Definition: definition, Listed: listed,
		Fingerprint: "sha256:" + name, Timeout: time.Minute, OutputMode: "warn", Risk: "low",
	}
}

func catalogue(schemas *registry.SchemaRegistry) *registry.Catalogue {
	tools := []*registry.Tool{
		tool("echo", `,"title":"Echo","description":"Says \"it\" again","annotations":{"readOnlyHint":true},"outputSchema":{"type":"object","properties":{"said":{}}}`),
		tool("wait", ""), tool("fails", ""), tool("held", ""), tool("denied", ""), tool("limited", ""), tool("secret", ""), tool("broken", ""),
	}
	for _, t := range tools {
		io, err := schemas.LoadToolIO(t.Exposed, t)
		if err != nil {
			panic(err)
		}
		t.Input = compiled(io.Input)
	}
	return registry.NewCatalogue([]string{"demo"}, tools...)
}

func newGate(t testing.TB, depth int) *gate {
	t.Helper()
	g := &gate{schemas: registry.NewSchemaRegistry(), started: make(chan struct{}, 8), bus: bus.New(bus.Options{Depth: depth, PerPrincipal: 2})}
	g.visible = func(p policy.Principal, t policy.Tool) bool { return t.Name != "secret" || p.Subject == "bob" }
	g.tools = catalogue(g.schemas)
	g.store = sync.OnceValue(func() *artifact.Store { return openStore(t) })
	t.Cleanup(g.bus.Close)
	var err error
	if g.who, err = identity.New(known("alice", "bob", "carol")); err != nil {
		t.Fatal(err)
	}
	controls := controls{g}
	g.Gate, err = proxy.New(proxy.Options{
		Identifier: g.who, Policy: controls, Limiter: controls, Tickets: controls, Recorder: controls, Upstreams: controls, Bus: g.bus,
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func openStore(t testing.TB) *artifact.Store {
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	s, err := artifact.Open(t.Context(), filepath.Join(dir, "artifacts"), db, artifact.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Call refuses with the kernel code that the tool is named after, else it is
// the road's.
func (g *gate) Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	g.mu.Lock()
	g.calls = append(g.calls, in)
	g.mu.Unlock()
	if g.silent {
		return nil, nil
	}
	if in.Message != nil {
		raw, _ := jsonrpc.Get(in.Message.Params, "name")
		if name, _ := jsonrpc.Text(raw); strings.HasPrefix(name, "T") {
			return nil, failure(name)
		}
	}
	return g.Gate.Call(ctx, in)
}

// failure is what a stage of the road would make of a kernel code; an unknown
// one is a fault of ours.
func failure(code string) *proxy.Failure {
	e, err := signal.ErrorFor(code, "planted", signal.ModuleRef{Tier: 4, Module: "gate", Function: "test"}, map[string]any{"secret": "planted detail"}, nil)
	if err != nil {
		e = &signal.KernelError{Code: code, Category: signal.Input, Severity: signal.Fatal, Message: "planted"}
	}
	f := &proxy.Failure{Kernel: e, Reason: "planted reason", DecisionID: "dec_1", TraceID: "trc_1"}
	if e.RetryEligible {
		f.RetryAfter = 1500 * time.Millisecond
	}
	return f
}

// ToolIO is the registry's, but for a tool that cannot be read.
func (g *gate) ToolIO(exposed string) (*registry.ToolIO, error) {
	t, ok := g.tools.Lookup("", exposed)
	switch {
	case !ok:
		return nil, registry.ErrUnknownTool
	case t.Name == "broken":
		return nil, registry.ErrUnknownTool // it has gone since it was listed
	}
	return g.schemas.LoadToolIO(exposed, t)
}

// Get is the store's, but for carol, whose disk is broken.
func (g *gate) Get(ctx context.Context, who policy.Principal, id string) (artifact.Artifact, *os.File, error) {
	if who.Subject == "carol" {
		return artifact.Artifact{}, nil, errors.New("planted: the disk is broken")
	}
	return g.store().Get(ctx, who, id)
}

func (g *gate) Publish(who policy.Principal, s signal.Signal) { g.bus.Publish(who, s) }

// Subscribe is the bus's, but for carol, whose bus is broken.
func (g *gate) Subscribe(who policy.Principal) (*bus.Subscription, error) {
	if who.Subject == "carol" {
		return nil, errors.New("planted: the bus is broken")
	}
	return g.bus.Subscribe(who)
}

// records gives how many outcome records there are, and the last one.
func (g *gate) records() (int, audit.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.outcomes) == 0 {
		return 0, audit.Record{}
	}
	return len(g.outcomes), g.outcomes[len(g.outcomes)-1]
}

// reached gives the arguments that came as far as a tool.
func (g *gate) reached() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.sent)
}

// controls are the gate's side towards the road.
type controls struct{ g *gate }

func (c controls) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.g.judged = append(c.g.judged, string(in.Arguments))
	d := policy.Decision{Effect: policy.Allow, Rule: "R", Reason: "because", Revision: "sha256:p"}
	switch in.Tool.Name {
	case "denied":
		d.Effect, d.Reason = policy.Deny, "researcher may not do this"
	case "held":
		d.Effect, d.Approval = policy.Hold, &policy.Approval{Roles: []string{"boss"}}
	}
	return d, nil
}

func (c controls) Visible(_ context.Context, p policy.Principal, t policy.Tool) (bool, error) {
	return c.g.visible(p, t), nil
}

func (c controls) Revision() string { return "sha256:p" }

func (c controls) Spend(_ time.Time, _ policy.Principal, t policy.Tool, _ *policy.Limit) *limit.Exceeded {
	if t.Name == "limited" {
		return &limit.Exceeded{RetryAfter: 2500 * time.Millisecond, Limit: "10/1m", Scope: t.Exposed}
	}
	return nil
}

func (c controls) Claim(_ context.Context, h approval.Held) (approval.Claim, error) {
	return approval.Claim{Outcome: approval.Pending, Ticket: approval.Ticket{
		Held: approval.Held{Approval: policy.Approval{Roles: []string{"boss"}}, Rule: "R", Reason: "large"},
		ID:   "apr_1", State: approval.StateProposed, Expires: time.Unix(2e9, 0),
	}}, nil
}

func (c controls) Release(context.Context, string) error { return nil }

func (c controls) Finish(context.Context, string, approval.State, []byte, string) error { return nil }

func (c controls) Write(kind audit.Kind, r *audit.Record) error {
	if kind != audit.KindOutcome {
		return nil
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.g.outcomes = append(c.g.outcomes, *r)
	return nil
}

func (c controls) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return c.g.tools.View(route)
}

// Forward is the tools: echo says its arguments, fails reports an error of its
// own, wait ends when it is cancelled.
func (c controls) Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	c.g.mu.Lock()
	c.g.sent = append(c.g.sent, string(out.Arguments))
	c.g.metas = append(c.g.metas, string(out.Meta))
	c.g.mu.Unlock()
	switch t.Name {
	case "fails":
		return json.RawMessage(`{"content":[{"type":"text","text":"no such city"}],"isError":true}`), nil
	case "wait":
		c.g.started <- struct{}{}
		select {
		case <-ctx.Done():
		case <-c.g.finish:
		}
		if ctx.Err() != nil {
			return nil, &registry.ForwardError{Kind: registry.Cancelled, Sent: true}
		}
	}
	text := string(jsonrpc.Quote("said " + string(out.Arguments)))
	return json.RawMessage(`{"content":[{"type":"text","text":` + text + `}]}`), nil
}
