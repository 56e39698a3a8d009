package signal_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

// goodJob has all six members, and args as people write them.
const goodJob = `{"query":"how much?","job_type":"research","depth":2,"max_steps":10,"tool":"wallet","args":{ "b" : 1e2,
  "a":12345678901234567890 }}`

const goodArgs = "{ \"b\" : 1e2,\n  \"a\":12345678901234567890 }"

func TestJobRequestJSON(t *testing.T) {
	tests := []struct {
		name, text string
		want       signal.JobRequest
		written    string // "" for text itself
	}{
		{"a query", `{"query":"q"}`, signal.JobRequest{Query: "q"}, ""},
		{"all of it", goodJob, signal.JobRequest{Query: "how much?", JobType: "research", Depth: 2, MaxSteps: 10, Tool: "wallet", Args: json.RawMessage(goodArgs)},
			`{"query":"how much?","job_type":"research","depth":2,"max_steps":10,"tool":"wallet","args":{"b":1e2,"a":12345678901234567890}}`},
		{"tags", `{"query":"q","tags":{"urgency":"critical"}}`, signal.JobRequest{Query: "q", Tags: map[string]string{"urgency": "critical"}}, ""},
		{"a tool alone", `{"tool":"t"}`, signal.JobRequest{Tool: "t"}, `{"query":"","tool":"t"}`},
		{"no depth is depth 0", `{"query":"q","depth":0}`, signal.JobRequest{Query: "q"}, `{"query":"q"}`},
		{"the largest depth", `{"query":"q","depth":2147483647}`, signal.JobRequest{Query: "q", Depth: 2147483647}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got signal.JobRequest
			if err := got.UnmarshalJSON([]byte(tt.text)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if tt.written == "" {
				tt.written = tt.text
			}
			if diff := cmp.Diff(tt.written, string(must(got.MarshalJSON())(t))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestJobRequestIsReadStrictly(t *testing.T) {
	tests := []struct{ name, text, member string }{
		{"nothing", ``, ""},
		{"null", `null`, ""},
		{"a list", `[]`, ""},
		{"two values", `{"query":"q"}{}`, ""},
		{"a comma too many", `{"query":"q",}`, ""},
		{"no query and no tool", `{}`, "query"},
		{"an empty query and no tool", `{"query":""}`, "query"},
		{"a query that is a number", `{"query":1}`, "query"},
		{"a query that is null", `{"query":null,"tool":"t"}`, "query"},
		{"half a surrogate", `{"query":"\ud83d"}`, "query"},
		{"no UTF-8", "{\"query\":\"\xff\"}", "query"},
		{"a member twice", `{"query":"a","query":"b"}`, "query"},
		{"a member twice behind an escape", `{"query":"a","\u0071uery":"b"}`, "query"},
		{"a case variant", `{"Query":"q"}`, `"Query"`},
		{"an unknown member", `{"query":"q","extra":1}`, `"extra"`},
		{"a job_type that is a number", `{"query":"q","job_type":1}`, "job_type"},
		{"an empty job_type", `{"query":"q","job_type":""}`, "job_type"},
		{"a negative depth", `{"query":"q","depth":-1}`, "depth"},
		{"a depth with a fraction", `{"query":"q","depth":1.5}`, "depth"},
		{"a depth in a string", `{"query":"q","depth":"1"}`, "depth"},
		{"a depth beyond all bounds", `{"query":"q","depth":2147483648}`, "depth"},
		{"a depth that is null", `{"query":"q","depth":null}`, "depth"},
		{"negative max_steps", `{"query":"q","max_steps":-3}`, "max_steps"},
		{"max_steps that are a list", `{"query":"q","max_steps":[]}`, "max_steps"},
		{"a tool that is an object", `{"tool":{}}`, "tool"},
		{"an empty tool", `{"query":"q","tool":""}`, "tool"},
		{"args without a tool", `{"query":"q","args":{}}`, "args"},
		{"args that are a list", `{"tool":"t","args":[]}`, "args"},
		{"args that are null", `{"tool":"t","args":null}`, "args"},
		{"args with two readings", `{"tool":"t","args":{"a":{"b":1,"b":2}}}`, "/args/a"},
		{"tags in a list", `{"query":"q","tags":[]}`, "tags"},
		{"a tag of toolgate's", `{"query":"q","tags":{"source_type":"system"}}`, "tags"},
		{"a free tag", `{"query":"q","tags":{"x":"y"}}`, "tags"},
		{"a tag with no value of its own", `{"query":"q","tags":{"urgency":"now"}}`, "tags: urgency"},
		{"an empty domain", `{"query":"q","tags":{"domain":""}}`, "tags: domain"},
		{"a long domain", `{"query":"q","tags":{"domain":"` + strings.Repeat("x", 65) + `"}}`, "tags: domain"},
		{"a number for a tag", `{"query":"q","tags":{"confidence":0.5}}`, "tags: confidence"},
		{"null for a tag", `{"query":"q","tags":{"domain":null}}`, "tags: domain"},
		{"a tag twice", `{"query":"q","tags":{"urgency":"low","urgency":"high"}}`, "urgency"},
		{"args too deep", `{"tool":"t","args":{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got signal.JobRequest
			err := got.UnmarshalJSON([]byte(tt.text))
			if !errors.Is(err, signal.ErrInvalidRequest) || !strings.Contains(err.Error(), tt.member) {
				t.Errorf("got %v, want it to name %s", err, tt.member)
			}
			if diff := cmp.Diff(signal.JobRequest{}, got); diff != "" {
				t.Errorf("a request beside the error: %s", diff)
			}
		})
	}
	var long signal.JobRequest
	if err := long.UnmarshalJSON([]byte(`{"` + strings.Repeat("x", 9999) + `":1}`)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a long name is repeated whole: %d bytes", len(err.Error()))
	}
}

// wrongJobs are what JSON cannot bring in but Go code can.
var wrongJobs = []signal.JobRequest{
	{}, {Query: "q", Depth: -1}, {Query: "q", MaxSteps: -1}, {Query: "q", Args: json.RawMessage(`{}`)}, {Tool: "t", Args: json.RawMessage(`[]`)},
	{Tool: "t", Args: json.RawMessage(`{"a":1,"a":2}`)}, {Tool: "t", Args: json.RawMessage(``)}, {Tool: "t", Args: json.RawMessage(`{}{}`)},
}

// http_request_to_signal: a TEXT signal of the gateway, tags for what is given.
func TestHTTPRequestToSignal(t *testing.T) {
	tests := []struct {
		name string
		job  signal.JobRequest
		tags map[string]string
	}{
		{"a query", signal.JobRequest{Query: "q"}, map[string]string{}},
		{"all of it", signal.JobRequest{Query: "q", JobType: "research", Depth: 2, MaxSteps: 10, Tool: "wallet", Args: json.RawMessage(goodArgs)},
			map[string]string{"job_type": "research", "depth": "2", "max_steps": "10"}},
		{"a tool alone", signal.JobRequest{Tool: "wallet"}, map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := must(signal.HTTPRequestToSignal(tt.job, "trc_1"))(t)
			if err := signal.ValidateSignal(s); err != nil {
				t.Error(err)
			}
			if s.Kind() != signal.Text || s.Body()["text"] != tt.job.Query || s.TraceID() != "trc_1" || s.ParentID() != "" {
				t.Errorf("got %s %v %s %s", s.Kind(), s.Body(), s.TraceID(), s.ParentID())
			}
			if o := s.Origin(); o.Tier != 0 || o.Module != "gateway" {
				t.Errorf("origin %v", o)
			}
			tt.tags["tier"], tt.tags["module"], tt.tags["source_type"] = "0", "gateway", "user"
			if diff := cmp.Diff(tt.tags, s.Tags()); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, job := range wrongJobs {
		if s, err := signal.HTTPRequestToSignal(job, "trc_1"); !errors.Is(err, signal.ErrInvalidRequest) || s.ID() != "" {
			t.Errorf("%+v: got %v", job, err)
		}
		if raw, err := job.MarshalJSON(); !errors.Is(err, signal.ErrInvalidRequest) || raw != nil {
			t.Errorf("%+v: wrote %s, %v", job, raw, err)
		}
	}
}

// The child of a job's signal is what signal_to_tool_call reads, and gives
// back the bytes that the client sent.
func TestToolCallSignal(t *testing.T) {
	var job signal.JobRequest
	if err := job.UnmarshalJSON([]byte(goodJob)); err != nil {
		t.Fatal(err)
	}
	parent := must(signal.HTTPRequestToSignal(job, "trc_1"))(t)
	child := must(signal.ToolCallSignal(job, parent))(t)
	if err := signal.ValidateSignal(child); err != nil {
		t.Error(err)
	}
	if child.TraceID() != "trc_1" || child.ParentID() != parent.ID() || child.Kind() != signal.Data || child.Tag("source_type") != "user" {
		t.Errorf("got %s", must(child.MarshalJSON())(t))
	}
	const call = `"tool":"wallet","args":{"b":1e2,"a":12345678901234567890}`
	if body, _ := member(t, child, "body"); body != `{"data":{`+call+`},"schema":"ToolCallRequest",`+call+`}` {
		t.Errorf("body %s", body)
	}
	if got := child.Body(); got["tool"] != "wallet" || got["schema"] != signal.SchemaToolCall {
		t.Errorf("body %v", got)
	}
	got := must(signal.SignalToToolCall(child))(t)
	if diff := cmp.Diff(signal.ToolCall{Name: "wallet", Arguments: json.RawMessage(goodArgs)}, got); diff != "" {
		t.Error(diff)
	}
	var back signal.Signal
	roundTrip(t, child, &back)
	if compact := must(signal.SignalToToolCall(back))(t); string(compact.Arguments) != `{"b":1e2,"a":12345678901234567890}` {
		t.Errorf("after its JSON form: %s", compact.Arguments)
	}
	for _, args := range []string{"", " \n {} "} {
		job := signal.JobRequest{Tool: "t"}
		if args != "" {
			job.Args = json.RawMessage(args)
		}
		got := must(signal.SignalToToolCall(must(signal.ToolCallSignal(job, parent))(t)))(t)
		if string(got.Arguments) != "{}" {
			t.Errorf("args %q: got %q", args, got.Arguments)
		}
	}
}

func TestToolCallSignalRefuses(t *testing.T) {
	parent := some(t)[0]
	for _, job := range append(wrongJobs, signal.JobRequest{Query: "no tool"}) {
		if s, err := signal.ToolCallSignal(job, parent); !errors.Is(err, signal.ErrInvalidRequest) || s.ID() != "" {
			t.Errorf("%+v: got %v", job, err)
		}
	}
	if _, err := signal.ToolCallSignal(signal.JobRequest{Tool: "t"}, signal.Signal{}); !errors.Is(err, signal.ErrInvalidSignal) {
		t.Errorf("without a parent: %v", err)
	}
}
