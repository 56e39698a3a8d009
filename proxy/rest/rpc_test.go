package rest_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
)

// TestEveryRowOnRPC: a refusal is a JSON-RPC error in dialect canonical, under
// the status of the table.
func TestEveryRowOnRPC(t *testing.T) {
	d := open(t, nil)
	for _, row := range wire.Rows() {
		t.Run(string(row.Code), func(t *testing.T) {
			got := d.rpc("alice", fmt.Sprintf(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":%q}}`, row.Kernel))
			if got.status != row.HTTP {
				t.Fatalf("status %d, want %d: %s", got.status, row.HTTP, got.body)
			}
			events := d.told()
			last := events[len(events)-1]
			switch row.Code {
			case wire.Cancelled:
				if got.body != "" || last.Status != wire.StatusCancelled {
					t.Errorf("a cancelled call was answered: %q, event %s", got.body, last.Status)
				}
				return
			case wire.Unauthenticated:
				if got.head.Get("Content-Type") != "application/problem+json" || got.head.Get("WWW-Authenticate") == "" {
					t.Errorf("the transport does not say it itself: %v", got.head)
				}
			default:
				if got.text("/id") != "a" || got.text("/error/code") != strconv.Itoa(row.RPC.Canonical) || got.text("/error/data/code") != string(row.Code) {
					t.Errorf("error %s, want %d %s", got.body, row.RPC.Canonical, row.Code)
				}
				if row.Exact && got.text("/error/message") != row.Message {
					t.Errorf("message %q, want %q", got.text("/error/message"), row.Message)
				}
			}
			if last.Status != wire.StatusError || last.DecisionID != "dec_1" || last.Error == nil || last.RequestID != "a" || last.Method != "tools/call" {
				t.Errorf("event %+v", last)
			}
		})
	}
}

// TestEnvelopes: what profile strict takes, whatever the configuration says,
// and what is recorded of what it refuses.
func TestEnvelopes(t *testing.T) {
	const uuid = `"0198c0de-0000-7000-8000-000000000001"`
	for _, tt := range []struct {
		name, body    string
		status        int
		code          string // of the error, "" for none
		records       int
		event         string
		deterministic bool
	}{
		{name: "ping", body: `{"jsonrpc":"2.0","id":"1","method":"ping","params":{}}`, status: 200, event: wire.StatusOK},
		{name: "an unknown member", body: `{"jsonrpc":"2.0","id":"1","method":"ping","params":{},"extra":1}`, status: 200, event: wire.StatusOK},
		{name: "list", body: `{"jsonrpc":"2.0","id":"1","method":"tools/list","params":{}}`, status: 200, event: wire.StatusOK},
		{name: "call", body: `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__echo","arguments":{}}}`, status: 200, event: wire.StatusOK, records: 1},
		{name: "held", body: `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__held"}}`, status: 200, event: wire.StatusOK, records: 1},
		{name: "notification", body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`, status: 202, event: wire.StatusAccepted},
		{name: "notification without params", body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, status: 202, event: wire.StatusAccepted},
		{name: "an answer to nothing", body: `{"jsonrpc":"2.0","id":"1","result":{}}`, status: 202, event: wire.StatusAccepted},
		{name: "UUID", body: `{"jsonrpc":"2.0","id":` + uuid + `,"method":"ping","params":{}}`, status: 200, event: wire.StatusOK, deterministic: true},
		{name: "no UUID", body: `{"jsonrpc":"2.0","id":"1","method":"ping","params":{}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1, deterministic: true},
		{name: "a number for an id", body: `{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "no params", body: `{"jsonrpc":"2.0","id":"1","method":"ping"}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "params in a list", body: `{"jsonrpc":"2.0","id":"1","method":"ping","params":[]}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "no method", body: `{"jsonrpc":"2.0","id":"1","method":"","params":{}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "no version", body: `{"id":"1","method":"ping","params":{}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "batch", body: `[{"jsonrpc":"2.0","id":"1","method":"ping","params":{}}]`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "two readings", body: `{"jsonrpc":"2.0","id":"1","method":"ping","method":"tools/list","params":{}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "no JSON", body: `{"jsonrpc"`, status: 400, code: "PARSE_ERROR", event: wire.StatusError, records: 1},
		{name: "too many bytes", body: `{"jsonrpc":"2.0","id":"1","method":"ping","params":{"a":"` + strings.Repeat("x", 5000) + `"}}`, status: 413, code: "TOO_LARGE", event: wire.StatusError, records: 1},
		{name: "sessions", body: `{"jsonrpc":"2.0","id":"1","method":"initialize","params":{}}`, status: 404, code: "METHOD_NOT_FOUND", event: wire.StatusError, records: 1},
		{name: "another method", body: `{"jsonrpc":"2.0","id":"1","method":"Tools/Call","params":{"name":"demo__echo"}}`, status: 404, code: "METHOD_NOT_FOUND", event: wire.StatusError, records: 1},
		{name: "a call that lost its id", body: `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"demo__echo"}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "a cursor", body: `{"jsonrpc":"2.0","id":"1","method":"tools/list","params":{"cursor":"x"}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
		{name: "unknown tool", body: `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"demo__secret"}}`, status: 404, code: "TOOL_NOT_FOUND", event: wire.StatusError, records: 1},
		{name: "no name", body: `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{}}`, status: 400, code: "INVALID_ENVELOPE", event: wire.StatusError, records: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, func(_ *gate, o *rest.Options) {
				o.Envelope = wire.Envelope{Profile: wire.ProfileMCP, Deterministic: tt.deterministic}
				o.Envelope.Limits.Bytes = 4096
			})
			got := d.rpc("alice", tt.body)
			if got.status != tt.status || got.text("/error/data/code") != tt.code {
				t.Errorf("status %d %s, want %d %s: %s", got.status, got.text("/error/data/code"), tt.status, tt.code, got.body)
			}
			if tt.status == 202 && got.body != "" {
				t.Errorf("a notification was answered: %s", got.body)
			}
			if n, _ := d.records(); n != tt.records {
				t.Errorf("%d records, want %d", n, tt.records)
			}
			events := d.told()
			if len(events) != 1 || events[0].Status != tt.event || events[0].Transport != "http" || events[0].Route != "/v1/rpc" || events[0].Time.IsZero() || (events[0].Error != nil) != (tt.code != "") {
				t.Errorf("events %+v, want one %s", events, tt.event)
			}
			if again := d.rpc("alice", `{"jsonrpc":"2.0","id":`+uuid+`,"method":"ping","params":{}}`); again.status != 200 {
				t.Errorf("after it: status %d", again.status)
			}
		})
	}
}

// A refusal has the id of its envelope wherever that can be read.
func TestRefusedIDs(t *testing.T) {
	d := open(t, func(_ *gate, o *rest.Options) { o.Envelope.Limits.Bytes = 4096 })
	const head, tail = `{"method":"ping","params":{"a":`, `},"jsonrpc":"2.0","id":"a"}`
	for _, tt := range []struct{ name, body, id, code string }{
		{"too large", head + `"` + strings.Repeat("x", 5000) + `"` + tail, `"a"`, "TOO_LARGE"},
		{"too deep", head + strings.Repeat("[", 70) + strings.Repeat("]", 70) + tail, `"a"`, "INVALID_ENVELOPE"},
		{"a name twice", head + `{"b":1,"b":2}` + tail, `"a"`, "INVALID_ENVELOPE"},
		{"invalid UTF-8", head + "\"\xff\"" + tail, `"a"`, "PARSE_ERROR"},
		{"lone surrogate", head + `"\ud800"` + tail, `"a"`, "PARSE_ERROR"},
		{"no value", head + tail, `"a"`, "PARSE_ERROR"},
		{"params null", `{"method":"ping","params":null,"jsonrpc":"2.0","id":"a"}`, `"a"`, "INVALID_ENVELOPE"},
		{"two ids", `{"id":"b",` + (head + `1` + tail)[1:], "null", "INVALID_ENVELOPE"},
		{"batch", `[` + head + `1` + tail + `]`, "null", "INVALID_ENVELOPE"},
	} {
		if got := d.rpc("alice", tt.body); !strings.Contains(got.body, `"id":`+tt.id+`,`) || got.text("/error/data/code") != tt.code {
			t.Errorf("%s: %d %s, want id %q", tt.name, got.status, got.body, tt.id)
		}
	}
}

// TestRPCBytes: arguments are not touched, the answer has the id as it came,
// and the envelope's own trace is continued.
func TestRPCBytes(t *testing.T) {
	d := open(t, nil)
	const id, args = `"\u0041 <id>"`, `{ "b":9007199254740993,"a":1e2 }`
	got := d.rpc("alice", `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"demo__echo","arguments":`+args+
		`,"_meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}}`)
	if !strings.HasPrefix(got.body, `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[`) {
		t.Errorf("answer %s", got.body)
	}
	if diff := cmp.Diff([]string{args}, d.reached()); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	events := d.told()
	if _, last := d.records(); last.TraceID != "4bf92f3577b34da6a3ce929d0e0e4736" || events[0].TraceID != last.TraceID || events[0].DecisionID != last.DecisionID {
		t.Errorf("record of trace %q, event %+v", last.TraceID, events[0])
	}
}

// TestRPCList: the list is what the principal may see, definitions as they are.
func TestRPCList(t *testing.T) {
	const list = `{"jsonrpc":"2.0","id":"1","method":"tools/list","params":{}}`
	d := open(t, nil)
	if got := d.rpc("alice", list); strings.Contains(got.body, "demo__secret") || !strings.Contains(got.body, `{"name":"demo__echo","inputSchema":`+anyInput) {
		t.Errorf("alice sees %s", got.body)
	}
	if got := d.rpc("bob", list); !strings.Contains(got.body, "demo__secret") {
		t.Errorf("bob sees %s", got.body)
	}
}

// TestBrokenGateOnRPC fails closed.
func TestBrokenGateOnRPC(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"%s"}}`
	d := open(t, func(g *gate, _ *rest.Options) { g.silent = true })
	if got := d.rpc("alice", fmt.Sprintf(call, "demo__echo")); got.status != http.StatusInternalServerError || got.text("/error/code") != "-32603" {
		t.Errorf("a silent gate: status %d: %s", got.status, got.body)
	}
	e := open(t, nil)
	if got := e.rpc("alice", fmt.Sprintf(call, "T9_NOT_KNOWN")); got.status != 500 || strings.Contains(got.body, "planted") {
		t.Errorf("an unknown code: status %d: %s", got.status, got.body)
	}
}
