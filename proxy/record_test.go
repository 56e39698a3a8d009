package proxy_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// witness is a policy that decides by lot and remembers, before a trail on disk.
type witness struct {
	*askingServer
	rnd   *rand.Rand
	trail *audit.Log
	root  string
	ticks atomic.Int64
	asked map[string][]asking    // by request id
	tools [2]*registry.Catalogue // as they were found, and changed and quarantined
}

type asking struct {
	In policy.Input
	D  policy.Decision
}

func newWitness(t *testing.T, seed uint64) *witness {
	t.Helper()
	w := &witness{askingServer: newAskingServer(t), rnd: rand.New(rand.NewPCG(seed, 1)), root: t.TempDir(), asked: map[string][]asking{}}
	var err error
	if w.trail, err = audit.Open(w.root, audit.Options{Durability: audit.OS, Instance: "a"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.trail.Close() })
	second := *searcher
	second.Name, second.Exposed, second.Risk = "seek", "web__seek", "high"
	second.Annotations = json.RawMessage("{ \"title\" : \"S\u2028eek\",\n\r\n\t\"readOnlyHint\":true}")
	w.tools[0] = registry.NewCatalogue([]string{"web"}, searcher, &second)
	changed := second
	changed.Fingerprint, changed.Quarantine = "sha256:g", "changed"
	w.tools[1] = registry.NewCatalogue([]string{"web"}, searcher, &changed)
	w.client.says = func(registry.Question) registry.Answer { return registry.Answer{Result: json.RawMessage(`{"a":1}`)} }
	none := time.Duration(0)
	w.Gate, err = proxy.New(proxy.Options{
		Identifier: w, Policy: w, Limiter: w, Usage: w, Tickets: w, Waiter: w, Recorder: w.trail, Servers: w, Upstreams: w, Now: w.now,
		Settings: proxy.Settings{Hold: &none, Methods: map[string][]string{"web": {"vendor/thing", "notifications/vendor/thing"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// now gives each judgement a time of its own.
func (w *witness) now() time.Time { return time.Unix(1_800_000_000, w.ticks.Add(1)) }

func (w *witness) Identify(context.Context, identity.Credential) (policy.Principal, error) {
	p := policy.Principal{Subject: "ann", Roles: []string{"r", "söx"}[:w.rnd.IntN(3)], Tenant: []string{"", "t"}[w.rnd.IntN(2)]}
	if w.rnd.IntN(20) == 0 {
		p.Subject = "eve"
	}
	return p, nil
}

func (w *witness) Visible(context.Context, policy.Principal, policy.Tool) (bool, error) {
	return w.rnd.IntN(20) > 0, nil
}

func (w *witness) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	return w.tools[w.rnd.IntN(10)/9].View(route)
}

func (w *witness) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	d, err := w.draw(), error(nil)
	if w.rnd.IntN(15) == 0 {
		d, err = policy.Decision{Effect: policy.Deny, Rule: "policy_error", Revision: "sha256:p"}, errors.New("planted")
	}
	w.asked[group(in)] = append(w.asked[group(in)], asking{*in, d})
	return d, err
}

// draw gives any decision that an engine can give.
func (w *witness) draw() policy.Decision {
	texts := []string{"", "a", `q"uo\te`, "lüne\n\u2028x", "<&>"}
	text := func() string { return texts[w.rnd.IntN(len(texts))] }
	d := policy.Decision{Rule: text(), Reason: text(), Remedy: text(), Revision: "sha256:p"}
	d.Effect = []policy.Effect{policy.Allow, policy.Hold, policy.Deny}[w.rnd.IntN(3)]
	if w.rnd.IntN(2) == 0 {
		d.Labels = map[string]string{"rule": text(), text(): text()}
	}
	if d.Effect == policy.Deny {
		return d
	}
	if w.rnd.IntN(2) == 0 {
		d.Limit = &policy.Limit{Rate: "60/1m", Burst: w.rnd.IntN(3), Key: text()}
	}
	if w.rnd.IntN(2) == 0 {
		d.Redact = []string{"/no/such~1thing"}
	}
	if d.Effect == policy.Hold {
		d.Approval = &policy.Approval{Roles: []string{"boss", text()}, Quorum: w.rnd.IntN(3), ExecuteOnApprove: w.rnd.IntN(2) == 0}
		d.Approval.TTL = []time.Duration{0, time.Minute, 1500 * time.Millisecond, 1}[w.rnd.IntN(4)]
		hold := []time.Duration{0, 10 * time.Millisecond, 10 * time.Millisecond}[w.rnd.IntN(3)]
		d.Approval.Hold = &hold
	}
	return d
}

// Meters has one tool counted.
func (w *witness) Meters(t policy.Tool) []policy.Meter {
	if t.Name != "seek" {
		return nil
	}
	return []policy.Meter{{Name: "day", Window: time.Hour}}
}

// Read gives a reading by lot.
func (w *witness) Read(context.Context, *limit.Use) (map[string]policy.Reading, error) {
	return map[string]policy.Reading{"day": {Calls: w.rnd.Int64N(9), Sum: "10000000000000000000000.1"}}, nil
}

// Reserve has the call judged again by lot.
func (w *witness) Reserve(ctx context.Context, use *limit.Use, _ map[string]policy.Reading, again func(map[string]policy.Reading) bool) (*limit.Reservation, error) {
	now, _ := w.Read(ctx, use)
	if w.rnd.IntN(2) == 0 && !again(now) {
		return nil, limit.ErrRefused
	}
	return nil, nil
}

// Return forgets.
func (w *witness) Return(context.Context, *limit.Reservation) error { return nil }

// Claim finds the call waiting, or granted, or refused.
func (w *witness) Claim(context.Context, approval.Held) (approval.Claim, error) {
	switch w.rnd.IntN(4) {
	case 0:
		return approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}, nil
	case 1:
		return approval.Claim{Ticket: ticket(approval.StateDenied), Outcome: approval.Denied}, nil
	}
	return pendingClaim(), nil
}

// Wait ends at once, so that the call is judged again.
func (w *witness) Wait(context.Context, string) error {
	if w.rnd.IntN(5) == 0 {
		return errors.New("planted")
	}
	return nil
}

// act sends one request of some kind with an id of its own, and has its server ask
// two questions if it is the call of a tool.
func (w *witness) act(t *testing.T, n int) {
	t.Helper()
	kinds := []struct{ method, params string }{
		{"tools/call", `{"name":"web__find","arguments":{"n":1}}`},
		{"tools/call", "{\"name\":\"web__seek\",\"arguments\":{\"n\":1,\r\n\"x\":[1e400,\"\u2028\\u0000\",null, 10000000000000000000001]}}"},
		{"tools/call", `{"name":"web__seek"}`},
		{"tools/call", `{"name":"web__seek","arguments":{"n":"no integer"}}`},
		{"resources/read", `{"uri":"file:///a"}`},
		{"prompts/get", `{"name":"p","arguments":{"a":"1"}}`},
		{"prompts/get", `{"name":"p"}`},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"file:///{x}"},"argument":{}}`},
		{"logging/setLevel", `{"level": "info"}`},
		{"vendor/thing", `{"deep":{"n":[1]}}`},
		{"notifications/vendor/thing", `{"x":1}`},
	}
	k := kinds[w.rnd.IntN(len(kinds))]
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}`, n, k.method, k.params)
	if strings.HasPrefix(k.method, "notifications/") {
		text = fmt.Sprintf(`{"jsonrpc":"2.0","method":"%s","params":%s}`, k.method, k.params)
	}
	m, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	in := &proxy.Call{Message: m, Transport: "http", Era: "2025-11-25", Route: "web", Session: "s", Peer: w.client, Home: w.home,
		Client: "c/1", TraceID: fmt.Sprint("trace ", n), Capabilities: json.RawMessage(everything)}
	w.during = func(ctx context.Context, from registry.Downstream) {
		from.Peer.Ask(ctx, []registry.Question{
			{Key: fmt.Sprint(n, "a"), Method: "sampling/createMessage", Params: json.RawMessage("{\n\"x\": 1}")},
			{Key: fmt.Sprint(n, "b"), Method: "roots/list"},
		})
	}
	switch {
	case k.method == "tools/call":
		in.Route = ""
		_, _ = w.Call(t.Context(), in)
	case m.Kind == jsonrpc.Notification:
		_ = w.Gate.Notify(t.Context(), in)
	default:
		_, _ = w.Relay(t.Context(), in)
	}
}

// Whatever is asked of a policy, whatever it answers and whatever then becomes of
// it: the trail holds it once, and it reads back as the very same judgement. Of a
// call that was judged again it holds the last.
func TestRecordsHoldTheVeryJudgement(t *testing.T) {
	methods, effects, again, counted := map[string]int{}, map[policy.Effect]int{}, 0, 0
	for seed := range uint64(8) {
		w := newWitness(t, seed)
		for n := range 400 {
			w.act(t, n)
		}
		if err := w.trail.Close(); err != nil {
			t.Fatal(err)
		}
		for r, err := range audit.Read(t.Context(), w.root, time.Time{}) {
			if err != nil {
				t.Fatal(err)
			}
			in, d, err := judgement.Decode(r)
			if err != nil {
				if !errors.Is(err, judgement.ErrNotAsked) && !errors.Is(err, judgement.ErrElsewhere) {
					t.Fatalf("seed %d, %s %s: %v", seed, r.Method, r.DecisionID, err)
				}
				continue
			}
			key := group(in)
			asked := w.asked[key]
			delete(w.asked, key)
			if len(asked) == 0 {
				t.Fatalf("seed %d: %s was not asked, or is recorded twice: %+v", seed, key, in)
			}
			if diff := gocmp.Diff(asked[len(asked)-1].plain(), asking{*in, *d}.plain(), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d, %s, effect recorded %s (-asked +recorded):\n%s", seed, r.Method, r.Policy.Effect, diff)
			}
			methods[in.Action]++
			effects[d.Effect]++
			again += len(asked) - 1
			counted += len(in.Usage)
		}
		for key, asked := range w.asked {
			t.Errorf("seed %d: %s is not recorded: %+v", seed, key, asked)
		}
	}
	if len(methods) != 9 || len(effects) != 3 || again < 20 || counted < 100 {
		t.Errorf("the lot fell on %v, %v and %d that were judged again, want 9 actions and 3 effects; %d had a meter", methods, effects, again, counted)
	}
}

// group names what was asked: a request, or what has no id.
func group(in *policy.Input) string { return cmp.Or(in.Request.ID, in.Request.TraceID) }

// plain is j without what no record says: the spaces between the tokens of
// annotations, and the words of who cannot judge.
func (j asking) plain() asking {
	line := new(bytes.Buffer)
	if json.Compact(line, j.In.Tool.Annotations) == nil {
		j.In.Tool.Annotations = line.Bytes()
	}
	if j.D.Rule == "policy_error" {
		j.D.Reason = ""
	}
	return j
}
