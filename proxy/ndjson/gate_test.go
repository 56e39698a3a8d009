package ndjson_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/ndjson"
	"github.com/toolgate/toolgate/registry"
)

func TestMain(m *testing.M) {
	if os.Getenv(doorVar) != "" {
		beDoor()
	}
	goleak.VerifyTestMain(m)
}

// bench is everything around a real gate. What a tool does, and what is
// decided about it, goes by its name.
type bench struct {
	gate    *proxy.Gate
	nobody  bool                // nobody is identified
	noAudit bool                // outcomes cannot be written
	release chan struct{}       // lets the tool "wait" answer
	started chan struct{}       // told each time "wait" begins
	tools   *registry.Catalogue // nil: the road trips over it

	mu       sync.Mutex // protects the fields below
	sent     []string   // "tool arguments" of what reached the upstream
	sessions []string   // the session of each
	records  []string   // "outcome code" of each outcome record
}

// results are what tools answer.
var results = map[string]string{
	"supportive_reply": `{"content":[{"type":"text","text":"{\"reply\":\"I hear you, and I am glad you reached out...\"}"}],` +
		`"structuredContent":{"reply":"I hear you, and I am glad you reached out..."},` +
		`"_meta":{"io.toolgate/action":{"action":"other","boundaryNotice":"Non-clinical support; must provide escalation cues when risk is elevated",` +
		`"uncertainty":"medium","assumptions":["Risk level: medium (self-reported or system-assessed)"]}}}`,
	"structured": "{\"content\":[],\n\"structuredContent\":{ \"n\":9007199254740993 }}",
	"text":       `{"content":[{"type":"text","text":"hello"}]}`,
	"sloppy":     `{"content":[],"structuredContent":{"n":"x"}}`,
	"empty":      `{"content":[]}`,
	"isError":    `{"content":[{"type":"text","text":"the disk is full"}],"isError":true}`,
	"liar":       `{"content":[],"structuredContent":{"n":1},"_meta":{"io.toolgate/action":{"boundaryNotice":"","uncertainty":"none","assumptions":["a",1]}}}`,
	"approved":   `{"content":[],"structuredContent":{"n":1}}`,
	"array":      `{"content":[],"structuredContent":[1]}`,
	"hidden":     `{"content":[]}`,
	"limited":    `{"content":[]}`,
	"denied":     `{"content":[]}`,
	"held":       `{"content":[]}`,
	"wait":       `{"content":[],"structuredContent":{"waited":true}}`,
}

const numbered = `{"type":"object","properties":{"n":{"type":"integer"},"list":{"items":{"type":"string"}}}}`

// tool makes the tool of a name.
func tool(name string) *registry.Tool {
	definition := `{"name":"` + name + `","description":"does ` + name + `","inputSchema":` + numbered + `}`
	t := &registry.Tool{Server: "demo", Name: name, Exposed: "demo__" + name, Fingerprint: "sha256:" + name, Timeout: time.Second, OutputMode: "warn", Input: compiled(numbered)}
	switch name {
	case "supportive_reply":
		definition = `{"name":"supportive_reply","inputSchema":` + numbered + `,"outputSchema":{"type":"object"},"_meta":{"boundaryNotice":"Non-clinical support"}}`
	case "structured":
		t.Notice = "For tests only"
	case "sloppy", "empty":
		t.Output = compiled(numbered)
	}
	t.Definition = json.RawMessage(definition)
	return t
}

func compiled(text string) *schema.Schema {
	s, err := schema.Compile(json.RawMessage(text))
	if err != nil {
		panic(err)
	}
	return s
}

func newBench() *bench {
	b := &bench{release: make(chan struct{}), started: make(chan struct{}, 1000)}
	names := make([]string, 0, len(results))
	for name := range results {
		names = append(names, name)
	}
	slices.Sort(names)
	var tools []*registry.Tool
	for _, name := range names {
		tools = append(tools, tool(name))
	}
	b.tools = registry.NewCatalogue([]string{"demo"}, tools...)
	gate, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Upstreams: b})
	if err != nil {
		panic(err)
	}
	b.gate = gate
	return b
}

func (b *bench) Identify(_ context.Context, c identity.Credential) (policy.Principal, error) {
	if b.nobody || !c.Local && c.Bearer != "good" {
		return policy.Principal{}, identity.ErrUnauthenticated
	}
	return policy.Principal{Subject: "ann", Roles: []string{"r"}}, nil
}

func (b *bench) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	d := policy.Decision{Effect: policy.Allow, Rule: "R1", Revision: "sha256:p"}
	switch in.Tool.Name {
	case "denied":
		d.Effect, d.Reason, d.Remedy = policy.Deny, "observers may not do this", "ask for the role treasurer"
	case "held", "approved":
		d.Effect, d.Rule, d.Reason, d.Approval = policy.Hold, "H", "large", &policy.Approval{Roles: []string{"boss"}}
	}
	if in.Request.Transport != "ndjson" {
		return d, errors.New("the transport is not named")
	}
	return d, nil
}

func (b *bench) Visible(_ context.Context, _ policy.Principal, t policy.Tool) (bool, error) {
	return t.Name != "hidden", nil
}

func (b *bench) Revision() string { return "sha256:p" }

func (b *bench) Spend(_ time.Time, _ policy.Principal, t policy.Tool, _ *policy.Limit) *limit.Exceeded {
	if t.Name == "limited" {
		return &limit.Exceeded{Limit: "10/1m", Scope: "the tool", RetryAfter: 1500 * time.Microsecond}
	}
	return nil
}

func (b *bench) Claim(_ context.Context, h approval.Held) (approval.Claim, error) {
	t := approval.Ticket{
		Held: approval.Held{Approval: policy.Approval{Roles: []string{"boss"}}, Rule: h.Rule, Reason: h.Reason}, ID: "apr_1", Expires: time.Unix(1e9, 0),
	}
	if h.Tool == "approved" {
		return approval.Claim{Ticket: t, Outcome: approval.Granted}, nil
	}
	return approval.Claim{Ticket: t, Outcome: approval.Pending}, nil
}

func (b *bench) Release(context.Context, string) error { return nil }

func (b *bench) Finish(context.Context, string, approval.State, []byte, string) error { return nil }

func (b *bench) Write(kind audit.Kind, r *audit.Record) error {
	if kind != audit.KindOutcome {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, string(r.Outcome)+" "+r.Stage)
	if b.noAudit {
		return errors.New("disk full")
	}
	return nil
}

func (b *bench) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return b.tools.View(route)
}

func (b *bench) Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	b.mu.Lock()
	b.sent = append(b.sent, t.Name+" "+string(out.Arguments))
	b.sessions = append(b.sessions, out.From.Session)
	b.mu.Unlock()
	if t.Name == "wait" {
		b.started <- struct{}{}
		select {
		case <-b.release:
		case <-ctx.Done():
			return nil, &registry.ForwardError{Kind: registry.Cancelled, Sent: true, Err: context.Cause(ctx)}
		}
	}
	if raw, ok := jsonrpc.Get(out.Arguments, "fail"); ok {
		return nil, &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: raw}
	}
	return json.RawMessage(results[t.Name]), nil
}

// calls gives what reached the upstream.
func (b *bench) calls() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

// outcomes gives the outcome records.
func (b *bench) outcomes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.records)
}

// door makes a door in front of b.
func (b *bench) door(t testing.TB, change func(*ndjson.Options)) *ndjson.Door {
	t.Helper()
	opts := ndjson.Options{Gate: b.gate, Refuser: b.gate}
	if change != nil {
		change(&opts)
	}
	d, err := ndjson.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// doorVar makes the test binary a door on stdin and stdout.
const doorVar = "NDJSON_DOOR"

// beDoor serves a bench whose tools are those of the Node server.
func beDoor() {
	results["echo"], results["fail"] = results["structured"], results["isError"]
	b := newBench()
	d, err := ndjson.New(ndjson.Options{Gate: b.gate, Refuser: b.gate})
	if err == nil {
		err = d.Serve(context.Background(), os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
