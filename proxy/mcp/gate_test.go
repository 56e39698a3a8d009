package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// people are the bearer tokens that the fake gate knows. The local user of the
// stdio door is alice too.
var people = map[string]string{"alice-token": "alice", "bob-token": "bob", "alice-app-token": "alice app"}

// fakeGate is a road without stages. Its tools are named for what they do.
type fakeGate struct {
	anonymous bool                // callers without a token are "local"
	tools     []*registry.Tool    // what everybody sees
	release   chan struct{}       // lets the tool "wait" answer
	started   chan struct{}       // told each time "wait" begins
	behave    map[string]behavior // :: upstream name -> what a call does

	mu      sync.Mutex    // protects the fields below
	reached []*proxy.Call // tools/call that came as far as a tool
	refused []string      // "CODE method" of each refusal by a door
	count   int           // ids given out
}

type behavior func(ctx context.Context, g *fakeGate, in *proxy.Call, args json.RawMessage) (json.RawMessage, *proxy.Failure)

func newGate() *fakeGate {
	g := &fakeGate{release: make(chan struct{}), started: make(chan struct{}, 100)}
	g.behave = map[string]behavior{"echo": echo, "wait": wait, "steps": steps, "denied": fails(signal.CodePolicyDenied, "researcher may not do this"),
		"limited": fails(signal.CodeRateLimited, "10 per minute"), "broken": fails(signal.CodeToolFailed, "the tool said no"), "talk": talk}
	for _, name := range []string{"echo", "wait", "steps", "denied", "limited", "broken"} {
		g.tools = append(g.tools, tool(name))
	}
	return g
}

// tool makes an upstream definition that no re-marshalling would survive.
func tool(name string) *registry.Tool {
	const definition = `{"name":%q, "x-vendor":{"big":9007199254740993},"inputSchema":{"type":"object","$schema":"http://json-schema.org/draft-07/schema#"}}`
	return &registry.Tool{
		Server: "demo", Name: name, Exposed: "demo__" + name,
		Definition: json.RawMessage(fmt.Sprintf(definition, name)),
		Listed:     json.RawMessage(fmt.Sprintf(definition, "demo__"+name)),
	}
}

func (g *fakeGate) Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	if in.Fault != nil {
		code := map[jsonrpc.FaultKind]string{
			jsonrpc.Parse: signal.CodeEnvelopeParse, jsonrpc.Invalid: signal.CodeEnvelopeInvalid, jsonrpc.TooLarge: signal.CodeEnvelopeTooLarge,
		}[in.Fault.Kind]
		return nil, g.fail(code, in.Fault.Reason)
	}
	if _, f := g.Identify(ctx, in.Credential); f != nil {
		return nil, f
	}
	raw, _ := jsonrpc.Get(in.Message.Params, "name")
	name, _ := jsonrpc.Text(raw)
	if in.Route == "" {
		name = strings.TrimPrefix(name, "demo__")
	}
	do, ok := g.behave[name]
	if !ok {
		return nil, g.fail(signal.CodeToolNotFound, "no tool "+name)
	}
	g.mu.Lock()
	g.reached = append(g.reached, in)
	g.mu.Unlock()
	args, _ := jsonrpc.Get(in.Message.Params, "arguments")
	result, f := do(ctx, g, in, args)
	if f != nil {
		return nil, f
	}
	return &proxy.Reply{Result: result, DecisionID: "dec_passed", TraceID: "trc_passed"}, nil
}

func (g *fakeGate) Listing(_ context.Context, _ *proxy.Call, p policy.Principal) *proxy.Listing {
	if p.Subject != "bob" {
		return &proxy.Listing{Tools: g.tools}
	}
	return &proxy.Listing{Tools: slices.DeleteFunc(slices.Clone(g.tools), func(t *registry.Tool) bool { return t.Name == "denied" })}
}

func (g *fakeGate) Identify(_ context.Context, c identity.Credential) (policy.Principal, *proxy.Failure) {
	subject, ok := people[c.Bearer]
	switch {
	case c.Malformed:
		return policy.Principal{}, g.fail(signal.CodeUnauthenticated, "the Authorization header is not one bearer token")
	case ok:
	case c.Local:
		subject = "alice"
	case g.anonymous && c.Bearer == "":
		subject = "local"
	default:
		return policy.Principal{}, g.fail(signal.CodeUnauthenticated, "the token is not known")
	}
	subject, app, _ := strings.Cut(subject, " ") // the OAuth client of the token
	return policy.Principal{Subject: subject, ClientID: app, Roles: []string{"researcher"}}, nil
}

func (g *fakeGate) Refuse(_ context.Context, in *proxy.Call, code, reason string) *proxy.Failure {
	method := "?"
	if in.Message != nil {
		method = in.Message.Method
	}
	g.mu.Lock()
	g.refused = append(g.refused, code+" "+method)
	g.mu.Unlock()
	return g.fail(code, reason)
}

func (g *fakeGate) fail(code, reason string) *proxy.Failure {
	kernel, err := signal.ErrorFor(code, reason, signal.ModuleRef{Tier: 4, Module: "gate", Function: "fake"}, nil, nil)
	if err != nil {
		panic(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
	return &proxy.Failure{Kernel: kernel, Reason: reason, DecisionID: fmt.Sprintf("dec_%d", g.count), TraceID: fmt.Sprintf("trc_%d", g.count)}
}

// calls gives how many calls came as far as a tool.
func (g *fakeGate) calls() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.reached)
}

func (g *fakeGate) refusals() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.refused)
}

// echo returns the argument bytes as text, in a result with raw line ends.
func echo(_ context.Context, _ *fakeGate, _ *proxy.Call, args json.RawMessage) (json.RawMessage, *proxy.Failure) {
	return json.RawMessage("{\"content\":[{\"type\":\"text\",\"text\":" + string(jsonrpc.Quote(string(args))) + "}],\n\t\"big\":9007199254740993}"), nil
}

// wait reports that it has begun, and answers when the test says so or is
// cancelled.
func wait(ctx context.Context, g *fakeGate, in *proxy.Call, args json.RawMessage) (json.RawMessage, *proxy.Failure) {
	g.started <- struct{}{}
	if in.Progress != nil {
		in.Progress(json.RawMessage(`{"progress":0}`))
	}
	select {
	case <-g.release:
		return echo(ctx, g, in, args)
	case <-ctx.Done():
		return nil, g.fail(signal.CodeCancelled, "cancelled")
	}
}

// steps reports twice and answers.
func steps(ctx context.Context, g *fakeGate, in *proxy.Call, args json.RawMessage) (json.RawMessage, *proxy.Failure) {
	if in.Progress != nil {
		in.Progress(json.RawMessage("{\"progress\":1,\n\"total\":2}"))
		in.Progress(json.RawMessage(`{"progress":2,"total":2}`))
	}
	return echo(ctx, g, in, args)
}

func fails(code, reason string) behavior {
	return func(_ context.Context, g *fakeGate, _ *proxy.Call, _ json.RawMessage) (json.RawMessage, *proxy.Failure) {
		return nil, g.fail(code, reason)
	}
}

// newDoor makes a door in front of g that the test closes.
func newDoor(t testing.TB, g *fakeGate, change func(*mcp.Options)) *mcp.Door {
	t.Helper()
	opts := mcp.Options{
		Gate: g, Refuser: g, Version: "1.2.3",
		HasServer: func(name string) bool { return name == "demo" || name == "other" },
	}
	if change != nil {
		change(&opts)
	}
	d, err := mcp.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("closing the door: %v", err)
		}
	})
	return d
}

// newServer serves a door over loopback. Streams end before the server does.
func newServer(t testing.TB, g *fakeGate, change func(*mcp.Options)) (*httptest.Server, *mcp.Door) {
	t.Helper()
	var srv *httptest.Server
	t.Cleanup(func() { // after the door has closed
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	d := newDoor(t, g, change)
	srv = httptest.NewServer(d)
	return srv, d
}

type (
	proxyCall    = proxy.Call
	proxyFailure = proxy.Failure
	raw          = json.RawMessage
)
