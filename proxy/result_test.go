package proxy_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

func members(t *testing.T, raw json.RawMessage) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return m
}

func TestResultModes(t *testing.T) {
	const upstream = `{"content":[{"type":"text","text":"<hello>"}],"_meta":{"vendor":9007199254740993},"x":1e2}`
	for _, tt := range []struct {
		mode string
		want string // start of the result, byte for byte
	}{
		{"off", upstream},
		{"compact", `{"content":[{"type":"text","text":"<hello>"}],"_meta":{"vendor":9007199254740993,"io.toolgate/result":{"status":"ok","decision_id":"dec_`},
		{"full", `{"content":[{"type":"text","text":"<hello>"}],"_meta":{"vendor":9007199254740993,"io.toolgate/result":{"status":"ok","signals":[{`},
		{"signals", `{"content":[{"type":"text","text":"{\"status\":\"ok\"`},
	} {
		b := newBench(t)
		b.result = upstream
		b.Apply(proxy.Settings{Results: tt.mode})
		reply, f := b.call(t, plain)
		if f != nil {
			t.Fatalf("%s: %v", tt.mode, f)
		}
		if got := string(reply.Result); len(got) < len(tt.want) || got[:len(tt.want)] != tt.want {
			t.Errorf("%s:\n got %s\nwant %s…", tt.mode, got, tt.want)
		}
		if !json.Valid(reply.Result) {
			t.Errorf("%s: %s is no JSON", tt.mode, reply.Result)
		}
	}
}

func TestCompactNamesTheSignals(t *testing.T) {
	b := newBench(t)
	reply, f := b.call(t, plain)
	if f != nil {
		t.Fatal(f)
	}
	view, _ := members(t, reply.Result)["_meta"].(map[string]any)["io.toolgate/result"].(map[string]any)
	signals, _ := view["signals"].([]any)
	if len(signals) != 1 || signals[0] != reply.Kernel.Signals[0].ID() || view["decision_id"] != reply.DecisionID || view["trace_id"] != reply.TraceID || len(view) != 4 {
		t.Errorf("the view is %v", view)
	}
}

// A result whose metadata are null, or that is nested deep, passes every mode whole, and
// every control looks at it.
func TestOddResultsPass(t *testing.T) {
	deep := `{"secret":"s3cret","text":"x\u202ey","deep":` + strings.Repeat(`[{"a":`, 450) + `1` + strings.Repeat(`}]`, 450) + `}`
	for _, mode := range []string{"off", "compact", "full", "signals"} {
		for _, meta := range []string{`null`, `{"a":1}`} {
			tool := *searcher
			tool.EscapeHidden, tool.OutputMode = true, "enforce"
			tool.Output = mustSchema(`{"properties":{"secret":{"type":"string"},"deep":{"$ref":"#/$defs/d"}},"$defs":{"d":{"type":["array","object","integer"],"items":{"$ref":"#/$defs/d"},"additionalProperties":{"$ref":"#/$defs/d"}}}}`)
			b := newBench(t, &tool)
			b.Apply(proxy.Settings{Results: mode})
			b.decision.Redact = []string{"/structuredContent/secret", "/structuredContent/deep/0/a/0/a/0/none"}
			b.result = `{"content":[{"type":"text","text":"hello"}],"structuredContent":` + deep + `,"_meta":` + meta + `}`
			reply, f := b.call(t, plain)
			if f != nil {
				t.Fatalf("%s, _meta %.10s: %v", mode, meta, f)
			}
			got := string(reply.Result)
			if _, _, err := jsonrpc.CheckValue(reply.Result, jsonrpc.Limits{Depth: 2000}); err != nil || strings.Contains(got, "s3cret") {
				t.Errorf("%s, _meta %.10s: %v, %.200s", mode, meta, err, got)
			}
			if text, _ := jsonrpc.TextAt(reply.Result, "structuredContent", "text"); mode != "signals" && text != "x<U+202E>y" {
				t.Errorf("%s, _meta %.10s: the text is %q", mode, meta, text)
			}
			if own, ok := jsonrpc.At(reply.Result, "_meta", "io.toolgate/result"); ok == (mode == "off") || ok && own[0] != '{' {
				t.Errorf("%s, _meta %.10s: our metadata are %.200s", mode, meta, own)
			}
			if a, _ := jsonrpc.At(reply.Result, "_meta", "a"); meta != "null" && string(a) != "1" {
				t.Errorf("%s: the server's metadata are lost: %.200s", mode, got)
			}
		}
	}
}

func TestRedaction(t *testing.T) {
	for _, tt := range []struct{ name, result, pointer, want string }{
		{"member", `{"content":[],"structuredContent":{"key":"s3cret","n":1}}`, "/structuredContent/key", `{"content":[],"structuredContent":{"key":"[redacted]","n":1}}`},
		{"text that repeats it", `{"content":[{"type":"text","text":"{\"key\":\"s3cret\"}"}],"structuredContent":{"key":"s3cret"}}`, "/structuredContent/key",
			`{"content":[{"type":"text","text":"{\"key\":\"[redacted]\"}"}],"structuredContent":{"key":"[redacted]"}}`},
		{"element", `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "/content/1/text", `{"content":[{"type":"text","text":"a"},{"type":"text","text":"[redacted]"}]}`},
		{"names nothing", `{"content":[]}`, "/structuredContent/key", `{"content":[]}`},
		{"escaped", `{"content":[],"structuredContent":{"a/b":"s3cret"}}`, "/structuredContent/a~1b", `{"content":[],"structuredContent":{"a/b":"[redacted]"}}`},
	} {
		b := newBench(t)
		b.Apply(proxy.Settings{Results: "off"})
		b.result, b.decision.Redact = tt.result, []string{tt.pointer}
		reply, f := b.call(t, plain)
		if f != nil {
			t.Fatalf("%s: %v", tt.name, f)
		}
		if d := cmp.Diff(tt.want, string(reply.Result)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

func TestRedactionThatCannotBeDoneWithholds(t *testing.T) {
	b := newBench(t)
	b.decision.Redact = []string{"no pointer"}
	if reply, f := b.call(t, plain); reply != nil || f == nil || f.Kernel.Code != signal.CodeInternal {
		t.Errorf("got %v, %v, want %s alone", reply, f, signal.CodeInternal)
	}
}

func TestOutputSchema(t *testing.T) {
	const good, bad = `{"content":[],"structuredContent":{"n":1}}`, `{"content":[],"structuredContent":{"n":"x"}}`
	for _, tt := range []struct {
		mode, result string
		code         string
		status       signal.Status
	}{
		{"enforce", good, "", signal.StatusOK},
		{"enforce", bad, signal.CodeOutputInvalid, ""},
		{"enforce", `{"content":[]}`, signal.CodeOutputInvalid, ""},
		{"enforce", `{"content":[],"isError":true}`, "", signal.StatusError},
		{"warn", bad, "", signal.StatusPartial},
		{"off", bad, "", signal.StatusOK},
	} {
		tool := *searcher
		tool.Output, tool.OutputMode = mustSchema(`{"type":"object","properties":{"n":{"type":"integer"}}}`), tt.mode
		b := newBench(t, &tool)
		b.result = tt.result
		reply, f := b.call(t, plain)
		if f != nil {
			if f.Kernel.Code != tt.code {
				t.Errorf("%s %s: %v, want %q", tt.mode, tt.result, f, tt.code)
			}
			continue
		}
		if tt.code != "" || reply.Kernel.Status != tt.status {
			t.Errorf("%s %s: status %s, want %s %s", tt.mode, tt.result, reply.Kernel.Status, tt.status, tt.code)
		}
	}
}

// Arguments that break the schema of a tool that only warns are sent as they are. The
// result, its record and the metrics say so.
func TestInputSchemaThatWarns(t *testing.T) {
	const breaks, structured = `{"n":"1"}`, `{"content":[],"structuredContent":{"n":"x"}}`
	const fault = `the arguments break the tool's schema: /n: type: "1" is text where the number 1 is wanted`
	numbers := mustSchema(`{"type":"object","properties":{"n":{"type":"integer"}}}`)
	for _, tt := range []struct {
		name, mode, arguments, result string
		output                        bool // the tool has an output schema
		sent                          int
		warnings, codes               []string
	}{
		{"enforced", "enforce", breaks, structured, false, 0, nil, nil},
		{"not said", "", breaks, structured, false, 0, nil, nil},
		{"breaks", "warn", breaks, structured, false, 1, []string{fault}, []string{signal.CodeSchemaMismatch}},
		{"fits", "warn", `{"n":1}`, structured, false, 1, nil, nil},
		{"both break", "warn", breaks, structured, true, 1, []string{fault, `structuredContent breaks the tool's output schema: /n: type: want integer, got string "x"`},
			[]string{signal.CodeSchemaMismatch, signal.CodeOutputInvalid}},
		{"the tool fails", "warn", breaks, `{"content":[],"isError":true}`, true, 1, []string{fault}, []string{signal.CodeSchemaMismatch}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tool := *searcher
			if tool.InputMode = tt.mode; tt.output {
				tool.Output = numbers
			}
			b := newBench(t, &tool)
			b.result = tt.result
			var seen proxy.Observation
			g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Observe: func(o proxy.Observation) { seen = o },
				Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, &tool)}})
			if err != nil {
				t.Fatal(err)
			}
			b.Gate = g
			reply, f := b.call(t, `{"name":"web__find","arguments":`+tt.arguments+`}`)
			if len(b.sent) != tt.sent || tt.sent == 1 && (f != nil || b.sent[0] != tt.arguments) || tt.sent == 0 && f.Kernel.Code != signal.CodeSchemaMismatch {
				t.Fatalf("sent %q, failure %v", b.sent, f)
			}
			if diff := cmp.Diff(tt.warnings, b.outcomes[0].Warnings); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.codes, seen.Warnings); diff != "" {
				t.Error(diff)
			}
			if len(tt.warnings) > 0 && !tt.output && (reply.Kernel.Status != signal.StatusPartial || reply.Kernel.Error.Message != fault) {
				t.Errorf("the result is %s: %v", reply.Kernel.Status, reply.Kernel.Error)
			}
		})
	}
}

// A validator that fails refuses the call, and where the schema only warns is a warning.
func TestInputThatCannotBeValidated(t *testing.T) {
	costly := mustSchema(`{"$defs":{"n":{"anyOf":[{"items":{"$ref":"#/$defs/n"}},{"items":{"$ref":"#/$defs/n"}}]}},"properties":{"a":{"$ref":"#/$defs/n"}}}`)
	deep := `{"a":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `}`
	for mode, want := range map[string]string{"enforce": signal.CodeInternal, "warn": ""} {
		tool := *searcher
		tool.Input, tool.InputMode = costly, mode
		b := newBench(t, &tool)
		_, f := b.call(t, `{"name":"web__find","arguments":`+deep+`}`)
		if want != "" && (f == nil || f.Kernel.Code != want || len(b.sent) != 0) || want == "" && (f != nil || len(b.sent) != 1 || len(b.outcomes[0].Warnings) != 1) {
			t.Errorf("%s: failure %v, sent %d, %+v", mode, f, len(b.sent), b.outcomes)
		}
	}
}

func TestPendingAndReplay(t *testing.T) {
	b := newBench(t)
	b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateProposed), Outcome: approval.Pending}
	reply, f := b.call(t, plain)
	if f != nil {
		t.Fatal(f)
	}
	got := members(t, reply.Result)
	view := got["_meta"].(map[string]any)["io.toolgate/approval"].(map[string]any)
	if got["isError"] != true || view["status"] != "pending" || view["ticket"] != "apr_1" || reply.Kernel.Error == nil || reply.Kernel.Error.Code != signal.CodeApprovalPending || !reply.Kernel.Error.RetryEligible {
		t.Errorf("pending: %s", reply.Result)
	}
	if len(b.sent) != 0 || len(b.decisions) != 0 || len(b.outcomes) != 1 || b.outcomes[0].Outcome != "held" {
		t.Errorf("pending: sent %v, records %+v %+v", b.sent, b.decisions, b.outcomes)
	}

	stored := ticket(approval.StateDone)
	stored.Result = json.RawMessage(`{"content":[{"type":"text","text":"paid"}]}`)
	b.claim = approval.Claim{Ticket: stored, Outcome: approval.Replay}
	reply, f = b.call(t, plain)
	if f != nil {
		t.Fatal(f)
	}
	view = members(t, reply.Result)["_meta"].(map[string]any)["io.toolgate/approval"].(map[string]any)
	if view["status"] != "replayed" || len(b.sent) != 0 || !b.outcomes[1].Replayed {
		t.Errorf("replay: %s, sent %v, record %+v", reply.Result, b.sent, b.outcomes[1])
	}

	// A result that was not kept, or that a person only found to be: the note says
	// which.
	stored.Result, stored.Note = nil, "ann found that the call took effect: it is on the statement"
	b.claim = approval.Claim{Ticket: stored, Outcome: approval.Replay}
	_, f = b.call(t, plain)
	if f == nil || f.Kernel.Code != signal.CodeToolFailed || !strings.HasSuffix(f.Reason, stored.Note) || len(b.sent) != 0 {
		t.Errorf("replay without a result: %+v, sent %v", f, b.sent)
	}
}

// A call that is decided while it waits goes on as if it had never waited.
func TestHoldThenGrant(t *testing.T) {
	b := newBench(t)
	b.decision = held
	b.claim = approval.Claim{Ticket: ticket(approval.StateProposed), Outcome: approval.Pending}
	g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b,
		Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)},
		Waiter: waiter(func() {
			b.claim = approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		}),
		Settings: proxy.Settings{Hold: new(time.Duration(1))}})
	if err != nil {
		t.Fatal(err)
	}
	if _, f := g.Call(context.Background(), request(t, plain)); f != nil || len(b.sent) != 1 {
		t.Errorf("got %v, sent %v, want one run", f, b.sent)
	}
}

// waiter decides the ticket as soon as somebody waits for it.
type waiter func()

func (w waiter) Wait(context.Context, string) error { w(); return nil }
