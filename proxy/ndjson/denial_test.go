package ndjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy/ndjson"
)

// invoke is an invoke line; id "" leaves the id out.
func invoke(id, action, input string) string {
	head := ""
	if id != "" {
		head = `"id":"` + id + `",`
	}
	return `{` + head + `"type":"invoke","payload":{"action":"demo__` + action + `","input":` + input + `}}`
}

const list = `{"id":"after","type":"list_actions"}`

// What must not pass: the answer, the one record that it leaves, and that
// nothing reached the upstream. The connection goes on.
func TestDenials(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       string // of the answer: the beginning
		record     string
	}{
		{"no json", `hello`, `{"ok":false,"error":"Malformed JSON request"}`, "invalid receive"},
		{"two values", invoke("a", "text", `{}`) + ` ` + invoke("b", "text", `{}`), `{"id":"a","ok":false,"error":"Malformed JSON request"}`, "invalid receive"},
		{"batch", `[` + invoke("a", "text", `{}`) + `]`, `{"ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"JSON-RPC", `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"demo__text"}}`, `{"id":"a","ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"type in capitals", strings.Replace(invoke("a", "text", `{}`), "invoke", "Invoke", 1), `{"id":"a","ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"two actions", `{"id":"a","type":"invoke","payload":{"action":"demo__text","action":"demo__denied"}}`, `{"id":"a","ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"two ids", `{"id":"a","id":"b","type":"invoke","payload":{"action":"demo__text"}}`, `{"ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"id is a number", `{"id":1,"type":"invoke","payload":{"action":"demo__text"}}`, `{"ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"argument twice", invoke("a", "text", `{"x":1,"\u0078":2}`), `{"id":"a","ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"argument in two cases", invoke("a", "text", `{"x":1,"X":2}`), `{"id":"a","ok":false,"error":"Invalid request envelope"`, "invalid resolve"},
		{"no action", `{"id":"a","type":"invoke","payload":{}}`, `{"id":"a","ok":false,"error":"Invalid invoke payload"`, "invalid receive"},
		{"input is no object", invoke("a", "text", `[]`), `{"id":"a","ok":false,"error":"Invalid invoke payload"`, "invalid receive"},
		{"unknown", invoke("a", "nothing", `{}`), `{"id":"a","ok":false,"error":"Unknown action: 'demo__nothing'"}`, "unknown resolve"},
		{"hidden", invoke("a", "hidden", `{}`), `{"id":"a","ok":false,"error":"Unknown action: 'demo__hidden'"}`, "unknown resolve"},
		{"by the upstream's name", `{"id":"a","type":"invoke","payload":{"action":"text"}}`, `{"id":"a","ok":false,"error":"Unknown action: 'text'"}`, "unknown resolve"},
		{"denied", invoke("a", "denied", `{}`), `{"id":"a","ok":false,"error":"POLICY_DENIED: observers`, "denied decide"},
		{"limited", invoke("a", "limited", `{}`), `{"id":"a","ok":false,"error":"RATE_LIMITED: `, "limited limit"},
		{"input against its schema", invoke("a", "text", `{"n":"x"}`), `{"id":"a","ok":false,"error":"Input validation failed for action 'demo__text': /n: `, "invalid validate"},
		{"held", invoke("a", "held", `{}`), `{"id":"a","ok":false,"error":"APPROVAL_PENDING: `, "held close"},
		{"invalid UTF-8", `{"type":"invoke","payload":{"action":"demo__text","input":{"s":"` + "\xff" + `"}},"id":"a"}`, `{"id":"a","ok":false,"error":"Malformed JSON request"}`, "invalid receive"},
		{"too deep", `{"type":"invoke","payload":{"action":"demo__text","input":{"s":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}},"id":"a"}`, `{"id":"a","ok":false,"error":"Invalid request envelope"`, "invalid receive"},
		{"too large, id last", `{"type":"invoke","payload":{"action":"demo__text","input":{"s":"` + strings.Repeat("x", 512<<10) + `"}},"id":"a"}`, `{"id":"a","ok":false,"error":"Request exceeds maximum size (512 KB)"}`, "invalid receive"},
		{"too large, id a number", `{"id":1,"type":"` + strings.Repeat("x", 512<<10) + `"}`, `{"ok":false,"error":"Request exceeds maximum size (512 KB)"}`, "invalid receive"},
		{"too large", invoke("a", "text", `{"s":"`+strings.Repeat("x", 512<<10)+`"}`), `{"id":"a","ok":false,"error":"Request exceeds maximum size (512 KB)"}`, "invalid receive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench()
			c := dial(t, b.door(t, nil))
			if got := c.Ask(tt.line); !strings.HasPrefix(got, tt.want) {
				t.Errorf("answer %s\nwant   %s", got, tt.want)
			}
			if got := b.calls(); len(got) > 0 {
				t.Errorf("reached the upstream: %q", got)
			}
			if diff := cmp.Diff([]string{tt.record}, b.outcomes()); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
			if got := c.Ask(list); !strings.HasPrefix(got, `{"id":"after","ok":true`) {
				t.Errorf("the connection does not go on: %s", got)
			}
		})
	}
}

// The largest line that the protocol allows comes to the tool.
func TestLargestLine(t *testing.T) {
	b := newBench()
	c := dial(t, b.door(t, nil))
	line := invoke("a", "text", `{"s":"`+strings.Repeat("x", 512<<10-len(invoke("a", "text", `{"s":""}`)))+`"}`)
	if got := c.Ask(line); len(line) != 524288 || !strings.HasPrefix(got, `{"id":"a","ok":true`) {
		t.Errorf("a line of %d bytes: %.100s", len(line), got)
	}
	if got := c.Ask(strings.Replace(line, "x", "xx", 1)); got != `{"id":"a","ok":false,"error":"Request exceeds maximum size (512 KB)"}` {
		t.Errorf("one byte more: %.100s", got)
	}
}

// What nobody is told: each line is judged, an invoke leaves a record, anything
// else of an unauthenticated caller leaves none.
func TestStrangers(t *testing.T) {
	b := newBench()
	c := dial(t, b.door(t, func(o *ndjson.Options) { o.Credential = identity.Credential{Bearer: "bad"} }))
	for _, line := range []string{list, `hello`, invoke("a", "text", `{}`)} {
		got := c.Ask(line)
		if !strings.Contains(got, `"error":"UNAUTHENTICATED: `) || strings.Contains(got, "demo__") {
			t.Errorf("%s: %s", line, got)
		}
	}
	if diff := cmp.Diff([]string{"denied receive"}, b.outcomes()); diff != "" || len(b.calls()) > 0 {
		t.Errorf("calls %q, records (-want +got):\n%s", b.calls(), diff)
	}
	friend := newBench()
	c = dial(t, friend.door(t, func(o *ndjson.Options) { o.Credential = identity.Credential{Bearer: "good"} }))
	if got := c.Ask(list); !strings.Contains(got, `"ok":true`) {
		t.Errorf("a good token: %s", got)
	}
}

// INTERNAL_ERROR tells ids and nothing else; an outcome that cannot be
// recorded withholds the output.
func TestFailuresOfOurOwn(t *testing.T) {
	b := newBench()
	b.noAudit = true
	c := dial(t, b.door(t, nil))
	if got := c.Ask(invoke("a", "structured", `{}`)); !strings.HasPrefix(got, `{"id":"a","ok":false,"error":"AUDIT_UNAVAILABLE: `) || strings.Contains(got, "9007199254740993") {
		t.Errorf("got %s", got)
	}
	b = newBench()
	b.tools = nil
	c = dial(t, b.door(t, nil))
	got := ids.ReplaceAllString(c.Ask(invoke("a", "text", `{}`)), "${1}_*")
	want := `{"id":"a","ok":false,"error":"INTERNAL_ERROR: the gateway failed; its log has the cause under decision dec_*, trace trc_*",` +
		`"issues":[{"code":"INTERNAL_ERROR","message":"the gateway failed; its log has the cause under decision dec_*, trace trc_*","path":[],"decision_id":"dec_*"}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The judged bytes are the bytes that were sent.
func TestInputBytes(t *testing.T) {
	for _, input := range []string{
		`{"b":9007199254740993,"a":1e2}`, `{ "s" : "\u0041<>&\u2028" }`, `{"π":"😀 "}`, `{"n":1,"deep":{"x":[1, 2 ,3]}}`,
	} {
		b := newBench()
		dial(t, b.door(t, nil)).Ask(invoke("a", "text", input))
		if diff := cmp.Diff([]string{"text " + input}, b.calls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	}
}

// FuzzServe: whatever is written, each line that comes back is one response,
// there is one for each line that is not empty, and no more calls than lines.
func FuzzServe(f *testing.F) {
	for _, seed := range []string{
		list + "\n" + invoke("a", "text", `{}`), invoke("a", "text", `{"a":1,"A":2}`) + "\n" + invoke("a", "denied", `{}`) + "\n\n{", "[]\r\n\x00\n" + invoke("", "held", `{}`),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if strings.Contains(string(input), "wait") {
			return
		}
		b := newBench()
		var out strings.Builder
		if err := b.door(t, nil).Serve(t.Context(), strings.NewReader(string(input)), &out); err != nil {
			t.Fatal(err)
		}
		var want, got int
		for line := range strings.Lines(string(input)) {
			if strings.TrimSpace(line) != "" {
				want++
			}
		}
		for line := range strings.Lines(out.String()) {
			var r map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &r); err != nil || string(r["ok"]) != "true" && string(r["ok"]) != "false" {
				t.Errorf("no response: %q (%v)", line, err)
			}
			got++
		}
		if got != want && len(input) < 1<<16 {
			t.Errorf("%d responses to %d lines", got, want)
		}
		if n := len(b.calls()); n > want {
			t.Errorf("%d lines made %d calls", want, n)
		}
	})
}
