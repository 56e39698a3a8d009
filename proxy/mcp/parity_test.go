package mcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// uuid is the n-th id that profile strict takes when it is deterministic.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", n) }

// ask makes a message with an id and the members given.
func ask(members string) string { return `{"jsonrpc":"2.0","id":"` + uuid(1) + `",` + members + `}` }

// parity is what both transports must treat alike, and how: a status, or the
// canonical code of the error, in profile mcp and in profile strict.
var parity = []struct{ name, message, mcp, strict string }{
	{"good call", ask(`"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":1e2}}`), "ok", "ok"},
	{"good list", ask(`"method":"tools/list","params":{}`), "ok", "ok"},
	{"bad JSON", `{"jsonrpc":"2.0","id":"` + uuid(1) + `","method":`, "PARSE_ERROR", "PARSE_ERROR"},
	{"duplicate keys", ask(`"method":"ping","params":{},"params":{}`), "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"duplicate keys in arguments", ask(`"method":"tools/call","params":{"name":"demo__echo","arguments":{"a":1,"a":2}}`), "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"wrong jsonrpc", `{"jsonrpc":"1.0","id":"` + uuid(1) + `","method":"ping","params":{}}`, "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"no jsonrpc", `{"id":"` + uuid(1) + `","method":"ping","params":{}}`, "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"missing method", ask(`"params":{}`), "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"empty method", ask(`"method":"","params":{}`), "METHOD_NOT_FOUND", "INVALID_ENVELOPE"},
	{"method no string", ask(`"method":7,"params":{}`), "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"missing params", ask(`"method":"ping"`), "ok", "INVALID_ENVELOPE"},
	{"params no object", ask(`"method":"ping","params":[]`), "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"id number", `{"jsonrpc":"2.0","id":7,"method":"ping","params":{}}`, "ok", "INVALID_ENVELOPE"},
	{"id no UUID", `{"jsonrpc":"2.0","id":"req-7","method":"ping","params":{}}`, "ok", "INVALID_ENVELOPE"},
	{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping","params":{}}`, "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"id missing", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"demo__echo"}}`, "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"additional member", ask(`"method":"ping","params":{},"extra":1`), "INVALID_ENVELOPE", "ok"},
	{"unknown method", ask(`"method":"resources/read","params":{}`), "METHOD_NOT_FOUND", "METHOD_NOT_FOUND"},
	{"unknown tool", ask(`"method":"tools/call","params":{"name":"demo__nope"}`), "TOOL_NOT_FOUND", "TOOL_NOT_FOUND"},
	{"denied tool", ask(`"method":"tools/call","params":{"name":"demo__denied"}`), "POLICY_DENIED", "POLICY_DENIED"},
	{"limited tool", ask(`"method":"tools/call","params":{"name":"demo__limited"}`), "RATE_LIMITED", "RATE_LIMITED"},
	{"failing tool", ask(`"method":"tools/call","params":{"name":"demo__broken"}`), "TOOL_FAILED", "TOOL_FAILED"},
	{"too large", ask(`"method":"ping","params":{"a":"` + strings.Repeat("x", 5000) + `"}`), "TOO_LARGE", "TOO_LARGE"},
	{"batch", `[` + ask(`"method":"ping","params":{}`) + `]`, "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
	{"notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "accepted", "accepted"},
	{"notification of nothing known", `{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1}}`, "accepted", "accepted"},
	{"answer to nothing", ask(`"result":{}`), "accepted", "accepted"},
	{"failed answer to nothing", ask(`"error":{"code":-1,"message":"m","data":{}}`), "accepted", "accepted"},
	{"answer that is none", ask(`"error":{"code":"x","message":"m"}`), "INVALID_ENVELOPE", "INVALID_ENVELOPE"},
}

// events collects what a door tells.
type events struct {
	mu  sync.Mutex // protects the field below
	all []wire.Event
}

func (e *events) observe(got wire.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, got)
}

// take gives what was told since the last time.
func (e *events) take() []wire.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	return all
}

// outcome is the result of a request without a session, before it is put into
// the form that the attempt asks for. The zero value means that our own parts
// contradict themselves.
type outcome struct {
	Name   string
	Answer string
	Events []wire.Event
}

// ways are the transports: each gives a function that sends a message of a
// session that has been opened and gives the answer, "" when none is due.
var ways = map[string]func(t *testing.T, d *mcp.Door, hello string) func(message string, due bool) string{
	"http": func(t *testing.T, d *mcp.Door, hello string) func(string, bool) string {
		rec := record(d, "alice", "", hello)
		session := rec.Header().Get("Mcp-Session-Id")
		return func(message string, _ bool) string { return record(d, "alice", session, message).Body.String() }
	},
	"stdio": func(t *testing.T, d *mcp.Door, hello string) func(string, bool) string {
		c := dial(t, d)
		c.Ask(hello)
		return func(message string, due bool) string {
			c.Send(message)
			if due {
				return c.Receive()
			}
			// Lines are taken in order: once the next is answered, this one was dealt with.
			c.Ask(`{"jsonrpc":"2.0","id":"` + uuid(2) + `","method":"ping","params":{}}`)
			return ""
		}
	},
}

// runParity sends the table through one transport, with counted ids and times.
func runParity(t *testing.T, way string, profile wire.Profile, observe func(wire.Event)) []outcome {
	t.Helper()
	defer signal.Reproducible(time.Unix(1_800_000_000, 0))()
	told := &events{}
	d := newDoor(t, newGate(), func(o *mcp.Options) {
		small(o)
		o.Profile, o.Deterministic, o.Now = profile, true, signal.Now
		o.Observe = func(e wire.Event) {
			if e.RequestID != uuid(2) { // not ours, but runParity's
				told.observe(e)
				observe(e)
			}
		}
	})
	send := ways[way](t, d, `{"jsonrpc":"2.0","id":"`+uuid(0)+`","method":"initialize","params":{"protocolVersion":"2025-06-18"}}`)
	out := []outcome{{Name: "initialize", Events: told.take()}}
	for _, tt := range parity {
		want := tt.mcp
		if profile == wire.ProfileStrict {
			want = tt.strict
		}
		answer := send(tt.message, want != "accepted")
		got := outcome{tt.name, answer, told.take()}
		checkOutcome(t, way, string(profile), want, got)
		out = append(out, got)
	}
	return out
}

// checkOutcome holds one outcome to the table: exactly one event, whose error
// is the one that was answered.
func checkOutcome(t *testing.T, way, profile, want string, got outcome) {
	t.Helper()
	if len(got.Events) != 1 {
		t.Fatalf("%s %s %s: %d events, want 1", way, profile, got.Name, len(got.Events))
	}
	e := got.Events[0]
	answered, _ := jsonrpc.Get(json.RawMessage(got.Answer), "error")
	data, _ := jsonrpc.Get(answered, "data")
	raw, _ := jsonrpc.Get(data, "code")
	code, failed := jsonrpc.Text(raw)
	word := e.Status
	if failed {
		word = code
	}
	if word != want || failed != (e.Status == wire.StatusError) || string(answered) != string(e.Error) || e.Transport != way {
		t.Errorf("%s %s %s: answer %s, event %+v %s; want %s", way, profile, got.Name, got.Answer, e, e.Error, want)
	}
	if failed && (e.DecisionID == "" || e.TraceID == "") || e.Session == "" {
		t.Errorf("%s %s %s: an id is missing: %+v", way, profile, got.Name, e)
	}
}

// TestTransportParity: HTTP and stdio share one pipeline (seed 004): the same
// messages have the same answers, byte for byte, and the same events but for
// transport and times, in both profiles.
func TestTransportParity(t *testing.T) {
	for _, profile := range []wire.Profile{wire.ProfileMCP, wire.ProfileStrict} {
		t.Run(string(profile), func(t *testing.T) {
			overHTTP := runParity(t, "http", profile, func(wire.Event) {})
			overStdio := runParity(t, "stdio", profile, func(wire.Event) {})
			ignore := cmpopts.IgnoreFields(wire.Event{}, "Transport", "Time", "Duration")
			if diff := cmp.Diff(overHTTP, overStdio, ignore); diff != "" {
				t.Errorf("(-http +stdio):\n%s", diff)
			}
		})
	}
}

// TestEnvelopeEventsGolden: the log of the same table, HTTP and stdio, byte for
// byte, made with counted ids and times; each line is as the schema says.
func TestEnvelopeEventsGolden(t *testing.T) {
	const path = "testdata/envelope_events.golden.jsonl"
	dir := t.TempDir()
	ticks := 0
	l, err := audit.OpenEnvelopes(dir, audit.EnvelopeOptions{Deterministic: true, Now: func() time.Time {
		ticks++
		return time.Unix(1_800_000_000, 0).Add(time.Duration(ticks) * time.Millisecond)
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range []wire.Profile{wire.ProfileMCP, wire.ProfileStrict} {
		for _, way := range []string{"http", "stdio"} {
			runParity(t, way, profile, l.Write)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, ".latest"))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("(-golden +log):\n%s", cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")))
	}
	checkGolden(t, string(want))
}

// checkGolden holds the golden file itself to what seed 004 asserts of it.
func checkGolden(t *testing.T, text string) {
	t.Helper()
	raw, err := schemas.Files.ReadFile("envelope-event.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.Compile(raw)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(text) {
		if faults, err := s.Validate(json.RawMessage(line)); err != nil || len(faults) > 0 {
			t.Errorf("%s: %v %v", line, faults, err)
		}
		transport, _ := jsonrpc.Get(json.RawMessage(line), "transport")
		count[string(transport)]++
	}
	each := 2 * (len(parity) + 1)
	if diff := cmp.Diff(map[string]int{`"http"`: each, `"stdio"`: each}, count); diff != "" {
		t.Error(diff)
	}
}

// TestEventOfAResult: a result that stands for an error is an error to those
// who watch; one of the tool's own is not.
func TestEventOfAResult(t *testing.T) {
	told := &events{}
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.Observe = told.observe })
	h := openAt(t, srv.URL+"/mcp/demo", "alice")
	told.take()
	_, body := h.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"denied"}}`)
	all := told.take()
	if len(all) != 1 || all[0].Status != wire.StatusError || all[0].Route != "/mcp/demo" || all[0].DecisionID == "" {
		t.Fatalf("events %+v", all)
	}
	result, _ := jsonrpc.Get(json.RawMessage(body), "result")
	meta, _ := jsonrpc.Get(result, "_meta")
	data, _ := jsonrpc.Get(meta, wire.MetaError)
	if len(data) == 0 || string(data) != string(all[0].Error) {
		t.Errorf("answer %s, event %s", body, all[0].Error)
	}
	h.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}}`)
	want := wire.Event{
		RequestID: "2", TraceID: "trc_passed", DecisionID: "dec_passed", Transport: "http", Route: "/mcp/demo",
		Method: "tools/call", Status: wire.StatusOK,
	}
	if diff := cmp.Diff([]wire.Event{want}, told.take(), cmpopts.IgnoreFields(wire.Event{}, "Time", "Duration", "Session")); diff != "" {
		t.Error(diff)
	}
}

// TestEventOfACancelledCall: one event for the notification, one for the call,
// and times by the door's clock.
func TestEventOfACancelledCall(t *testing.T) {
	for _, way := range []string{"http", "stdio"} {
		t.Run(way, func(t *testing.T) {
			g, told, c := newGate(), &events{}, &clock{at: time.Unix(1e9, 0)}
			d := newDoor(t, g, func(o *mcp.Options) { o.Observe, o.Now = told.observe, c.now })
			send := ways[way](t, d, initialize)
			told.take()
			var wg sync.WaitGroup
			if way == "http" {
				wg.Go(func() { send(waitCall, true) })
			} else {
				send(waitCall, false)
			}
			<-g.started
			c.advance(3 * time.Second)
			send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, false)
			wg.Wait()
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
			got := map[string][]string{}
			for _, e := range told.take() {
				if e.RequestID != uuid(2) {
					got[e.Method] = append(got[e.Method], e.Status, e.Duration.String(), string(e.Error))
				}
			}
			want := map[string][]string{
				"tools/call": {wire.StatusCancelled, "3s", ""}, "notifications/cancelled": {wire.StatusAccepted, "0s", ""},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestEventOfAStranger: an envelope of somebody unknown is told too, without a
// session; what is no envelope is not.
func TestEventOfAStranger(t *testing.T) {
	told := &events{}
	d := newDoor(t, newGate(), func(o *mcp.Options) { o.Observe = told.observe })
	if rec := record(d, "mallory", "", ping); rec.Code != http.StatusUnauthorized {
		t.Errorf("status %d", rec.Code)
	}
	all := told.take()
	if len(all) != 1 || all[0].Status != wire.StatusError || all[0].Session != "" || !bytes.Contains(all[0].Error, []byte("UNAUTHENTICATED")) {
		t.Errorf("events %+v", all)
	}
	srv, _ := newServer(t, newGate(), func(o *mcp.Options) { o.Observe = told.observe })
	h := &far{t: t, url: srv.URL + "/mcp", who: "alice"}
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut} {
		h.status(method, "")
	}
	if all := told.take(); len(all) != 0 {
		t.Errorf("events %+v without an envelope", all)
	}
}

func TestUnknownProfile(t *testing.T) {
	if d, err := mcp.New(mcp.Options{Gate: newGate(), Refuser: newGate(), Profile: "lax"}); d != nil || err == nil {
		t.Error("a profile that is not known was taken")
	}
}
