package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

const echoJob = `{"query":"say it","tool":"demo__echo","args":{"n":1}}`

// keepsItsSchema holds an answer of /v1/jobs to the published schema of its kind.
func keepsItsSchema(t *testing.T, got answer) {
	t.Helper()
	name := "success-response.json"
	if got.head.Get("Content-Type") == "application/problem+json" {
		name = "problem-details.json"
	}
	text, err := schemas.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	faults, err := s.Validate(json.RawMessage(got.body))
	if err != nil || len(faults) > 0 {
		t.Errorf("%s: %v %v in %d %s", name, err, faults, got.status, got.body)
	}
}

// TestJobAnswersKeepTheirSchemas: whatever becomes of a job, its answer is the
// published SuccessResponse or ProblemDetails.
func TestJobAnswersKeepTheirSchemas(t *testing.T) {
	d := open(t, func(_ *gate, o *rest.Options) { o.Envelope.Limits.Bytes = 4096 })
	probes := append(jobProbes(), probe{405, "alice", "GET", "/v1/jobs", "", nil}, probe{200, "alice", "POST", "/v1/jobs", `{"query":"a"}`, nil})
	for _, p := range probes {
		got := d.do(p.who, p.method, p.path, p.body, p.headers...)
		if got.status != p.status {
			t.Errorf("%s %s: status %d, want %d: %s", p.method, p.body, got.status, p.status, got.body)
		}
		keepsItsSchema(t, got)
	}
	d.handler.Close()
	keepsItsSchema(t, d.job("alice", echoJob))
}

// TestEveryRowOnJobs: a refusal of the road is a problem with the status of
// the table, whatever the row.
func TestEveryRowOnJobs(t *testing.T) {
	d := open(t, nil)
	for _, row := range wire.Rows() {
		t.Run(string(row.Code), func(t *testing.T) {
			got := d.job("alice", fmt.Sprintf(`{"tool":%q}`, row.Kernel))
			if got.status != row.HTTP || got.head.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("status %d, %s, want %d and problem details: %s", got.status, got.head.Get("Content-Type"), row.HTTP, got.body)
			}
			keepsItsSchema(t, got)
			for path, want := range map[string]string{
				"/code": string(row.Code), "/kernel_code": row.Kernel, "/status": strconv.Itoa(row.HTTP), "/title": string(row.Category),
				"/decision_id": "dec_1", "/trace_id": "trc_1",
			} {
				if got.text(path) != want {
					t.Errorf("%s is %q, want %q", path, got.text(path), want)
				}
			}
			waits := ""
			if failure(row.Kernel).Kernel.RetryEligible {
				waits = "2" // of 1.5 s
			}
			if got.head.Get("Retry-After") != waits {
				t.Errorf("Retry-After %q, want %q", got.head.Get("Retry-After"), waits)
			}
			if challenged := got.head.Get("WWW-Authenticate") != ""; challenged != (row.HTTP == 401) {
				t.Errorf("a challenge was sent: %v", challenged)
			}
			if row.Code == wire.InternalError && strings.Contains(got.body, "planted") {
				t.Errorf("the cause is told: %s", got.body)
			}
		})
	}
}

// TestJobs: what the stages of the road make of a job, and what reaches a tool.
func TestJobs(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		status     int
		code       string // or the status of a success
		sent       string // the arguments that a tool got
		outcome    audit.Outcome
	}{
		{"a call", echoJob, 200, "ok", `{"n":1}`, audit.Allowed},
		{"a call without a query", `{"tool":"demo__echo","args":{"n":1}}`, 200, "ok", `{"n":1}`, audit.Allowed},
		{"a call without arguments", `{"tool":"demo__echo"}`, 200, "ok", `{}`, audit.Allowed},
		{"a tool that reports an error", `{"tool":"demo__fails"}`, 502, "TOOL_FAILED", `{}`, audit.Allowed},
		{"waits for people", `{"tool":"demo__held"}`, 202, "APPROVAL_PENDING", "", audit.Held},
		{"denied", `{"tool":"demo__denied"}`, 403, "POLICY_DENIED", "", audit.Denied},
		{"over the limit", `{"tool":"demo__limited"}`, 429, "RATE_LIMITED", "", audit.Limited},
		{"arguments against the schema", `{"tool":"demo__echo","args":{"n":"one"}}`, 422, "INVALID_TOOL_INPUT", "", audit.Invalid},
		{"case variants in arguments", `{"tool":"demo__echo","args":{"n":1,"N":2}}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"unknown tool", `{"tool":"demo__nothing"}`, 404, "TOOL_NOT_FOUND", "", audit.Unknown},
		{"hidden tool", `{"tool":"demo__secret"}`, 404, "TOOL_NOT_FOUND", "", audit.Unknown},
		{"no JSON", `{"tool":`, 400, "PARSE_ERROR", "", audit.Invalid},
		{"nothing", ` `, 400, "PARSE_ERROR", "", audit.Invalid},
		{"two values", `{"query":"a"}{"query":"b"}`, 400, "PARSE_ERROR", "", audit.Invalid},
		{"no object", `["query"]`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"a member twice", `{"tool":"demo__echo","tool":"demo__denied"}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"a member twice in arguments", `{"tool":"demo__echo","args":{"n":1,"n":2}}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"a member in another case", `{"tool":"demo__echo","Args":{}}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"an unknown member", `{"query":"a","priority":1}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"a number for the query", `{"query":5}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"a negative depth", `{"query":"a","depth":-1}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"half a step", `{"query":"a","max_steps":1.5}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"no name for the tool", `{"query":"a","tool":""}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"arguments in a list", `{"tool":"demo__echo","args":[1]}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"arguments without a tool", `{"query":"a","args":{}}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"asks for nothing", `{}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"too many bytes", `{"query":"` + strings.Repeat("x", 5000) + `"}`, 413, "TOO_LARGE", "", audit.Invalid},
		{"too deep", `{"tool":"demo__echo","args":` + strings.Repeat(`{"a":`, 70) + `1` + strings.Repeat(`}`, 70) + `}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
		{"as deep as a job may be, not a message", `{"tool":"demo__echo","args":` + strings.Repeat(`{"a":`, 63) + `1` + strings.Repeat(`}`, 63) + `}`, 400, "INVALID_ENVELOPE", "", audit.Invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, func(_ *gate, o *rest.Options) { o.Envelope.Limits.Bytes = 4096 })
			got := d.job("alice", tt.body)
			keepsItsSchema(t, got)
			said := got.text("/code")
			if got.status == 200 {
				said = got.text("/status")
			}
			if got.status != tt.status || said != tt.code {
				t.Errorf("status %d %s, want %d %s: %s", got.status, said, tt.status, tt.code, got.body)
			}
			n, last := d.records()
			if n != 1 || last.Outcome != tt.outcome || last.Transport != "rest" || last.Principal.Subject != "alice" && tt.status != 400 && tt.status != 413 {
				t.Errorf("%d outcome records, the last %+v, want one %s", n, last, tt.outcome)
			}
			for _, id := range []string{"decision_id", "trace_id"} {
				record := map[string]string{"decision_id": last.DecisionID, "trace_id": last.TraceID}[id]
				if got.text("/"+id) != record || record == "" {
					t.Errorf("%s %q, the record has %q", id, got.text("/"+id), record)
				}
			}
			var want []string
			if tt.sent != "" {
				want = []string{tt.sent}
			}
			if diff := cmp.Diff(want, d.reached()); diff != "" {
				t.Errorf("arguments that reached a tool (-want +got):\n%s", diff)
			}
		})
	}
}

// TestJobWithoutATool: the signal of the request is the answer, and no call is
// made of it.
func TestJobWithoutATool(t *testing.T) {
	d := open(t, nil)
	ear := d.listen("alice")
	got := d.job("alice", `{"query":"what was it?","job_type":"research","depth":2}`)
	var reply signal.SuccessResponse
	if err := json.Unmarshal([]byte(got.body), &reply); err != nil || got.status != 200 {
		t.Fatalf("status %d: %v: %s", got.status, err, got.body)
	}
	if reply.Status != signal.StatusOK || len(reply.Data) != 1 {
		t.Fatalf("status %s with %d signals: %s", reply.Status, len(reply.Data), got.body)
	}
	asked := reply.Data[0]
	if asked.Kind() != signal.Text || asked.Body()["text"] != "what was it?" || asked.Tag("job_type") != "research" || asked.Tag("depth") != "2" ||
		asked.Tag("source_type") != "user" || asked.Origin().Tier != 0 || asked.TraceID() != got.text("/trace_id") {
		t.Errorf("the signal is %s", got.body)
	}
	if event := ear.event(); !strings.HasPrefix(event, "id: "+asked.ID()+"\nevent: signal\n") {
		t.Errorf("the bus told %q, want %s", event, asked.ID())
	}
	if n, _ := d.records(); n != 0 {
		t.Errorf("%d records of what was no call", n)
	}
}

// TestLineage: request, call and result are one chain of one trace, and the
// caller hears all three in this order.
func TestLineage(t *testing.T) {
	d := open(t, nil)
	ear := d.listen("alice")
	got := d.job("alice", echoJob)
	var asked, child struct {
		Params struct{ Signal signal.Signal }
	}
	for _, into := range []any{&asked, &child} {
		_, data, _ := strings.Cut(ear.event(), "\ndata: ")
		if err := json.Unmarshal([]byte(data), into); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
	}
	request, call := asked.Params.Signal, child.Params.Signal
	if request.Kind() != signal.Text || call.Kind() != signal.Data || call.ParentID() != request.ID() || call.TraceID() != request.TraceID() {
		t.Errorf("request %s %s, call %s child of %s", request.ID(), request.Kind(), call.Kind(), call.ParentID())
	}
	want := map[string]any{"tool": "demo__echo", "args": map[string]any{"n": json.Number("1")}}
	if diff := cmp.Diff(want, call.Body()["data"]); diff != "" {
		t.Errorf("data of the call (-want +got):\n%s", diff)
	}
	var reply struct{ Data []signal.Signal }
	if err := json.Unmarshal([]byte(got.body), &reply); err != nil || len(reply.Data) != 1 {
		t.Fatalf("%v: %s", err, got.body)
	}
	result := reply.Data[0]
	if event := ear.event(); !strings.HasPrefix(event, "id: "+result.ID()+"\n") {
		t.Errorf("after request and call the bus told %q, want the result %s", event, result.ID())
	}
	if result.ParentID() != call.ID() || result.TraceID() != request.TraceID() || result.Tag("decision_id") != got.text("/decision_id") {
		t.Errorf("result: parent %s, want %s; trace %s, want %s", result.ParentID(), call.ID(), result.TraceID(), request.TraceID())
	}
}

// TestJudgedBytesAreSent: what the policy saw is byte for byte what the tool
// gets and what the caller wrote, but for line ends between tokens.
func TestJudgedBytesAreSent(t *testing.T) {
	d := open(t, nil)
	for _, args := range []string{
		`{"b":9007199254740993,"a":1e2}`, `{ "s" : "\u0041<>&\u2028" }`, `{"π":"😀 "}`, `{"x":[1, 2 ,3],  "n":7}`, `{}`, "{\n\"n\":\r1}", `{"tool":"demo__denied","args":{}}`,
	} {
		before := len(d.reached())
		if got := d.job("alice", `{ "query" : "a", "args": `+args+` , "tool":"demo__echo"}`); got.status != 200 {
			t.Fatalf("%s: status %d: %s", args, got.status, got.body)
		}
		want := strings.NewReplacer("\n", " ", "\r", " ").Replace(args)
		if sent := d.reached(); len(sent) != before+1 || sent[before] != want || d.judged[before] != want {
			t.Errorf("sent %q, judged %q, want %q", sent[before:], d.judged[before:], want)
		}
	}
}

// TestTrace: the header traceparent continues a trace, to the tool's server
// too; one that is not valid says nothing.
func TestTrace(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, tt := range []struct {
		header string
		valid  bool
	}{
		{parent, true},
		{"", false},
		{"00-00000000000000000000000000000000-00f067aa0ba902b7-01", false},
		{"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false},
		{"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false},
		{"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false},
		{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", false},
		{`00-4bf92f3577b34da6a3ce929d0e0e47"6-00f067aa0ba902b7-01`, false},
		{parent + "-x", false},
	} {
		for path, body := range map[string]string{
			"/v1/jobs": echoJob,
			"/v1/rpc":  `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__echo","arguments":{}}}`,
		} {
			d := open(t, nil)
			got := d.do("alice", http.MethodPost, path, body, "Traceparent: "+tt.header)
			_, last := d.records()
			if got.status != 200 || (last.TraceID == trace) != tt.valid || last.TraceID == "" {
				t.Errorf("%s, traceparent %q: status %d, trace %q", path, tt.header, got.status, last.TraceID)
			}
			if path == "/v1/jobs" {
				if got.text("/trace_id") != last.TraceID {
					t.Errorf("traceparent %q: the answer has trace %q, the record %q", tt.header, got.text("/trace_id"), last.TraceID)
				}
				if passed := strings.Contains(d.metas[0], parent); passed != tt.valid {
					t.Errorf("traceparent %q: the tool's server got %q", tt.header, d.metas[0])
				}
			}
		}
	}
}

// TestPendingSaysWhen: a call that waits names its ticket, in the body and the
// header.
func TestPendingSaysWhen(t *testing.T) {
	d := open(t, nil)
	got := d.job("alice", `{"tool":"demo__held"}`)
	if got.head.Get("Retry-After") != "10" || got.text("/retry_after_ms") != "10000" || got.text("/details/ticket") != "apr_1" ||
		got.text("/kernel_code") != signal.CodeApprovalPending || got.text("/retry_eligible") != "true" || !strings.Contains(got.text("/detail"), "ticket apr_1") {
		t.Errorf("Retry-After %q, body %s", got.head.Get("Retry-After"), got.body)
	}
}

// TestToolsOwnError: what a tool says of its failure reaches the caller, under
// the ids of the call.
func TestToolsOwnError(t *testing.T) {
	d := open(t, nil)
	got := d.job("alice", `{"tool":"demo__fails"}`)
	_, last := d.records()
	if got.text("/detail") != "Tool failed: no such city" || got.text("/reason") != "no such city" || got.text("/extensions/error/category") != "external" || got.text("/decision_id") != last.DecisionID {
		t.Errorf("body %s", got.body)
	}
}

// TestHangingUpEndsNoCall: what was begun comes to an outcome that is known.
func TestHangingUpEndsNoCall(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/jobs": `{"tool":"demo__wait"}`,
		"/v1/rpc":  `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__wait"}}`,
	} {
		d := open(t, nil)
		d.finish = make(chan struct{})
		ctx, hangUp := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.handler.ServeHTTP(httptest.NewRecorder(), d.request("alice", http.MethodPost, path, body).WithContext(ctx))
		}()
		<-d.started
		hangUp()
		close(d.finish)
		<-done
		if n, last := d.records(); n != 1 || last.Outcome != audit.Allowed {
			t.Errorf("%s: %d records, the last %q", path, n, last.Outcome)
		}
	}
}

// TestDrainCancels: calls that outlive the drain are cancelled and answered.
func TestDrainCancels(t *testing.T) {
	d := open(t, nil)
	done := make(chan answer)
	go func() { done <- d.job("alice", `{"tool":"demo__wait"}`) }()
	<-d.started
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := d.handler.Drain(ctx); err == nil {
		t.Error("the drain did not say that a call was left")
	}
	if got := <-done; got.status != 502 || got.text("/code") != "TOOL_TIMEOUT" || !strings.Contains(got.text("/reason"), "whether the call took effect is unknown") {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	if got := d.job("alice", echoJob); got.status != 503 || got.text("/code") != "SHUTTING_DOWN" {
		t.Errorf("after the drain: status %d: %s", got.status, got.body)
	}
}

// contradicts is a gate whose results are none.
type contradicts struct{ *gate }

func (contradicts) Call(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	return &proxy.Reply{Kernel: signal.Result{Status: signal.StatusOK, Error: failure(signal.CodeToolFailed).Kernel}}, nil
}

// panics is a gate that panics on every call.
type panics struct{ *gate }

func (panics) Call(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure) { panic("planted") }

// TestPanic: a panic in a call is an answer, which tells nothing, and a line of the log.
func TestPanic(t *testing.T) {
	var log strings.Builder
	d := open(t, func(g *gate, o *rest.Options) {
		o.Gate, o.Log = panics{g}, hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	for _, got := range []answer{d.job("alice", echoJob), d.rpc("alice", `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__echo"}}`)} {
		if got.status != 500 || !strings.Contains(got.body, "Internal error") || strings.Contains(got.body, "planted") {
			t.Errorf("status %d: %s", got.status, got.body)
		}
	}
	if n := strings.Count(log.String(), "planted"); n < 2 || !strings.Contains(log.String(), "jobs.go") {
		t.Errorf("the log: %s", log.String())
	}
}

// TestBrokenGate fails closed and tells nothing.
func TestBrokenGate(t *testing.T) {
	d := open(t, func(g *gate, _ *rest.Options) { g.silent = true })
	if got := d.job("alice", echoJob); got.status != 500 || got.text("/code") != "INTERNAL_ERROR" {
		t.Errorf("a silent gate: status %d: %s", got.status, got.body)
	}
	f := open(t, func(g *gate, o *rest.Options) { o.Gate = contradicts{g} })
	if got := f.job("alice", echoJob); got.status != 500 || got.text("/code") != "INTERNAL_ERROR" || strings.Contains(got.body, "status ok") {
		t.Errorf("an invalid result: status %d: %s", got.status, got.body)
	}
	e := open(t, nil)
	if got := e.job("alice", `{"tool":"T9_NOT_KNOWN"}`); got.status != 500 || strings.Contains(got.body, "planted") {
		t.Errorf("an unknown code: status %d: %s", got.status, got.body)
	}
}

// TestCallOfAJob: the request that the road judges has an id of its own, a UUID where
// envelopes are deterministic.
func TestCallOfAJob(t *testing.T) {
	for profile, want := range map[wire.Profile]string{
		wire.ProfileMCP: `^req_[0-9A-HJKMNP-TV-Z]{26}$`, wire.ProfileStrict: `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`,
	} {
		d := open(t, func(_ *gate, o *rest.Options) {
			o.Envelope.Profile, o.Envelope.Deterministic = profile, profile == wire.ProfileStrict
		})
		d.job("alice", echoJob)
		if _, last := d.records(); !regexp.MustCompile(want).MatchString(last.RequestID) {
			t.Errorf("profile %s: the id is %q, want %s", profile, last.RequestID, want)
		}
	}
}

// TestTagsOfAJob: the claims of the caller are on both signals of the job and in its
// record, and a tag that is no claim of callers is refused.
func TestTagsOfAJob(t *testing.T) {
	d := open(t, nil)
	ear := d.listen("alice")
	claims := map[string]string{"urgency": "high", "domain": "finance", "complexity": "simple", "confidence": "0.9", "grounding": "1.0"}
	text, _ := json.Marshal(claims)
	d.job("alice", `{"query":"q","tool":"demo__echo","tags":`+string(text)+`}`)
	for _, name := range []string{"request", "call"} {
		_, data, _ := strings.Cut(ear.event(), "\ndata: ")
		var n struct {
			Params struct{ Signal signal.Signal }
		}
		if err := json.Unmarshal([]byte(data), &n); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for key, want := range claims {
			if got := n.Params.Signal.Tag(key); got != want {
				t.Errorf("%s: tag %s is %q, want %q", name, key, got, want)
			}
		}
	}
	if _, last := d.records(); !maps.Equal(claims, last.Tags) {
		t.Errorf("the record has %v", last.Tags)
	}
	for _, tags := range []string{`{"urgency":"now"}`, `{"source_type":"system"}`, `{"decision_id":"dec_1"}`, `{"confidence":1}`, `{"confidence":"2"}`, `[]`} {
		got := d.job("alice", `{"query":"q","tool":"demo__echo","tags":`+tags+`}`)
		if got.status != 400 || got.text("/code") != "INVALID_ENVELOPE" || !strings.Contains(got.body, "tags") {
			t.Errorf("%s: status %d: %s", tags, got.status, got.body)
		}
	}
	if n := len(d.reached()); n != 1 {
		t.Errorf("%d calls reached a tool, want one", n)
	}
}
