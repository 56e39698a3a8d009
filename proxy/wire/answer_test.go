package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

var update = flag.Bool("update", false, "write the golden files")

var gate = signal.ModuleRef{Tier: 4, Module: "gate", Function: "call"}

// failure is one of each row, with everything filled in.
func failure(t *testing.T, r wire.Row) wire.Failure {
	t.Helper()
	cause := signal.ProcessingError("the cause", gate, nil, nil)
	e, err := signal.ErrorFor(r.Kernel, "kernel message", gate, map[string]any{"n": json.Number("1e2")}, cause)
	if err != nil {
		t.Fatal(err)
	}
	var first json.RawMessage
	if r.Code == wire.ConnectionRequired {
		first = json.RawMessage(toDoFirst)
	}
	return wire.Failure{
		Elicitations: first,
		Kernel:       e, RetryAfter: 1500*time.Millisecond + 1, Reason: "why <it> failed", Remedy: "do this instead",
		Context:    "rule r, agent-7 with role observer",
		DecisionID: "dec_1", TraceID: "trc_1", Upstream: json.RawMessage(`{"code":-32050,"message":"own words","data":{"b":1e2,"a":1}}`),
	}
}

// toDoFirst is the elicitations of failure.
const toDoFirst = `[{"mode":"url","elicitationId":"con_1","url":"https://console.example.org/connections/web","message":"connect"}]`

// said is what a message says of failure, after the row's own words.
const said = ": why <it> failed (rule r, agent-7 with role observer). Hint: do this instead"

// One failure of each row in each dialect, byte for byte.
func TestAnswerGolden(t *testing.T) {
	const path = "testdata/answers.txt"
	var got bytes.Buffer
	for _, r := range wire.Rows() {
		for _, d := range dialects {
			reply, err := wire.Answer(d, failure(t, r))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&got, "%s %s HTTP %d silent %v\n", r.Code, d, reply.HTTP, reply.Silent)
			fmt.Fprintf(&got, "  result %s\n  error  %s\n", reply.Result, reply.Error)
		}
	}
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Error(diff)
	}
}

// The rules that the golden file is an instance of.
func TestAnswerHasOneFormPerDialect(t *testing.T) {
	for _, r := range wire.Rows() {
		for _, d := range dialects {
			t.Run(string(r.Code)+"/"+string(d), func(t *testing.T) {
				f := failure(t, r)
				reply, err := wire.Answer(d, f)
				if err != nil {
					t.Fatal(err)
				}
				if reply.HTTP != r.HTTP || reply.Silent != (r.Form == wire.AsNothing) {
					t.Errorf("HTTP %d, silent %v", reply.HTTP, reply.Silent)
				}
				switch {
				case r.Form == wire.AsNothing:
					if reply.Result != nil || reply.Error != nil {
						t.Error("a silent answer says something")
					}
				case d == wire.MCP && r.Form == wire.AsUpstream:
					if string(reply.Error) != string(f.Upstream) || reply.Result != nil {
						t.Errorf("got %s", reply.Error)
					}
				case d == wire.MCP && r.Form == wire.AsResult:
					checkResult(t, r, reply)
				default:
					checkError(t, r, d, reply)
				}
			})
		}
	}
}

// A client whose profile wants results gets each failure of a tool call as one, in every
// dialect, with what the error would have said: but for those of a request that calls no
// tool, and for an upstream's request to elicit something first.
func TestProfileGetsResults(t *testing.T) {
	for _, r := range wire.Rows() {
		for _, d := range dialects {
			t.Run(string(r.Code)+"/"+string(d), func(t *testing.T) {
				f := failure(t, r)
				f.Errors = wire.ErrorsAsResult
				reply, err := wire.Answer(d, f)
				switch {
				case err != nil:
					t.Fatal(err)
				case r.Form == wire.AsNothing:
					if !reply.Silent || reply.Result != nil {
						t.Errorf("got %s", reply.Result)
					}
				case r.Code == wire.InternalError:
					if reply.Error != nil || !strings.Contains(string(reply.Result), `"text":"Internal error."`) {
						t.Errorf("got %s %s", reply.Result, reply.Error)
					}
				default:
					checkResult(t, r, reply)
				}
				f.Plain = true
				if reply, err = wire.Answer(d, f); err != nil || reply.Result != nil {
					t.Errorf("of no tool: %s, %v", reply.Result, err)
				}
			})
		}
	}
	row, _ := wire.Lookup(wire.ToolFailed)
	f := failure(t, row)
	f.Errors, f.Upstream = wire.ErrorsAsResult, json.RawMessage(`{"code":-32042,"message":"sign in","data":{}}`)
	if reply, err := wire.Answer(wire.Gateway, f); err != nil || string(reply.Error) != string(f.Upstream) {
		t.Errorf("an elicitation: %s, %v", reply.Error, err)
	}
}

func checkResult(t *testing.T, r wire.Row, reply wire.Reply) {
	t.Helper()
	var got struct {
		Content []struct{ Type, Text string }
		IsError bool
		Meta    map[string]json.RawMessage `json:"_meta"`
	}
	if err := json.Unmarshal(reply.Result, &got); err != nil || reply.Error != nil {
		t.Fatalf("%v, error %s", err, reply.Error)
	}
	want := r.Message + said + "."
	if !got.IsError || len(got.Content) != 1 || got.Content[0].Type != "text" || got.Content[0].Text != want {
		t.Errorf("got %+v", got)
	}
	checkData(t, r, got.Meta[wire.MetaError])
}

func checkError(t *testing.T, r wire.Row, d wire.Dialect, reply wire.Reply) {
	t.Helper()
	var got struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
	if err := json.Unmarshal(reply.Error, &got); err != nil || reply.Result != nil {
		t.Fatalf("%v, result %s", err, reply.Result)
	}
	want := r.Message + said
	if r.Code == wire.InternalError || d == wire.Canonical && r.Exact {
		want = r.Message
	}
	if got.Code != codeOf(r, d) || got.Message != want {
		t.Errorf("got %d %q, want %q", got.Code, got.Message, want)
	}
	checkData(t, r, got.Data)
}

func checkData(t *testing.T, r wire.Row, raw json.RawMessage) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "elicitations") // see TestConnectionRequired
	want := map[string]any{
		"code": string(r.Code), "kernel_code": r.Kernel, "category": string(r.Category), "severity": string(r.Severity),
		"retry_eligible": failure(t, r).Kernel.RetryEligible, "retry_after_ms": 1501.0, "reason": "why <it> failed", "remedy": "do this instead",
		"decision_id": "dec_1", "trace_id": "trc_1", "detail": map[string]any{"n": 100.0},
	}
	if r.Code == wire.InternalError {
		delete(want, "retry_after_ms")
		delete(want, "remedy")
		want["detail"], want["reason"] = map[string]any{}, "the gateway failed; its log has the cause under these ids"
	} else if r.Form == wire.AsUpstream {
		want["detail"].(map[string]any)["upstream"] = map[string]any{"code": -32050.0, "message": "own words", "data": map[string]any{"b": 100.0, "a": 1.0}}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnswerWithLittle(t *testing.T) {
	bare := func(code string) wire.Failure { return wire.Failure{Kernel: &signal.KernelError{Code: code}} }
	with := func(code string, change func(*wire.Failure)) wire.Failure {
		f := bare(code)
		change(&f)
		return f
	}
	tests := []struct {
		name    string
		dialect wire.Dialect
		failure wire.Failure
		want    []string // parts of the answer
		absent  []string
	}{
		{"data is whole even so", wire.Gateway, bare(signal.CodeRateLimited), []string{
			`"code":-32001,"message":"Rate limit exceeded","data":{"code":"RATE_LIMITED","kernel_code":"T4_RATE_LIMIT_EXCEEDED","category":"resource","severity":"transient",` +
				`"retry_eligible":false,"reason":"Rate limit exceeded","decision_id":"","trace_id":"","detail":{}}`}, []string{"remedy", "retry_after"}},
		{"without a reason the kernel's message speaks", wire.Gateway,
			with(signal.CodeToolNotFound, func(f *wire.Failure) { f.Kernel.Message = "no tool nope" }), []string{`"message":"Unknown tool: no tool nope"`}, nil},
		{"the kernel's own severity wins", wire.Gateway,
			with(signal.CodeToolFailed, func(f *wire.Failure) { f.Kernel.Severity = signal.Fatal }), []string{`"severity":"fatal"`}, nil},
		{"an upstream without an error object", wire.MCP, bare(signal.CodeToolFailed), []string{`{"code":-32603,"message":"Tool failed"`}, nil},
		{"an upstream error that is no object", wire.MCP,
			with(signal.CodeToolFailed, func(f *wire.Failure) { f.Upstream = json.RawMessage(`"boom"`) }), []string{`{"code":-32603,`}, []string{"boom"}},
		{"an upstream error with two readings", wire.MCP,
			with(signal.CodeToolFailed, func(f *wire.Failure) { f.Upstream = json.RawMessage(`{"code":1,"code":2}`) }), []string{`{"code":-32603,`}, []string{"upstream"}},
		{"what the stage said of the upstream stays", wire.Gateway, with(signal.CodeToolFailed, func(f *wire.Failure) {
			f.Upstream, f.Kernel.Detail = json.RawMessage(`{"a":1}`), map[string]any{"upstream": "told"}
		}), []string{`"detail":{"upstream":"told"}`}, nil},
		{"the upstream alone", wire.Gateway,
			with(signal.CodeToolFailed, func(f *wire.Failure) { f.Upstream = json.RawMessage(`{"a":1e2}`) }), []string{`"detail":{"upstream":{"a":1e2}}`}, nil},
		{"text that is not UTF-8 is mended", wire.Gateway,
			with(signal.CodeToolFailed, func(f *wire.Failure) { f.Reason = "a\xffb" }), []string{`a�b`}, nil},
		{"a sentence ends once", wire.MCP,
			with(signal.CodePolicyDenied, func(f *wire.Failure) { f.Reason = "not for you." }), []string{`"text":"Denied by policy: not for you."`}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reply, err := wire.Answer(tt.dialect, tt.failure)
			if err != nil {
				t.Fatal(err)
			}
			text := string(reply.Error) + string(reply.Result)
			for _, part := range tt.want {
				if !strings.Contains(text, part) {
					t.Errorf("%s\nlacks %s", text, part)
				}
			}
			for _, part := range tt.absent {
				if strings.Contains(text, part) {
					t.Errorf("%s\nhas %s", text, part)
				}
			}
		})
	}
}

func TestAnswerRefuses(t *testing.T) {
	internal := &signal.KernelError{Code: signal.CodeInternal}
	tests := []struct {
		name    string
		dialect wire.Dialect
		kernel  *signal.KernelError
		want    error
	}{
		{"an unknown dialect", "klingon", internal, wire.ErrUnknownDialect},
		{"no dialect", "", internal, wire.ErrUnknownDialect},
		{"an unknown kernel code", wire.Gateway, &signal.KernelError{Code: "T4_NO_ROW"}, wire.ErrUnknownCode},
		{"no kernel error", wire.Gateway, nil, wire.ErrUnknownCode},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reply, err := wire.Answer(tt.dialect, wire.Failure{Kernel: tt.kernel})
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(wire.Reply{}, reply); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever went wrong inside, and wherever its words were put, the wire says
// ids only.
func FuzzInternalErrorKeepsSecrets(f *testing.F) {
	f.Add("password=hunter2", uint8(0))
	f.Add("/home/op/.toolgate/state.db: disk I/O error", uint8(1))
	f.Add("ids", uint8(3))
	f.Fuzz(func(t *testing.T, text string, n uint8) {
		secret := "SECRET[" + text + "]"
		e := &signal.KernelError{
			Code: signal.CodeInternal, Category: signal.Category(secret), Severity: signal.Severity(secret), Message: secret,
			Source: signal.ModuleRef{Module: secret, Function: secret}, Detail: map[string]any{secret: secret},
			Cause: signal.ProcessingError(secret, gate, nil, nil),
		}
		upstream, err := json.Marshal(map[string]string{"message": secret})
		if err != nil {
			t.Fatal(err)
		}
		d := dialects[int(n)%len(dialects)]
		planted := wire.Failure{Kernel: e, Reason: secret, Remedy: secret, DecisionID: "dec_1", TraceID: "trc_1", Upstream: upstream, RetryAfter: time.Second}
		clean := wire.Failure{Kernel: &signal.KernelError{Code: signal.CodeInternal}, DecisionID: "dec_1", TraceID: "trc_1"}
		got, errGot := wire.Answer(d, planted)
		want, errWant := wire.Answer(d, clean)
		if errGot != nil || errWant != nil {
			t.Fatal(errGot, errWant)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the answer depends on what is inside: %s", diff)
		}
		if bytes.Contains(got.Error, []byte("SECRET[")) || !bytes.Contains(got.Error, []byte("dec_1")) {
			t.Errorf("got %s", got.Error)
		}
	})
}

// Any failure gives one line of JSON, or silence.
func FuzzAnswer(f *testing.F) {
	f.Add(uint8(0), uint8(0), "reason", "remedy", []byte(`{"code":1,"message":"m"}`))
	f.Add(uint8(18), uint8(3), "", "", []byte("{\n\"code\":1}"))
	rows := wire.Rows()
	f.Fuzz(func(t *testing.T, row, dialect uint8, reason, remedy string, upstream []byte) {
		e := &signal.KernelError{Code: rows[int(row)%len(rows)].Kernel}
		reply, err := wire.Answer(dialects[int(dialect)%len(dialects)], wire.Failure{Kernel: e, Reason: reason, Remedy: remedy, Upstream: upstream})
		if err != nil {
			t.Fatal(err)
		}
		said := append(reply.Result, reply.Error...)
		if reply.Silent {
			if len(said) > 0 {
				t.Fatalf("silent, but %s", said)
			}
			return
		}
		if (reply.Result == nil) == (reply.Error == nil) || !json.Valid(said) || bytes.ContainsAny(said, "\r\n") {
			t.Fatalf("result %s, error %s", reply.Result, reply.Error)
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	for _, d := range dialects {
		b.Run(string(d), func(b *testing.B) {
			f := wire.Failure{Kernel: &signal.KernelError{Code: signal.CodePolicyDenied, Message: "m"}, Reason: "why", DecisionID: "dec_1", TraceID: "trc_1"}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.Answer(d, f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What called no tool has no tool's result to be refused in.
func TestRefusalOfWhatCallsNoTool(t *testing.T) {
	for _, row := range wire.Rows() {
		f := wire.Failure{Kernel: &signal.KernelError{Code: row.Kernel, Message: "m"}, Reason: "why", Plain: true}
		reply, err := wire.Answer(wire.MCP, f)
		if err != nil || reply.Result != nil {
			t.Errorf("%s: result %s, %v", row.Code, reply.Result, err)
		}
		if row.Form != wire.AsResult {
			continue
		}
		var rpc struct{ Code int }
		if err := json.Unmarshal(reply.Error, &rpc); err != nil || rpc.Code != row.RPC.Gateway {
			t.Errorf("%s: %s, want code %d", row.Code, reply.Error, row.RPC.Gateway)
		}
	}
}

// A server that wants a person to do something first says so in the words of the
// protocol, wherever MCP clients are.
func TestElicitationInPlaceOfAResult(t *testing.T) {
	const asks = `{"code":-32042,"message":"sign in","data":{"elicitations":[{"mode":"url"}]}}`
	for d, same := range map[wire.Dialect]bool{wire.MCP: true, wire.Gateway: true, wire.Canonical: false, wire.Kernel: false} {
		f := wire.Failure{Kernel: &signal.KernelError{Code: signal.CodeToolFailed, Message: "m"}, Reason: "why", Upstream: json.RawMessage(asks)}
		reply, err := wire.Answer(d, f)
		if err != nil || (string(reply.Error) == asks) != same {
			t.Errorf("%s: %s, %v", d, reply.Error, err)
		}
	}
}

// What a person has to do first is in an error that MCP clients act on, whatever else the
// client's profile says, if the client can do it.
func TestConnectionRequired(t *testing.T) {
	link := json.RawMessage(toDoFirst)
	for _, tt := range []struct {
		name    string
		dialect wire.Dialect
		list    json.RawMessage
		elicits bool
		errors  string
		want    string // JSON-RPC code, or result
	}{
		{"gateway", wire.Gateway, link, false, "", "-32600"},
		{"gateway, a client that elicits", wire.Gateway, link, true, "", "-32042"},
		{"gateway, no link", wire.Gateway, nil, true, "", "-32600"},
		{"gateway, results for errors", wire.Gateway, link, false, wire.ErrorsAsResult, "result"},
		{"gateway, a client that elicits, results for errors", wire.Gateway, link, true, wire.ErrorsAsResult, "-32042"},
		{"canonical, a client that elicits", wire.Canonical, link, true, "", "-32600"},
		{"kernel, a client that elicits", wire.Kernel, link, true, "", "-32600"},
		{"mcp", wire.MCP, link, false, "", "-32042"},
		{"mcp, a client that elicits", wire.MCP, link, true, "", "-32042"},
		{"mcp, results for errors", wire.MCP, link, false, wire.ErrorsAsResult, "result"},
		{"mcp, no link", wire.MCP, nil, false, "", "-32600"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := wire.Failure{
				Kernel: &signal.KernelError{Code: signal.CodeConnectionRequired, Message: "m"}, Reason: "why",
				Elicitations: tt.list, Elicits: tt.elicits, Errors: tt.errors,
			}
			reply, err := wire.Answer(tt.dialect, f)
			if err != nil {
				t.Fatal(err)
			}
			code, got := jsonrpc.Get(reply.Error, "code")
			if how := string(code); !got && tt.want != "result" || got && how != tt.want || (reply.Result != nil) != (tt.want == "result") {
				t.Fatalf("error %s, result %s; want %s", reply.Error, reply.Result, tt.want)
			}
			shown, has := jsonrpc.At(reply.Error, "data", "elicitations")
			if has != (tt.want == "-32042") || has && string(shown) != toDoFirst {
				t.Errorf("data.elicitations is %s", shown)
			}
		})
	}
}
