package upstream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Environment variables that make the test binary an NDJSON server: what it
// answers, and the file to which it adds the lines that it received.
const (
	actionsVar = "ACTIONS"
	recordVar  = "ACTIONS_RECORD"
)

// scriptedActions answers the action of a request, or "" for list_actions, with
// lines in which ID is the request's id. An action without lines gets none.
type scriptedActions map[string][]string

// beActions is the NDJSON server.
func beActions() {
	var script scriptedActions
	if err := json.Unmarshal([]byte(os.Getenv(actionsVar)), &script); err != nil {
		panic(err)
	}
	record, err := os.OpenFile(os.Getenv(recordVar), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			os.Exit(0)
		}
		_, _ = record.WriteString(line)
		var req struct {
			ID      string
			Payload struct{ Action string }
		}
		_ = json.Unmarshal([]byte(line), &req)
		for _, answer := range script[req.Payload.Action] {
			if answer == "exit" {
				os.Exit(3)
			}
			fmt.Println(strings.ReplaceAll(answer, "ID", `"`+req.ID+`"`))
		}
	}
}

// actions configures an NDJSON server; received gives the lines it has got.
func actions(t *testing.T, script scriptedActions) (cfg config.Server, received func() []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(script)
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(t.TempDir(), "record")
	cfg = config.Server{Name: "acts", Type: config.TypeNDJSON, Command: self, Args: []string{}, Isolation: "shared", Timeout: patience,
		Env: map[string]string{actionsVar: string(text), recordVar: record, "GORACE": "atexit_sleep_ms=0"}}
	return cfg, func() []string {
		data, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	}
}

// listed is the answer to list_actions.
func listed(data string) []string { return []string{`{"id":ID,"ok":true,"data":` + data + `}`} }

const twoActions = `{"actions":[{"name":"a","inputSchema":{"type":"object"}},{"action":"b"}]}`

// definitionsOf starts the server and gives the definitions that it lists.
func definitionsOf(t *testing.T, cfg config.Server) []string {
	t.Helper()
	got := make(chan []json.RawMessage, 8)
	s := upstream.Start(cfg, upstream.Options{Listed: func(l upstream.Listing) { got <- l.Tools }})
	defer func() {
		ctx, stop := context.WithTimeout(context.Background(), 0)
		defer stop()
		s.Close(ctx)
	}()
	select {
	case definitions := <-got:
		out := make([]string, len(definitions))
		for i, d := range definitions {
			out[i] = string(d)
		}
		return out
	case <-time.After(patience):
		t.Fatalf("no list came; status %+v", s.Status())
		return nil
	}
}

// An action becomes a tool definition, the same from the same bytes. One that
// cannot be read does not sink its neighbours.
func TestActionDefinitions(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		want       []string
	}{
		{"whole", `{"actions":[{"action":"a","description":"d","boundaryNotice":"n","inputSchema":{"type":"object","x":1e2},"outputSchema":{"y":9007199254740993}}]}`,
			[]string{`{"name":"a","description":"d","inputSchema":{"type":"object","x":1e2},"outputSchema":{"y":9007199254740993},"_meta":{"boundaryNotice":"n"}}`}},
		{"a bare array", `[{"name":"a"},{"name":"b"}]`, []string{`{"name":"a","inputSchema":{"type":"object"}}`, `{"name":"b","inputSchema":{"type":"object"}}`}},
		{"other names", `[{"id":"a","summary":"s","input_schema":{"a":1},"output_schema":{"b":2}}]`, []string{`{"name":"a","description":"s","inputSchema":{"a":1},"outputSchema":{"b":2}}`}},
		{"schema", `[{"name":"a","schema":{"a":1}}]`, []string{`{"name":"a","inputSchema":{"a":1}}`}},
		{"the first name counts", `[{"id":"c","action":"b","name":"a","summary":"t","description":"d","schema":{"c":3},"input_schema":{"b":2},"inputSchema":{"a":1}}]`,
			[]string{`{"name":"a","description":"d","inputSchema":{"a":1}}`}},
		{"none", `{"actions":[]}`, []string{}},
		{"one is broken", `[{"name":"a","name":"b"},5,{"name":"c"}]`, []string{`{"name":"a","name":"b"}`, `5`, `{"name":"c","inputSchema":{"type":"object"}}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _ := actions(t, scriptedActions{"": listed(tt.data)})
			if diff := cmp.Diff(tt.want, definitionsOf(t, cfg)); diff != "" {
				t.Errorf("definitions (-want +got):\n%s", diff)
			}
		})
	}
}

// A list that is none fails the server with a reason.
func TestActionListsRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer string
		want   string
	}{
		{"refused", `{"id":ID,"ok":false,"error":"not now"}`, "not now"},
		{"no list", `{"id":ID,"ok":true,"data":{"tools":[]}}`, "data has no actions"},
		{"no array", `{"id":ID,"ok":true,"data":{"actions":{}}}`, "malformed"},
		{"no data", `{"id":ID,"ok":true}`, "data must be an object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _ := actions(t, scriptedActions{"": {tt.answer}})
			r := start(t, cfg, upstream.Options{})
			r.await("failed", func() bool { return r.Status().State == upstream.StateFailed })
			if err := r.Status().Err; err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// What an answer means, and that the connection goes on after it.
func TestActionAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lines  []string
		result string // of the call, or
		rpc    string // the error object
		want   string // in the error
		drops  int64
	}{
		{name: "success", lines: []string{`{"id":ID,"ok":true,"data":{"action":"a","boundaryNotice":"n","uncertainty":"low","assumptions":["x"],"output":{"n": 1e2,"s":"<\u003c"}}}`},
			result: `{"content":[{"type":"text","text":"{\"n\": 1e2,\"s\":\"<\\u003c\"}"}],"structuredContent":{"n": 1e2,"s":"<\u003c"},"_meta":{"io.toolgate/action":{"action":"a","boundaryNotice":"n","uncertainty":"low","assumptions":["x"]}}}`},
		{name: "output alone", lines: []string{`{"ok":true,"data":{"output":{}},"id":ID}`},
			result: `{"content":[{"type":"text","text":"{}"}],"structuredContent":{},"_meta":{"io.toolgate/action":{}}}`},
		{name: "failure", lines: []string{`{"id":ID,"ok":false,"error":"Unknown action: 'a'"}`}, rpc: `{"code":-32000,"message":"Unknown action: 'a'"}`},
		{name: "failure with issues", lines: []string{`{"id":ID,"ok":false,"error":"no","issues":[{"code":"c","path":["p", 1e2]}]}`},
			rpc: `{"code":-32000,"message":"no","data":{"issues":[{"code":"c","path":["p", 1e2]}]}}`},
		{name: "no output", lines: []string{`{"id":ID,"ok":true,"data":{}}`}, want: "output must be an object"},
		{name: "output is text", lines: []string{`{"id":ID,"ok":true,"data":{"output":"x"}}`}, want: "output must be an object"},
		{name: "a member twice", lines: []string{`{"id":ID,"ok":true,"data":{"output":{"a":1,"a":2}}}`}, want: "duplicate key", drops: 1},
		{name: "both", lines: []string{`{"id":ID,"ok":true,"data":{"output":{}},"error":"no"}`}, want: "malformed", drops: 1},
		{name: "cut off", lines: []string{`{"id":ID,"ok":true,"data":{"output":{`}, want: "malformed: expected a member name", drops: 1},
		{name: "garbage before", lines: []string{"oops", "[]", `{"id":"999","ok":true,"data":{"output":{}}}`, `{"ok":false,"error":"Malformed JSON request"}`, `{"jsonrpc":"2.0","id":"998","result":{}}x`,
			`{"id":ID,"ok":true,"data":{"output":{"n":1}}}`}, drops: 5,
			result: `{"content":[{"type":"text","text":"{\"n\":1}"}],"structuredContent":{"n":1},"_meta":{"io.toolgate/action":{}}}`},
		{name: "twice", lines: []string{`{"id":ID,"ok":false,"error":"first"}`, `{"id":ID,"ok":true,"data":{"output":{}}}`}, rpc: `{"code":-32000,"message":"first"}`, drops: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _ := actions(t, scriptedActions{"": listed(twoActions), "a": tt.lines, "b": {`{"id":ID,"ok":true,"data":{"output":{"b":1}}}`}})
			r := start(t, cfg, upstream.Options{})
			prints := r.ready()
			result, e := r.call(prints, "a", `{}`)
			if string(result) != tt.result {
				t.Errorf("result %s\nwant   %s", result, tt.result)
			}
			if tt.result == "" {
				wantError(t, e, upstream.Failed, true)
				if string(e.RPC) != tt.rpc || !strings.Contains(e.Error(), tt.want) {
					t.Errorf("error %v, object %s; want %q, %s", e, e.RPC, tt.want, tt.rpc)
				}
			}
			if after, e := r.call(prints, "b", `{}`); e != nil || !strings.Contains(string(after), `"structuredContent":{"b":1}`) {
				t.Errorf("after it: %s, %v", after, e)
			}
			if got := r.Status().Dropped; got != tt.drops {
				t.Errorf("%d messages dropped, want %d", got, tt.drops)
			}
		})
	}
}

// Lines that make no sense are borne for a while, and not for ever.
func TestActionGarbage(t *testing.T) {
	oops := slices.Repeat([]string{"oops"}, 99)
	answer := `{"id":ID,"ok":true,"data":{"output":{}}}`
	cfg, _ := actions(t, scriptedActions{"": listed(twoActions), "a": append(oops, answer), "b": append(oops, "oops", answer)})
	r := start(t, cfg, upstream.Options{})
	prints := r.ready()
	for range 3 {
		if _, e := r.call(prints, "a", `{}`); e != nil {
			t.Fatal(e)
		}
	}
	_, e := r.call(prints, "b", `{}`)
	wantError(t, e, upstream.Failed, true)
}

// Only list_actions and invoke are written, and the input's own bytes.
func TestActionLines(t *testing.T) {
	cfg, received := actions(t, scriptedActions{"": listed(twoActions), "a": {`{"id":ID,"ok":true,"data":{"output":{}}}`}})
	r := start(t, cfg, upstream.Options{})
	prints := r.ready()
	const input = `{ "b":9007199254740993, "a":1e2,"s":"\u003c<\u2028" }`
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var steps int
	_, e := r.Do(ctx, upstream.Call{Tool: "a", Fingerprint: prints["a"], Arguments: json.RawMessage(input), Meta: json.RawMessage(`{"x":1}`),
		Progress: func(json.RawMessage) { steps++ }})
	if e != nil || steps != 0 {
		t.Fatalf("error %v, %d progress notifications", e, steps)
	}
	if _, e := r.Do(ctx, upstream.Call{Tool: "a", Fingerprint: prints["a"]}); e != nil {
		t.Fatal(e)
	}
	want := []string{
		`{"id":"1","type":"list_actions"}`,
		`{"id":"2","type":"invoke","payload":{"action":"a","input":` + input + `}}`,
		`{"id":"3","type":"invoke","payload":{"action":"a","input":{}}}`,
	}
	if diff := cmp.Diff(want, received()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// A line of 512 KB is sent, one byte more is not.
func TestActionLineLimit(t *testing.T) {
	cfg, received := actions(t, scriptedActions{"": listed(twoActions), "a": {`{"id":ID,"ok":true,"data":{"output":{}}}`}})
	r := start(t, cfg, upstream.Options{})
	prints := r.ready()
	room := ndjson.MaxLine - len(`{"id":"2","type":"invoke","payload":{"action":"a","input":{"s":""}}}`)
	if _, e := r.call(prints, "a", `{"s":"`+strings.Repeat("x", room)+`"}`); e != nil {
		t.Errorf("a line of %d bytes: %v", ndjson.MaxLine, e)
	}
	_, e := r.call(prints, "a", `{"s":"`+strings.Repeat("x", room+1)+`"}`)
	wantError(t, e, upstream.TooLarge, false)
	if !strings.Contains(e.Error(), "at most 524288") {
		t.Errorf("error %v", e)
	}
	if got := received(); len(got) != 2 || len(got[1]) != ndjson.MaxLine {
		t.Errorf("%d lines were sent", len(got))
	}
}

// The process is supervised as a stdio server is: a call that is given up is
// told to nobody and its late answer dropped, a crash fails what was sent and
// the server is started again, and a session has a process of its own.
func TestActionSupervision(t *testing.T) {
	t.Run("cancelled", func(t *testing.T) {
		cfg, received := actions(t, scriptedActions{"": listed(twoActions), "b": {`{"id":"2","ok":true,"data":{"output":{}}}`, `{"id":ID,"ok":true,"data":{"output":{}}}`}})
		r := start(t, cfg, upstream.Options{})
		prints := r.ready()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan *upstream.Error)
		go func() {
			_, e := r.Do(ctx, upstream.Call{Tool: "a", Fingerprint: prints["a"]})
			done <- e
		}()
		r.await("the call was sent", func() bool { return len(received()) == 2 })
		cancel()
		wantError(t, <-done, upstream.Cancelled, true)
		if _, e := r.call(prints, "b", `{}`); e != nil {
			t.Error(e)
		}
		if got := r.Status().Dropped; got != 1 {
			t.Errorf("%d messages dropped, want the late answer", got)
		}
		if got := received(); len(got) != 3 {
			t.Errorf("lines %q, want no more than the two calls and the list", got)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		cfg, _ := actions(t, scriptedActions{"": listed(twoActions)})
		r := start(t, cfg, upstream.Options{})
		e := r.timeOut(upstream.Call{Tool: "a", Fingerprint: r.ready()["a"]})
		wantError(t, e, upstream.Timeout, true)
	})
	t.Run("crash", func(t *testing.T) {
		cfg, _ := actions(t, scriptedActions{"": listed(twoActions), "a": {"exit"}, "b": {`{"id":ID,"ok":true,"data":{"output":{}}}`}})
		r := start(t, cfg, upstream.Options{After: func(time.Duration) <-chan time.Time { return time.After(0) }})
		prints := r.ready()
		_, e := r.call(prints, "a", `{}`)
		wantError(t, e, upstream.Failed, true)
		r.ready()
		if _, e := r.call(prints, "b", `{}`); e != nil {
			t.Errorf("after the restart: %v", e)
		}
	})
	t.Run("sessions", func(t *testing.T) {
		cfg, received := actions(t, scriptedActions{"": listed(twoActions), "a": {`{"id":ID,"ok":true,"data":{"output":{}}}`}})
		cfg.Isolation = "session"
		r := start(t, cfg, upstream.Options{})
		if _, e := r.Do(t.Context(), upstream.Call{Tool: "a", Fingerprint: r.ready()["a"], From: upstream.Downstream{Session: "s"}}); e != nil {
			t.Fatal(e)
		}
		if got := received(); len(got) != 3 {
			t.Errorf("lines %q, want a list of each process and a call", got)
		}
	})
	t.Run("too large", func(t *testing.T) {
		cfg, _ := actions(t, scriptedActions{"": listed(twoActions), "a": {`{"id":ID,"ok":true,"data":{"output":{"s":"` + strings.Repeat("x", 4096) + `"}}}`}})
		r := start(t, cfg, upstream.Options{MaxAnswerBytes: 1024})
		_, e := r.call(r.ready(), "a", `{}`)
		wantError(t, e, upstream.TooLarge, true)
	})
}

// nodeServer is the protocol as somebody else reads it: plain Node.
func nodeServer(t *testing.T) config.Server {
	t.Helper()
	node := parts.Need(t, "node")
	script, err := filepath.Abs("../../testdata/ndjson/server.mjs")
	if err != nil {
		t.Fatal(err)
	}
	return config.Server{Name: "node", Type: config.TypeNDJSON, Command: node, Args: []string{script}, Isolation: "shared", Timeout: patience}
}

// The examples of the protocol, against a server that shares no code with us.
func TestActionsOfNode(t *testing.T) {
	r := start(t, nodeServer(t), upstream.Options{})
	prints := r.ready()
	for _, tt := range []struct{ name, tool, input, want string }{
		{"invoke", "supportive_reply", `{"message":"I feel overwhelmed","risk_level":"medium"}`,
			`"structuredContent":{"reply":"I hear you, and I am glad you reached out...","escalation_guidance":["If things feel harder over time, consider speaking with a mental health professional"],` +
				`"boundaries_notice":"Non-clinical support..."},"_meta":{"io.toolgate/action":{"action":"supportive_reply",` +
				`"boundaryNotice":"Non-clinical support; must provide escalation cues when risk is elevated","uncertainty":"medium",` +
				`"assumptions":["Risk level: medium (self-reported or system-assessed)"]}}}`},
		{"invalid input", "supportive_reply", `{"message":""}`,
			`{"code":-32000,"message":"Input validation failed for action 'supportive_reply': Required field 'message' is missing or empty"}`},
		{"echo", "echo", `{"text":"Grüße, 世界"}`, `"structuredContent":{"text":"Grüße, 世界"}`},
		{"fail", "fail", `{}`, `{"code":-32000,"message":"this action always fails"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			result, e := r.call(prints, tt.tool, tt.input)
			got := string(result)
			if e != nil {
				got = string(e.RPC)
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	if len(prints) != 3 || prints["echo"] == "" {
		t.Errorf("tools %v", prints)
	}
}
