package signal_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

// one is what a signal is expected to be, in short.
type one struct{ Kind, Ref, Body string }

const (
	hashHello = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of hello
	hashEmpty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// failed is the body of an error signal.
func failed(message, rest string) string {
	return `{"data":{"code":"T4_TOOL_EXECUTION_FAILED","category":"external","severity":"transient","message":` + message +
		`,"source":{"tier":4,"module":"gate","function":"call"},"retry_eligible":false,"detail":{"tool":"echo"},"cause":null},"schema":"KernelError"` + rest + `}`
}

var toolResults = []struct {
	name, result string
	want         []one
}{
	{"text", `{"content":[{"type":"text","text":"hello"}]}`, []one{{"text", "/content/0", `{"text":"hello"}`}}},
	{"text keeps its escapes", `{"content":[{"type":"text","text":"a\"\u00e9\n\ud83d\ude00"}]}`,
		[]one{{"text", "/content/0", `{"text":"a\"\u00e9\n\ud83d\ude00"}`}}},
	{"text that spells an escape", `{"content":[{"type":"text","text":"\\ud83d \uD83D\uDE00"}]}`,
		[]one{{"text", "/content/0", `{"text":"\\ud83d \uD83D\uDE00"}`}}},
	{"JSON text: an object", `{"content":[{"type":"text","text":"\n {\"n\": 12345678901234567890,\n \"l\": [ ]}"}]}`,
		[]one{{"data", "/content/0", `{"data":{"n":12345678901234567890,"l":[]},"schema":"json"}`}}},
	{"JSON text: a list", `{"content":[{"type":"text","text":"[1, {\"a\":2}]"}]}`,
		[]one{{"data", "/content/0", `{"data":[1,{"a":2}],"schema":"json","count":2}`}}},
	{"JSON text behind an escape", `{"content":[{"type":"text","text":"\u007b}"}]}`, []one{{"data", "/content/0", `{"data":{},"schema":"json"}`}}},
	{"JSON text that is a number stays text", `{"content":[{"type":"text","text":"12"}]}`, []one{{"text", "/content/0", `{"text":"12"}`}}},
	{"text that only begins like JSON", `{"content":[{"type":"text","text":"[note] hello"}]}`, []one{{"text", "/content/0", `{"text":"[note] hello"}`}}},
	{"JSON text with two readings stays text", `{"content":[{"type":"text","text":"{\"a\":1,\"a\":2}"}]}`,
		[]one{{"text", "/content/0", `{"text":"{\"a\":1,\"a\":2}"}`}}},
	{"empty text", `{"content":[{"type":"text","text":""}]}`, []one{{"text", "/content/0", `{"text":""}`}}},
	{"structured content", `{"content":[],"structuredContent":{"b": 1, "a":[1e2]}}`, []one{{"data", "/structuredContent", `{"data":{"b":1,"a":[1e2]},"schema":"json"}`}}},
	{"structured content null is none", `{"content":[],"structuredContent":null}`, nil},
	{"image", `{"content":[{"type":"image","data":"aGVsbG8=","mimeType":"image/png"}]}`,
		[]one{{"file", "/content/0", `{"file_id":"` + hashHello + `","file_type":"image/png","path":null,"size":5}`}}},
	{"image with escapes in its base64", `{"content":[{"type":"image","data":"\u0061GVsbG8=","mimeType":"image\/png"}]}`,
		[]one{{"file", "/content/0", `{"file_id":"` + hashHello + `","file_type":"image/png","path":null,"size":5}`}}},
	{"empty audio", `{"content":[{"type":"audio","data":""}]}`,
		[]one{{"file", "/content/0", `{"file_id":"` + hashEmpty + `","file_type":"application/octet-stream","path":null,"size":0}`}}},
	{"image that is no base64", `{"content":[{"type":"image","data":"%%%"}]}`,
		[]one{{"data", "/content/0", `{"data":{"type":"image","data":"%%%"},"schema":"mcp.content.image"}`}}},
	{"resource with text", `{"content":[{"type":"resource","resource":{"uri":"file:///a","text":"hello"}}]}`,
		[]one{{"file", "/content/0", `{"file_id":"` + hashHello + `","file_type":"text/plain","path":null,"uri":"file:///a","size":5}`}}},
	{"resource with a blob", `{"content":[{"type":"resource","resource":{"uri":"file:///a","mimeType":"x/y","blob":"aGVsbG8="}}]}`,
		[]one{{"file", "/content/0", `{"file_id":"` + hashHello + `","file_type":"x/y","path":null,"uri":"file:///a","size":5}`}}},
	{"resource without bytes", `{"content":[{"type":"resource","resource":{"uri":"file:///a"}}]}`,
		[]one{{"data", "/content/0", `{"data":{"type":"resource","resource":{"uri":"file:///a"}},"schema":"mcp.content.resource"}`}}},
	{"resource link", `{"content":[{"type":"resource_link","uri":"file:///a","name":"a","mimeType":"text/x"}]}`,
		[]one{{"file", "/content/0", `{"file_id":"file:///a","file_type":"text/x","path":null}`}}},
	{"resource link to nowhere", `{"content":[{"type":"resource_link","name":"a"}]}`,
		[]one{{"data", "/content/0", `{"data":{"type":"resource_link","name":"a"},"schema":"mcp.content.resource_link"}`}}},
	{"a block of type json", `{"content":[{"type":"json","data":{"a": [1]}}]}`, []one{{"data", "/content/0", `{"data":{"a":[1]},"schema":"json"}`}}},
	{"a block of type json, otherwise", `{"content":[{"type":"json","json":[1, 2]}]}`, []one{{"data", "/content/0", `{"data":[1,2],"schema":"json","count":2}`}}},
	{"a block of type json without a value", `{"content":[{"type":"json"}]}`, []one{{"data", "/content/0", `{"data":{"type":"json"},"schema":"mcp.content.json"}`}}},
	{"a file with its bytes", `{"content":[{"type":"file","data":"aGVsbG8=","mimeType":"x/y"}]}`,
		[]one{{"file", "/content/0", `{"file_id":"` + hashHello + `","file_type":"x/y","path":null,"size":5}`}}},
	{"a file by its uri", `{"content":[{"type":"file","uri":"file:///a"}]}`,
		[]one{{"file", "/content/0", `{"file_id":"file:///a","file_type":"application/octet-stream","path":null}`}}},
	{"a file by its path", `{"content":[{"type":"file","path":"/tmp/a","mimeType":"x/y"}]}`,
		[]one{{"file", "/content/0", `{"file_id":"/tmp/a","file_type":"x/y","path":"/tmp/a"}`}}},
	{"a file that is nowhere", `{"content":[{"type":"file","name":"a"}]}`,
		[]one{{"data", "/content/0", `{"data":{"type":"file","name":"a"},"schema":"mcp.content.file"}`}}},
	{"unknown content", `{"content":[{"type":"hologram","x":[1, 2]}]}`,
		[]one{{"data", "/content/0", `{"data":{"type":"hologram","x":[1,2]},"schema":"mcp.content.hologram"}`}}},
	{"content without a type", `{"content":["bare",{"text":"x"}]}`,
		[]one{{"data", "/content/0", `{"data":"bare","schema":"mcp.content.unknown"}`}, {"data", "/content/1", `{"data":{"text":"x"},"schema":"mcp.content.unknown"}`}}},
	{"content that is no list", `{"content":{"type":"text"}}`, []one{{"data", "/content", `{"data":{"type":"text"},"schema":"mcp.content.unknown"}`}}},
	{"several, in order, structured last", `{"structuredContent":[],"isError":false,"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"_meta":{}}`,
		[]one{{"text", "/content/0", `{"text":"a"}`}, {"text", "/content/1", `{"text":"b"}`}, {"data", "/structuredContent", `{"data":[],"schema":"json","count":0}`}}},
	{"nothing", `{}`, nil},
	{"error", `{"isError":true,"content":[{"type":"text","text":"boom"}]}`, []one{{"data", "/content/0", failed(`"boom"`, "")}}},
	{"error in several texts", `{"content":[{"type":"text","text":"a"},{"type":"image","data":""},{"type":"text","text":"b"}],"structuredContent":{},"isError":true}`,
		[]one{{"data", "/content", failed(`"a\nb"`, "")}}},
	{"error without content", `{"isError":true}`, []one{{"data", "/isError", failed(`"the tool reported an error without text"`, "")}}},
	{"error of many words", `{"isError":true,"content":[{"type":"text","text":"` + strings.Repeat("ü", 600) + `"}]}`,
		[]one{{"data", "/content/0", failed(`"`+strings.Repeat("ü", 512)+`"`, `,"text":"`+strings.Repeat("ü", 600)+`"`)}}},
}

// tool_result_to_signal.
func TestToolResultToSignal(t *testing.T) {
	for _, tt := range toolResults {
		t.Run(tt.name, func(t *testing.T) {
			signals, refs, err := signal.FromToolResult([]byte(tt.result), signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1", ParentID: "sig_parent"})
			if err != nil {
				t.Fatal(err)
			}
			var got []one
			for i, s := range signals {
				if err := signal.ValidateSignal(s); err != nil {
					t.Error(err)
				}
				if s.TraceID() != "trc_1" || s.ParentID() != "sig_parent" || s.Origin() != here {
					t.Errorf("got %s %s %v", s.TraceID(), s.ParentID(), s.Origin())
				}
				tags := map[string]string{"tier": "4", "module": "gate", "source_type": "tool", "tool": "echo"}
				if diff := cmp.Diff(tags, s.Tags()); diff != "" {
					t.Error(diff)
				}
				body, _ := member(t, s, "body")
				got = append(got, one{string(s.Kind()), refs[i], body})
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if len(refs) != len(signals) {
				t.Errorf("%d refs for %d signals", len(refs), len(signals))
			}
		})
	}
}

func TestToolResultToSignalRefuses(t *testing.T) {
	bad := []string{
		``, `null`, `[]`, `"x"`, `{`, `{"content":[}`, `{"content":[{"type":"text","text":"a"},]}`, `{"a":1,}`, `{} {}`, `{}x`,
		`{"content":[],"content":[]}`, `{"content":[],"\u0063ontent":[]}`, `{"isError":true,"isError":false}`, `{"structuredContent":1,"structuredContent":2}`,
		`{"structuredContent":{"a":1,"a":2}}`, `{"content":[{"type":"text","type":"image","text":"a"}]}`, `{"content":[{"type":"text","text":"a","text":"b"}]}`, `{"content":[{"type":"x","y":{"a":1,"a":2}}]}`,
		"{\"content\":[{\"type\":\"text\",\"text\":\"\xff\"}]}", "{\"a\":\"\n\"}", `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":1e}`, `{"a":-}`,
		`{"a":tru}`, `{"a":nul}`, `{a:1}`, `{"a" 1}`, `{"a":1 "b":2}`, `{"a":"`, `{"a":"\`, `{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
		`{"content":[{"type":"text","text":"\ud83d"}]}`, `{"content":[{"type":"text","text":"\ude00"}]}`, `{"content":[{"type":"text","text":"\ud83d\u0041"}]}`,
	}
	for _, result := range bad {
		signals, refs, err := signal.FromToolResult([]byte(result), signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1"})
		if !errors.Is(err, signal.ErrInvalidToolResult) || signals != nil || refs != nil {
			t.Errorf("%.60q: got %v, %v, %v", result, signals, refs, err)
		}
	}
	if _, _, err := signal.FromToolResult([]byte(`{}`), signal.Lineage{Origin: signal.ModuleRef{}, Tool: "echo", TraceID: "trc_1"}); !errors.Is(err, signal.ErrInvalidOrigin) {
		t.Errorf("without an origin: %v", err)
	}
}

func TestErrorOf(t *testing.T) {
	signals, _, err := signal.FromToolResult([]byte(`{"isError":true,"content":[{"type":"text","text":"boom"}]}`), signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1"})
	if err != nil {
		t.Fatal(err)
	}
	e, ok := signal.ErrorOf(signals[0])
	if !ok || e.Code != signal.CodeToolFailed || e.Message != "boom" || e.Category != signal.External {
		t.Errorf("got %v, %v", e, ok)
	}
	other := must(signal.CreateData(map[string]any{}, "KernelError", here, "trc_1", nil))(t)
	if e, ok := signal.ErrorOf(other); ok {
		t.Errorf("got %v from a signal that only says so", e)
	}
	if e, ok := signal.ErrorOf(must(signal.CreateText("x", here, "trc_1", nil))(t)); ok {
		t.Errorf("got %v from text", e)
	}
}

// A compact view is the whole Result with pointers into the tool result in place of
// the bodies.
func TestCompactPointsIntoTheResult(t *testing.T) {
	for _, tt := range toolResults {
		t.Run(tt.name, func(t *testing.T) {
			signals, refs, err := signal.FromToolResult([]byte(tt.result), signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1", ParentID: "call_1"})
			if err != nil {
				t.Fatal(err)
			}
			r := signal.OK(signals, timing)
			if len(signals) == 1 {
				if e, ok := signal.ErrorOf(signals[0]); ok {
					r.Status, r.Error = signal.StatusError, e
				}
			}
			judge(t, signal.ValidateResult(r), true)
			pointsInto(t, r, refs, []byte(tt.result))
		})
	}
}

// pointsInto holds the refs of r's signals to the tool result that they lead into.
func pointsInto(t *testing.T, r signal.Result, refs []string, toolResult []byte) {
	t.Helper()
	if len(refs) != len(r.Signals) {
		t.Fatalf("%d refs for %d signals", len(refs), len(r.Signals))
	}
	for _, ref := range refs {
		var at any = object(t, toolResult)
		for token := range strings.SplitSeq(ref[1:], "/") {
			if list, ok := at.([]any); ok {
				at = list[must(strconv.Atoi(token))(t)]
			} else if at, ok = at.(map[string]any)[token]; !ok {
				t.Fatalf("nothing is at %s", ref)
			}
		}
	}
}

func object(t *testing.T, raw []byte) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCompactView(t *testing.T) {
	split := func(blocks int) ([]signal.Signal, string) {
		content := strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"hello"},`, blocks), ",")
		signals, _, err := signal.FromToolResult([]byte(`{"content":[`+content+`]}`), signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1", ParentID: "call_1"})
		if err != nil {
			t.Fatal(err)
		}
		ids := make([]string, 0, len(signals))
		for _, s := range signals {
			ids = append(ids, `"`+s.ID()+`"`)
		}
		return signals, strings.Join(ids[:min(len(ids), 8)], ",")
	}
	one, oneID := split(1)
	eight, eightIDs := split(8)
	nine, nineIDs := split(9)
	fault := signal.InputError("m", here, nil)
	const head = `"decision_id":"dec_1","trace_id":"trc_1","signals":[`
	metrics := `"metrics":{"duration_ms":1.5,"token_count":7,"cache_hit":true,"module_ref":{"tier":4,"module":"gate","function":"call"}}`
	tests := []struct {
		name string
		got  json.RawMessage
		want string
	}{
		{"ok", signal.Compact(signal.OK(one, timing), "dec_1", "trc_1"), `{"status":"ok",` + head + oneID + `]}`},
		{"eight signals", signal.Compact(signal.OK(eight, timing), "dec_1", "trc_1"), `{"status":"ok",` + head + eightIDs + `]}`},
		{"nine signals", signal.Compact(signal.OK(nine, timing), "dec_1", "trc_1"), `{"status":"ok",` + head + nineIDs + `],"count":9}`},
		{"skip", signal.Compact(signal.Skip("apr_1", timing), "dec_1", "trc_1"), `{"status":"skip",` + head + `]}`},
		{"error", signal.Compact(signal.Fail(fault, timing), "dec_1", "trc_1"), `{"status":"error",` + head + `],"error":{"code":"T4_GATE_INPUT"}}`},
		{"partial", signal.Compact(signal.Partial(one, fault, timing), "dec_1", "trc_1"),
			`{"status":"partial",` + head + oneID + `],"error":{"code":"T4_GATE_INPUT","message":"m"}}`},
		{"full", signal.Full(signal.Fail(fault, timing)),
			`{"status":"error","signals":[],"error":{"code":"T4_GATE_INPUT","category":"input","severity":"transient","message":"m",` +
				`"source":{"tier":4,"module":"gate","function":"call"},"retry_eligible":false,"detail":{},"cause":null},` + metrics + `}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, string(tt.got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
