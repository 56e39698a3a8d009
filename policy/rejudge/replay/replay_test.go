package replay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
)

// engine loads the default policy with data in which what changes says is edited.
func engine(t testing.TB, changes ...string) *rego.Engine {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, bundle.Files); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "data.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if !strings.Contains(strings.Join(changes, ""), `"usage"`) { // what these tests record was not counted
		before, rest, _ := strings.Cut(text, `  "usage": {`)
		_, after, _ := strings.Cut(rest, "\n  },\n")
		text = before + after
	}
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			t.Fatalf("data.json has no %s", changes[i])
		}
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := rego.Load(t.Context(), rego.Options{Path: dir, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// judged gives the n-th of many judgements.
func judged(rnd *rand.Rand, n int) *policy.Input {
	roles := []string{"observer", "researcher", "creator", "treasurer", "nobody"}
	role := roles[rnd.IntN(len(roles))]
	in := &policy.Input{
		Principal: policy.Principal{Subject: "agent-" + role, Roles: []string{role}},
		Arguments: json.RawMessage(`{}`),
		Request:   policy.Request{ID: fmt.Sprint(n), Transport: "http", TraceID: fmt.Sprintf("%032x", n), Time: start.Add(time.Duration(n) * time.Second)},
	}
	call := func(name, args string) {
		in.Tool = policy.Tool{Server: "standard", Name: name, Exposed: name, Risk: "high", Fingerprint: "sha256:" + name}
		in.Arguments = json.RawMessage(args)
	}
	switch rnd.IntN(4) {
	case 0:
		call("search_internet", fmt.Sprintf(`{"query":"x","num_results":%d}`, rnd.IntN(9)))
	case 1:
		call("manage_wallet", fmt.Sprintf(`{"action":"transfer","asset":"USD","amount":%d.5,"destination":"acme"}`, rnd.IntN(200)))
	case 2:
		call("generate_media", `{"prompt":"a cat","model":"card-1"}`)
	default:
		in.Action, in.Resource = "resources/read", &policy.Resource{Server: "files", URI: "file:///a"}
	}
	return in
}

// recordOf is what a gate leaves of a judgement.
func recordOf(in *policy.Input, d *policy.Decision) *audit.Record {
	r := &audit.Record{
		Time: in.Request.Time, DecisionID: "dec_" + in.Request.ID, CallID: "sig_" + in.Request.ID, TraceID: in.Request.TraceID,
		Principal: audit.Principal{Subject: in.Principal.Subject, Roles: in.Principal.Roles, Client: in.Principal.Client, Tenant: in.Principal.Tenant},
		Transport: in.Request.Transport, RequestID: in.Request.ID, Method: in.Action,
		Server: in.Tool.Server, Tool: in.Tool.Name, Exposed: in.Tool.Exposed, Fingerprint: in.Tool.Fingerprint, Arguments: in.Arguments,
		Policy: audit.Policy{Effect: string(d.Effect), Rule: d.Rule, Reason: d.Reason, Remedy: d.Remedy, Revision: d.Revision, Obligations: judgement.EncodeObligations(d)},
	}
	if in.Resource != nil {
		r.Server = in.Resource.Server
	}
	r.Input = judgement.EncodeInput(in, r)
	return r
}

// past writes a trail of n decisions that e made: refusals as outcomes, the others
// as decisions with their outcomes.
func past(t testing.TB, e *rego.Engine, n int) (root string, asked []*policy.Input, was []policy.Decision) {
	t.Helper()
	root = t.TempDir()
	log, err := audit.Open(root, audit.Options{Durability: audit.OS, SegmentBytes: 4 << 20, Now: func() time.Time { return start }})
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range n {
		in := judged(rnd, i)
		d, err := e.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		asked, was = append(asked, in), append(was, d)
		r := recordOf(in, &d)
		if d.Effect == policy.Allow {
			if err := log.Write(audit.KindDecision, r); err != nil {
				t.Fatal(err)
			}
			r.Input, r.Arguments = nil, nil
		}
		r.Outcome, r.Stage = audit.Allowed, "close"
		if err := log.Write(audit.KindOutcome, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return root, asked, was
}

func run(t testing.TB, root string, j judgement.Judge, o replay.Options) *replay.Report {
	t.Helper()
	rep, err := replay.Run(t.Context(), audit.Read(t.Context(), root, time.Time{}), j, o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestTheSamePolicyDecidesTheSame(t *testing.T) {
	e := engine(t)
	root, asked, _ := past(t, e, 2000)
	rep := run(t, root, e, replay.Options{Examples: 3})
	if rep.Differs() || rep.Judged != len(asked) || rep.Same != len(asked) || rep.Lost() != 0 || len(rep.Errors) != 0 {
		t.Errorf("got %+v", rep)
	}
	if rep.Revisions[e.Revision()] != len(asked) || rep.Candidate != e.Revision() {
		t.Errorf("revisions %v, candidate %s", rep.Revisions, rep.Candidate)
	}
	if !rep.First.Equal(asked[0].Request.Time) || !rep.Last.Equal(asked[len(asked)-1].Request.Time) {
		t.Errorf("from %v to %v", rep.First, rep.Last)
	}
}

// What a replay finds is what asking both policies finds.
func TestAChangedPolicy(t *testing.T) {
	parts.Long(t, "replays 3,000 decisions")
	old := engine(t)
	next := engine(t, `"USD": 100`, `"USD": 50`, `"search_internet": true,`, ``, `"approval": {"roles": ["approver"], "quorum": 1}`, `"approval": {"roles": ["approver"], "quorum": 2}`)
	root, asked, was := past(t, old, 3000)
	effects, changed, adjusted := map[string]int{}, map[string]int{}, map[string]int{}
	same, firsts := 0, map[string]string{}
	for i, in := range asked {
		now, err := next.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		effects[fmt.Sprint(was[i].Effect, now.Effect)]++
		key := fmt.Sprint(was[i].Effect, was[i].Rule, now.Effect, now.Rule)
		switch {
		case was[i].Effect != now.Effect:
			changed[key]++
		case was[i].Rule != now.Rule || was[i].Effect == policy.Hold: // of which the quorum is another
			adjusted[key]++
		default:
			same++
			continue
		}
		if firsts[key] == "" {
			firsts[key] = "dec_" + in.Request.ID
		}
	}
	if len(changed) < 2 || len(adjusted) < 1 || same == 0 {
		t.Fatalf("the changes are too few to tell: %v %v %d", changed, adjusted, same)
	}
	for _, workers := range []int{1, 7} {
		rep := run(t, root, next, replay.Options{Examples: 2, Workers: workers})
		if rep.Same != same || rep.Judged != len(asked) || !rep.Differs() {
			t.Errorf("%d the same of %d, want %d of %d", rep.Same, rep.Judged, same, len(asked))
		}
		moves := map[string]int{}
		for _, m := range rep.Effects {
			moves[fmt.Sprint(m.Was, m.Now)] = m.Count
		}
		if diff := cmp.Diff(effects, moves); diff != "" {
			t.Errorf("effects (-want +got):\n%s", diff)
		}
		for what, pair := range map[string]struct {
			want map[string]int
			got  replay.Changes
		}{"changed": {changed, rep.Changed}, "adjusted": {adjusted, rep.Adjusted}} {
			turns, total := map[string]int{}, 0
			for _, turn := range pair.got.Rules {
				key := fmt.Sprint(turn.Was.Effect, turn.Was.Rule, turn.Now.Effect, turn.Now.Rule)
				turns[key] = turn.Count
				total += turn.Count
				if len(turn.Examples) != min(2, turn.Count) || turn.Examples[0].DecisionID != firsts[key] {
					t.Errorf("%s: %s has examples %+v, want %s first", what, key, turn.Examples, firsts[key])
				}
			}
			if diff := cmp.Diff(pair.want, turns); diff != "" || pair.got.Count != total {
				t.Errorf("%s, %d (-want +got):\n%s", what, pair.got.Count, diff)
			}
			people, tools := 0, 0
			for _, s := range pair.got.Principals {
				people += s.Count
			}
			for _, s := range pair.got.Tools {
				tools += s.Count
			}
			if people != total || tools != total {
				t.Errorf("%s: %d by principal and %d by tool, want %d", what, people, tools, total)
			}
		}
	}
}

func TestFilters(t *testing.T) {
	e := engine(t)
	root, asked, _ := past(t, e, 500)
	for name, tt := range map[string]struct {
		o    replay.Options
		want func(*policy.Input) bool
	}{
		"role":      {replay.Options{Records: audit.Filter{Roles: []string{"creator", "nobody"}}}, func(in *policy.Input) bool { return in.Principal.Has("creator", "nobody") }},
		"principal": {replay.Options{Records: audit.Filter{Principals: []string{"agent-observer"}}}, func(in *policy.Input) bool { return in.Principal.Subject == "agent-observer" }},
		"tool":      {replay.Options{Records: audit.Filter{Tools: []string{"manage_wallet"}}}, func(in *policy.Input) bool { return in.Tool.Exposed == "manage_wallet" }},
		"pattern":   {replay.Options{Records: audit.Filter{Tools: []string{"gen*", "resources/*"}}}, func(in *policy.Input) bool { return in.Tool.Exposed == "generate_media" || in.Resource != nil }},
		"until":     {replay.Options{Until: asked[99].Request.Time}, func(in *policy.Input) bool { return !in.Request.Time.After(asked[99].Request.Time) }},
	} {
		want := 0
		for _, in := range asked {
			if tt.want(in) {
				want++
			}
		}
		if got := run(t, root, e, tt.o).Judged; got != want || want == 0 || want == len(asked) {
			t.Errorf("%s: %d judged, want %d of %d", name, got, want, len(asked))
		}
	}
	if _, err := replay.Run(t.Context(), audit.Read(t.Context(), root, time.Time{}), e, replay.Options{Records: audit.Filter{Tools: []string{"["}}}); err == nil {
		t.Error("a pattern that is none was taken")
	}
}

// TestMaskedArguments holds that a call whose arguments are recorded masked or as a digest
// is judged again only where the verdict does not depend on what the record lacks.
func TestMaskedArguments(t *testing.T) {
	const constant = `decision := {"effect": "deny", "rule": "no"} if input.tool.name == "constant"

`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.rego"), []byte("package toolgate\n\nimport rego.v2\n\n"+constant+
		`decision := {"effect": "allow", "rule": "pin"} if {
	input.tool.name == "other"
	input.arguments.pin == "1234"
}

decision := {"effect": "allow", "rule": "each"} if {
	input.tool.name == "each"
	every name, _ in input.arguments { name != "no" }
}

decision := {"effect": "allow", "rule": "named"} if {
	input.tool.name == "named"
	input.arguments[concat("", ["p", "in"])] == "1234"
}

decision := {"effect": "allow", "rule": "request"} if {
	input.tool.name == "request"
	input.request.transport != "carrier pigeon"
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := rego.Load(t.Context(), rego.Options{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		tool, kept string
		arguments  json.RawMessage
		judged     int
	}{
		{"constant", "masked", json.RawMessage(`{"pin":"[masked]"}`), 1},
		{"constant", "digest", nil, 1},
		{"other", "masked", json.RawMessage(`{"pin":"[masked]"}`), 0},
		{"other", "digest", nil, 0},
		{"other", "masked", json.RawMessage(`{"pin":"1234","password":"[masked]"}`), 1},
		{"other", "masked", json.RawMessage(`{"pin":"1234","deep":[{"password":"[masked]"}]}`), 1},
		{"other", "masked", json.RawMessage(`{"pin":{"code":"[masked]"}}`), 0},
		{"each", "masked", json.RawMessage(`{"pin":"1234","password":"[masked]"}`), 0},
		{"named", "masked", json.RawMessage(`{"pin":"1234","password":"[masked]"}`), 0},
		{"request", "digest", nil, 1},
		{"undefined", "digest", nil, 1},
		{"other", "", json.RawMessage(`{"pin":"1234"}`), 1},
	} {
		in := judged(rand.New(rand.NewPCG(4, 4)), 1)
		in.Tool.Name, in.Arguments, in.Usage = tt.tool, json.RawMessage(`{"pin":"1234"}`), nil
		d, err := e.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		r := recordOf(in, &d)
		r.Kind, r.Arguments, r.ArgumentsKept = audit.KindDecision, tt.arguments, tt.kept
		rep, err := replay.Run(t.Context(), each(r), e, replay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Judged != tt.judged || rep.Same != tt.judged || rep.Lost() != 1-tt.judged {
			t.Errorf("%s kept as %q: got %+v", tt.tool, tt.kept, rep)
		}
	}
}

func TestWhatCannotBeJudgedAgain(t *testing.T) {
	e := engine(t)
	in := judged(rand.New(rand.NewPCG(4, 4)), 1)
	d, err := e.Decide(t.Context(), in)
	if err != nil || !in.Calls() {
		t.Fatal(d, err)
	}
	with := func(change func(*audit.Record)) *audit.Record {
		r := recordOf(in, &d)
		r.Kind = audit.KindOutcome
		change(r)
		return r
	}
	for name, tt := range map[string]struct {
		r    *audit.Record
		want string // "" = it is not counted
	}{
		"older form":           {with(func(r *audit.Record) { r.Input = nil }), "older toolgate"},
		"older decision":       {with(func(r *audit.Record) { r.Input, r.Kind = nil, audit.KindDecision }), "older toolgate"},
		"input of later":       {with(func(r *audit.Record) { r.Input = json.RawMessage(`{"tool":{"risk":""},"request":{},"mood":1}`) }), `unknown field "mood"`},
		"input twice":          {with(func(r *audit.Record) { r.Input = append(r.Input, '{', '}') }), "more than one"},
		"no tool":              {with(func(r *audit.Record) { r.Input = json.RawMessage(`{"request":{}}`) }), "a tool is wanted"},
		"obligations of later": {with(func(r *audit.Record) { r.Policy.Obligations = json.RawMessage(`{"dance":1}`) }), `unknown field "dance"`},
		"ttl": {with(func(r *audit.Record) {
			r.Policy.Obligations = json.RawMessage(`{"approval":{"roles":[],"ttl":"soon"}}`)
		}), "ttl"},
		"hold": {with(func(r *audit.Record) {
			r.Policy.Obligations = json.RawMessage(`{"approval":{"roles":[],"hold":"soon"}}`)
		}), "hold"},
		"arguments as text":  {with(func(r *audit.Record) { r.Arguments = json.RawMessage(`"{\"a\": \ufffd}"`) }), "kept as text"},
		"lost bytes":         {with(func(r *audit.Record) { r.Arguments = json.RawMessage(`"{\"a\": \"\ufffd\"}"`) }), "kept as text"},
		"not asked":          {with(func(r *audit.Record) { r.Policy = audit.Policy{} }), ""},
		"decision before it": {with(func(r *audit.Record) { r.Input, r.Arguments = nil, nil }), ""},
		"ticket":             {with(func(r *audit.Record) { r.Input, r.Kind = nil, audit.KindTicket }), ""},
		"open":               {with(func(r *audit.Record) { r.Kind = audit.KindOpen }), ""},
	} {
		rep, err := replay.Run(t.Context(), each(tt.r), e, replay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if tt.want == "" {
			if rep.Lost() != 0 || rep.Judged != 0 {
				t.Errorf("%s: got %+v", name, rep)
			}
			continue
		}
		if rep.Judged != 0 || len(rep.Unjudged) != 1 || !strings.Contains(rep.Unjudged[0].Cause, tt.want) || rep.Unjudged[0].Count != 1 || rep.Unjudged[0].DecisionID != "dec_1" {
			t.Errorf("%s: got %+v, want %s", name, rep, tt.want)
		}
	}
}

// each yields what it is given: records, and errors where there are some.
func each(items ...any) iter.Seq2[*audit.Record, error] {
	return func(yield func(*audit.Record, error) bool) {
		for _, item := range items {
			r, _ := item.(*audit.Record)
			err, _ := item.(error)
			if !yield(r, err) {
				return
			}
		}
	}
}

// A policy may want counted what nobody counted at the time.
func TestWhatWasNotCounted(t *testing.T) {
	e := engine(t, `"usage"`, `"usage"`)
	in := &policy.Input{Principal: policy.Principal{Subject: "a", Roles: []string{"treasurer"}}, Request: policy.Request{ID: "1"},
		Tool: policy.Tool{Exposed: "manage_wallet"}, Arguments: json.RawMessage(`{"action":"balance"}`)}
	d, err := e.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	r := recordOf(in, &d)
	r.Kind = audit.KindOutcome
	in.Usage = map[string]policy.Reading{"day": {Calls: 1, Sum: "0.30"}}
	counted := recordOf(in, &d)
	counted.Kind = audit.KindOutcome
	rep, err := replay.Run(t.Context(), each(r, counted), e, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Judged != 1 || rep.Same != 1 || rep.Lost() != 1 || !strings.Contains(rep.Unjudged[0].Cause, `data.usage["manage_wallet"].day`) {
		t.Errorf("got %+v", rep)
	}
}

// fixedPolicy is a policy with one verdict, or one error.
type fixedPolicy struct {
	d   policy.Decision
	err error
}

func (m fixedPolicy) Decide(context.Context, *policy.Input) (policy.Decision, error) {
	return m.d, m.err
}
func (m fixedPolicy) Meters(policy.Tool) []policy.Meter { return nil }
func (m fixedPolicy) Revision() string                  { return "sha256:m" }

func TestPoliciesThatFail(t *testing.T) {
	in := judged(rand.New(rand.NewPCG(4, 4)), 1)
	fine := policy.Decision{Effect: policy.Allow, Rule: "A", Revision: "sha256:1"}
	broken := policy.Decision{Effect: policy.Deny, Rule: "policy_error", Revision: "sha256:1"}
	record := func(d policy.Decision) *audit.Record {
		r := recordOf(in, &d)
		r.Kind = audit.KindOutcome
		return r
	}
	rep, err := replay.Run(t.Context(), each(record(fine), record(broken)), fixedPolicy{d: fine}, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Differs() || rep.Judged != 1 || rep.Failed.Count != 1 || rep.Failed.Rules[0].Now.Effect != policy.Allow {
		t.Errorf("one that failed then: %+v", rep)
	}
	rep, err = replay.Run(t.Context(), each(record(fine), audit.ErrNoRecord, record(fine)), fixedPolicy{broken, errors.New("divide by zero")}, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Changed.Count != 2 || len(rep.Errors) != 1 || rep.Errors[0].Count != 2 || rep.Errors[0].Cause != "divide by zero" || rep.Lost() != 1 {
		t.Errorf("one that fails now: %+v", rep)
	}
	if _, err := replay.Run(t.Context(), each(record(fine), errors.New("disk on fire")), fixedPolicy{d: fine}, replay.Options{}); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("a trail that cannot be read: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := replay.Run(ctx, each(record(fine)), fixedPolicy{d: fine}, replay.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("an end that was asked for: %v", err)
	}
}

// A replay holds no more of a long trail than of a short one.
func TestMemoryIsFlat(t *testing.T) {
	parts.Long(t, "replays 12,000 decisions")
	e := engine(t)
	root, _, _ := past(t, e, 12_000)
	next := engine(t, `"USD": 100`, `"USD": 50`)
	var early, late uint64
	rep := run(t, root, next, replay.Options{Examples: 5, Progress: func(p replay.Progress) {
		if p.Records%4096 == 0 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			if late = m.HeapAlloc; early == 0 {
				early = late
			}
		}
	}})
	if rep.Judged != 12_000 || rep.Changed.Count == 0 || early == 0 {
		t.Fatalf("judged %d, changed %d", rep.Judged, rep.Changed.Count)
	}
	if grown := int64(late) - int64(early); grown > 4<<20 { // the trail is some 18 MB
		t.Errorf("the heap grew by %d bytes over the trail", grown)
	}
}

func BenchmarkReplay(b *testing.B) {
	e := engine(b)
	const decisions = 100_000
	root, _, _ := past(b, e, decisions)
	next := engine(b, `"USD": 100`, `"USD": 50`)
	for b.Loop() {
		if rep := run(b, root, next, replay.Options{Examples: 5}); rep.Judged != decisions {
			b.Fatal(rep)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/decisions, "ns/decision")
}
