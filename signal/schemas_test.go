package signal_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/signal"
)

// ours are the documents for the types of this package, with the decoder of each
// type that has one.
var ours = map[string]func() json.Unmarshaler{
	"signal":           func() json.Unmarshaler { return new(signal.Signal) },
	"result":           func() json.Unmarshaler { return new(signal.Result) },
	"kernel-error":     func() json.Unmarshaler { return new(signal.KernelError) },
	"job-request":      func() json.Unmarshaler { return new(signal.JobRequest) },
	"problem-details":  nil,
	"success-response": nil,
	"notification":     nil,
	"result-view":      nil,
}

// decode reads text with the decoder of a document, if it has one.
func decode(name, text string) error {
	if ours[name] == nil {
		return nil
	}
	return ours[name]().UnmarshalJSON([]byte(text))
}

var compiled = sync.OnceValues(func() (map[string]*schema.Schema, error) {
	out := map[string]*schema.Schema{}
	for name := range ours {
		raw, err := schemas.Files.ReadFile(name + ".json")
		if err != nil {
			return nil, err
		}
		if out[name], err = schema.Compile(raw); err != nil {
			return nil, err
		}
	}
	return out, nil
})

// faults holds text to a document.
func faults(t *testing.T, name, text string) []schema.Fault {
	t.Helper()
	all := must(compiled())(t)
	return must(all[name].Validate([]byte(text)))(t)
}

func TestSchemaDocuments(t *testing.T) {
	must(compiled())(t)
	defs := map[string]any{}
	for name := range ours {
		var doc map[string]any
		if err := json.Unmarshal(must(schemas.Files.ReadFile(name+".json"))(t), &doc); err != nil {
			t.Fatal(err)
		}
		if doc["$schema"] != "https://json-schema.org/draft/2020-12/schema" || doc["$id"] != "urn:toolgate:schema:"+name || doc["title"] == "" {
			t.Errorf("%s: $schema %v, $id %v", name, doc["$schema"], doc["$id"])
		}
		shared, _ := doc["$defs"].(map[string]any)
		for def, value := range shared {
			if first, ok := defs[def]; ok {
				if diff := cmp.Diff(first, value); diff != "" {
					t.Errorf("%s has another %s than the other documents: %s", name, def, diff)
				}
			}
			defs[def] = value
		}
	}
}

// samples has what our encoders write, by document.
func samples(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	add := func(name string, v json.Marshaler) { out[name] = append(out[name], string(must(v.MarshalJSON())(t))) }
	job := signal.JobRequest{Query: "q", JobType: "j", Depth: 1, MaxSteps: 2, Tool: "t", Args: json.RawMessage(`{"a":[1]}`)}
	question := must(signal.HTTPRequestToSignal(job, "trc_1"))(t)
	inner := must(signal.ErrorFor(signal.KernelClassifyTimeout, "slow", there, map[string]any{"n": 1}, nil))(t)
	chain := must(signal.WrapError("T4_OODA_STUCK", inner, here, ""))(t)
	tags := map[string]string{"urgency": "high", "domain": "code", "complexity": "simple", "confidence": "0.5", "grounding": "1.0", "own": ""}
	list := []signal.Signal{
		question,
		must(signal.ToolCallSignal(job, question))(t),
		must(signal.CreateText("x", here, "trc_1", tags))(t),
		must(signal.CreateData([]int{1}, "list[int]", here, "trc_1", nil))(t),
		must(signal.CreateFile("a", "b", "/c", here, "trc_1"))(t),
		must(signal.CreateFile("a", "b", "", here, "trc_1"))(t),
		must(signal.CreateCommand("retry", there, here, "trc_1", map[string]any{"why": "x"}))(t),
		must(signal.Create(signal.Stream, map[string]any{"chunk": "x", "sequence": 3, "final": true}, here, "trc_1", nil, "sig_p"))(t),
		must(signal.CreateErrorSignal(chain, here, "trc_1"))(t),
	}
	for _, s := range list {
		add("signal", s)
		add("notification", signal.SignalToNotification(s))
	}
	for _, r := range []signal.Result{signal.OK(list, timing), signal.OK(nil, timing), signal.Partial(list, chain, timing), signal.Fail(chain, timing), signal.Skip("apr_1", timing), signal.Skip("", timing)} {
		add("result", r)
		out["result-view"] = append(out["result-view"], string(signal.Compact(r, "dec_1", "trc_1")))
		if success, problem := signal.ResultToHTTPResponse(r, time.Second); problem == nil {
			add("success-response", success)
		} else {
			add("problem-details", problem)
		}
	}
	for _, e := range []*signal.KernelError{chain, inner, fault} {
		add("kernel-error", e)
		add("problem-details", signal.ErrorToProblemDetails(e, 0))
	}
	add("job-request", job)
	add("job-request", signal.JobRequest{Query: "q"})
	add("job-request", signal.JobRequest{Tool: "t"})
	return out
}

func TestWhatIsWrittenKeepsItsSchema(t *testing.T) {
	all := samples(t)
	for name := range ours {
		if len(all[name]) == 0 {
			t.Errorf("nothing is tried on %s", name)
		}
		for _, text := range all[name] {
			if got := faults(t, name, text); got != nil {
				t.Errorf("%s: %v in %s", name, got, text)
			}
			if err := decode(name, text); err != nil {
				t.Errorf("%s: %v in %s", name, err, text)
			}
		}
	}
}

// Every view of a tool result keeps its schema, which is not that of
// a Result.
func TestCompactViewsKeepTheirSchema(t *testing.T) {
	for _, tt := range toolResults {
		t.Run(tt.name, func(t *testing.T) {
			signals, refs, err := signal.FromToolResult([]byte(tt.result), signal.Lineage{Origin: here, Tool: "echo", TraceID: "trc_1", DecisionID: "dec_1"})
			if err != nil {
				t.Fatal(err)
			}
			view := signal.Compact(signal.OK(signals, timing), "dec_1", "trc_1")
			if got := faults(t, "result-view", string(view)); got != nil {
				t.Errorf("%v in %s", got, view)
			}
			if len(refs) > 0 && faults(t, "result", string(view)) == nil {
				t.Error("a view passes for a Result")
			}
		})
	}
}

const (
	okError    = `{"code":"T4_A_B","category":"input","severity":"fatal","message":"m","source":{"tier":0,"module":"m","function":"f"},"retry_eligible":true,"detail":{},"cause":null}`
	okSignal   = `{"id":"sig_01JD4V0Z5N9Q8C7B6A5X4W3V2T","kind":"text","body":{"text":"x"},"origin":{"tier":0,"module":"m","function":"f"},"trace_id":"t","tags":{"urgency":"low"},"created_at":"2026-11-20T13:00:00Z","parent_id":null}`
	okMetrics  = `"metrics":{"duration_ms":1,"token_count":0,"cache_hit":false,"module_ref":{"tier":0,"module":"m","function":"f"}}`
	okResult   = `{"status":"ok","signals":[` + okSignal + `],"error":null,` + okMetrics + `}`
	okView     = `{"status":"partial","decision_id":"d","trace_id":"t","signals":["sig_01JD4V0Z5N9Q8C7B6A5X4W3V2T"],"count":9,"error":{"code":"T4_A_B","message":"m"}}`
	okResponse = `{"status":"ok","data":[` + okSignal + `],` + okMetrics + `}`
	okProblem  = `{"type":"urn:toolgate:error:T4_A_B","title":"input","status":400,"detail":"m","extensions":{"error":` + okError + `},"retry_after":-1}`
	okNotice   = `{"jsonrpc":"2.0","method":"notifications/signal","params":{"signal":` + okSignal + `}}`
	okJob      = `{"query":"q","job_type":"j","depth":1,"max_steps":2,"tool":"t","args":{}}`
)

// Each line breaks a good document in one place: schema and decoder refuse it
// alike.
func TestBadDocumentsAreRefusedTwice(t *testing.T) {
	docs := []struct {
		name, good string
		breaks     []string // from, to, …
	}{
		{"signal", okSignal, []string{
			`sig_01`, `sig_81`, `sig_01`, `01`, `"text","body"`, `"image","body"`, `"text","body"`, `"data","body"`, `"text","body"`, `"file","body"`,
			`"text","body"`, `"command","body"`, `"text","body"`, `"stream","body"`, `{"text":"x"}`, `{"text":1}`, `{"text":"x"}`, `{}`, `{"text":"x"}`, `null`,
			`"tier":0`, `"tier":8`, `"tier":0,`, ``, `"module":"m"`, `"module":""`, `"function":"f"`, `"extra":1`, `"trace_id":"t"`, `"trace_id":""`,
			`"trace_id":"t",`, ``, `"low"`, `"soon"`, `"urgency":"low"`, `"complexity":"hard"`, `"urgency":"low"`, `"confidence":"1.1"`,
			`"urgency":"low"`, `"grounding":"-0.1"`, `"urgency":"low"`, `"source_type":"moon"`, `"urgency":"low"`, `"domain":""`, `"urgency"`, `""`, `"low"`, `null`,
			`2026-11-20T13`, `2026-11-20 13`, `"2026-11-20T13:00:00Z"`, `1`, `"parent_id":null`, `"parent_id":1`, `"kind"`, `"ref":"/content/0","kind"`, `"kind"`, `"Kind"`,
		}},
		{"kernel-error", okError, []string{
			`T4_A_B`, `T8_A_B`, `T4_A_B`, `T4_A`, `"category":"input"`, `"category":"weather"`, `"fatal"`, `"bad"`, `"m","source"`, `"","source"`,
			`"retry_eligible":true,`, ``, `"retry_eligible":true`, `"retry_eligible":"yes"`, `"detail":{}`, `"detail":[]`, `"detail":{}`, `"detail":null`,
			`"cause":null`, `"cause":{}`, `"cause":null`, `"cause":null,"stack":""`, `"tier":0`, `"tier":-1`,
		}},
		{"result", okResult, []string{
			`"ok"`, `"maybe"`, `"ok"`, `"skip"`, `"ok"`, `"error"`, `"ok"`, `"partial"`, `"error":null`, `"error":` + okError, `"error":null`, `"reason":"r"`,
			`"token_count":0`, `"token_count":-1`, `"duration_ms":1`, `"duration_ms":-1`, `"cache_hit":false`, `"cache_hit":0`, `,` + okMetrics, ``, `{"text":"x"}`, `{}`,
			`"token_count":0`, `"token_count":null`, `"signals":[` + okSignal + `]`, `"signals":null`,
		}},
		{"result-view", okView, []string{
			`"sig_01`, `"01`, `"count":9`, `"count":8`, `"partial"`, `"ok"`, `"partial"`, `"error"`, `,"message":"m"`, ``, `"code":"T4_A_B",`, ``, `"trace_id":"t",`, ``,
			`"decision_id":"d",`, ``, `"signals"`, `"signal"`, `"T4_A_B"`, `"A_B"`,
		}},
		{"success-response", okResponse, []string{
			`"ok"`, `"error"`, `"ok"`, `"partial"`, `"ok"`, `"skip"`, `"data"`, `"signals"`, `"data":[` + okSignal + `],`, ``, `{"text":"x"}`, `{}`, `{"status"`, `{"reason":"r","status"`,
			`{"status":"ok"`, `{"error":` + okError + `,"status":"error"`,
		}},
		{"problem-details", okProblem, []string{
			`urn:toolgate:error:`, `urn:other:`, `"title":"input"`, `"title":"Bad Request"`, `400`, `200`, `"detail":"m"`, `"detail":""`, `:-1}`, `:-2}`,
			`"extensions":{"error":` + okError + `}`, `"extensions":null`, `"extensions":{"error":` + okError + `},`, ``, `{"error"`, `{"instance":"x","error"`, `"category":"input"`, `"category":"x"`,
		}},
		{"notification", okNotice, []string{
			`"2.0"`, `"1.0"`, `"jsonrpc":"2.0",`, ``, `"method":"notifications/signal"`, `"method":""`, `"jsonrpc"`, `"id":1,"jsonrpc"`, `"params":{"signal":` + okSignal + `}`, `"params":[]`,
		}},
		{"job-request", okJob, []string{
			`"query":"q"`, `"query":1`, `"query":"q"`, `"query":null`, `"query"`, `"Query"`, `"query":"q",`, `"extra":1,`, `"j"`, `""`, `"depth":1`, `"depth":-1`, `"depth":1`, `"depth":1.5`,
			`"depth":1`, `"depth":2147483648`, `"max_steps":2`, `"max_steps":"2"`, `"max_steps":2`, `"max_steps":-2`, `"t"`, `""`, `"tool":"t",`, ``, `"args":{}`, `"args":[]`, `"args":{}`, `"args":null`,
		}},
	}
	for _, d := range docs {
		if got := faults(t, d.name, d.good); got != nil {
			t.Errorf("%s: the good one has %v", d.name, got)
		}
		if err := decode(d.name, d.good); err != nil {
			t.Errorf("%s: the good one is refused: %v", d.name, err)
		}
		for i := 0; i < len(d.breaks); i += 2 {
			text := strings.Replace(d.good, d.breaks[i], d.breaks[i+1], 1)
			if text == d.good {
				t.Fatalf("%s: %s: nothing was changed", d.name, d.breaks[i])
			}
			if faults(t, d.name, text) == nil {
				t.Errorf("%s: the schema takes %s", d.name, text)
			}
			if ours[d.name] != nil && decode(d.name, text) == nil {
				t.Errorf("%s: the decoder takes %s", d.name, text)
			}
		}
	}
}
