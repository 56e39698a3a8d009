package peers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/signal"
)

// bytesPolicy hides one tool, and denies and holds by argument. It has no else, so
// that toolgate finds without arguments that tool never is always denied.
const bytesPolicy = `
decision := {"effect": "deny", "rule": "asked-for"} if {
	input.tool.name != "never"
	input.arguments.deny == true
}

decision := {"effect": "hold", "rule": "asked-for", "approval": {"roles": ["approver"]}} if {
	input.tool.name != "never"
	input.arguments.hold == true
	not input.arguments.deny
}

decision := {"effect": "allow", "rule": "peers"} if {
	input.tool.name != "never"
	not input.arguments.deny
	not input.arguments.hold
}`

// acceptedArguments are unusual arguments with exactly one reading. They arrive
// unchanged.
var acceptedArguments = []struct{ name, args string }{
	{"nothing", `{}`},
	{"big integers", `{"a":9007199254740993,"b":-9223372036854775809,"c":123456789012345678901234567890}`},
	{"spellings of a number", `{"a":1e2,"b":1E+2,"c":100,"d":100.0,"e":1.00e2,"f":-0,"g":0.1e-7}`},
	{"digits", `{"a":3.141592653589793238462643383279502884197,"b":0.1}`},
	{"order of keys", `{"z":1,"a":2,"m":{"z":1,"a":2},"":3,"10":4,"9":5}`},
	{"escapes", `{"a":"\u0041\u00e9\/\"\\\b\f\n\r\t","b":"\u003c\u003e\u0026","\u0063":"\u2028"}`},
	{"unicode", `{"é":"日本語 😀 \ud83d\ude00","e\u0301":"<&>","rtl":"` + "\u202e" + `abc"}`},
	{"white space", `{ "a"  : [ 1 , 2 ] }`},
	{"names that differ by more than case", `{"amount":1,"amounts":2,"amount ":3}`},
	{"names of the envelope", `{"name":"x","arguments":{"name":"y"},"method":"tools/list","id":9,"jsonrpc":"1.0","__proto__":{"a":1}}`},
	{"depth within the limit", `{"a":` + strings.Repeat("[", 55) + strings.Repeat("]", 55) + `}`},
	{"a megabyte", `{"a":"` + strings.Repeat("x", 1<<20) + `"}`},
}

// refusedMessage is a message that no server may receive.
type refusedMessage struct {
	name    string
	message string // %s is the prefix of the tools' names
	code    int    // JSON-RPC code of the answer, 0 for a result with isError
	http    bool   // over HTTP only: it is not a single line
}

// envelope returns a tools/call message for a tool and arguments.
func envelope(tool, args string) string {
	return `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"%s__` + tool + `","arguments":` + args + `}}`
}

var refusedMessages = []refusedMessage{
	{name: "a key twice", message: envelope("echo", `{"a":1,"a":1}`), code: -32600},
	{name: "a key twice, spelled in two ways", message: envelope("echo", `{"a":1,"\u0061":2}`), code: -32600},
	{name: "a key twice, deep down", message: envelope("echo", `{"x":[{"a":1,"b":2,"a":3}]}`), code: -32600},
	{name: "keys that differ by case", message: envelope("echo", `{"amount":1,"Amount":100}`), code: -32600},
	{name: "keys that fold alike", message: envelope("echo", `{"k":1,"K":100}`), code: -32600},
	{name: "two names", message: `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"%[1]s__echo","name":"%[1]s__typed","arguments":{}}}`, code: -32600},
	{name: "two names that differ by case", message: `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"%[1]s__echo","Name":"%[1]s__typed","arguments":{}}}`, code: -32600},
	{name: "two methods", message: `{"jsonrpc":"2.0","id":3,"method":"ping","Method":"tools/call","params":{"name":"%[1]s__echo","arguments":{}}}`, code: -32600},
	{name: "two ids", message: `{"jsonrpc":"2.0","id":3,"id":4,"method":"tools/call","params":{"name":"%[1]s__echo","arguments":{}}}`, code: -32600},
	{name: "two values", message: envelope("echo", `{}`) + ` {}`, code: -32700},
	{name: "two messages", message: envelope("echo", `{}`) + strings.ReplaceAll(envelope("echo", `{}`), "%s", "%[1]s"), code: -32700},
	{name: "two messages on two lines", message: envelope("echo", `{}`) + "\n" + strings.ReplaceAll(envelope("echo", `{}`), "%s", "%[1]s"), code: -32700, http: true},
	{name: "a batch", message: `[` + envelope("echo", `{}`) + `]`, code: -32600},
	{name: "invalid UTF-8 in a value", message: envelope("echo", "{\"a\":\"\xff\"}"), code: -32700},
	{name: "invalid UTF-8 in a name", message: envelope("echo", "{\"\xc0\xaf\":1}"), code: -32700},
	{name: "half a character", message: envelope("echo", `{"a":"\ud83d"}`), code: -32700},
	{name: "depth beyond the limit", message: envelope("echo", `{"a":`+strings.Repeat("[", 70)+strings.Repeat("]", 70)+`}`), code: -32600},
	{name: "size beyond the limit", message: envelope("echo", `{"a":"`+strings.Repeat("x", 4<<20)+`"}`), code: -32600},
	{name: "a number that is too large", message: envelope("echo", `{"a":1e999}`), code: -32600},
	{name: "no JSON", message: `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"%s__echo","arguments":{'a':1}}}`, code: -32700},
	{name: "NaN", message: envelope("echo", `{"a":NaN}`), code: -32700},
	{name: "a comma too many", message: envelope("echo", `{"a":1,}`), code: -32700},
	{name: "arguments that are no object", message: envelope("echo", `[1]`), code: -32600},
	{name: "a call without an id", message: `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"%s__echo","arguments":{}}}`, code: -32600},
	{name: "an id that is no id", message: `{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"%s__echo","arguments":{}}}`, code: -32600},
	{name: "an unknown method", message: `{"jsonrpc":"2.0","id":3,"method":"tools/Call","params":{"name":"%s__echo","arguments":{}}}`, code: -32601},
	{name: "an unknown tool", message: envelope("nothing", `{}`), code: -32601},
	{name: "a tool in other letters", message: envelope("Echo", `{}`), code: -32601},
	{name: "a tool that is hidden", message: envelope("never", `{}`), code: -32601},
	{name: "a definition that cannot be checked", message: envelope("broken", `{}`), code: -32600},
	{name: "denied", message: envelope("echo", `{"deny":true}`), code: -32600},
	{name: "held", message: envelope("echo", `{"hold":true}`)},
	{name: "beyond the limit", message: envelope("limited", `{}`), code: -32001},
	{name: "another type than the schema's", message: envelope("typed", `{"n":"1"}`), code: -32600},
	{name: "an argument that is missing", message: envelope("typed", `{}`), code: -32600},
	{name: "an argument too many", message: envelope("typed", `{"n":1,"m":1}`), code: -32600},
}

// TestJudgedBytes: the judged bytes arrive unchanged at the server, over HTTP and
// stdio on both sides and at both revisions of the client, and a refused message reaches
// no server.
func TestJudgedBytes(t *testing.T) {
	t.Parallel()
	offered := recorder.Config{Tools: []recorder.Tool{
		{Name: "echo"}, {Name: "never"}, {Name: "limited"},
		{Name: "typed", Definition: json.RawMessage(`{"name":"typed","inputSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}}`)},
		{Name: "broken", Definition: json.RawMessage(`{"name":"broken","inputSchema":{"type":"object","properties":{"n":{"$ref":"https://elsewhere.example/n"}}}}`)},
	}}
	recorders := map[string]*recorder.Recorder{"http": recorder.HTTP(t, offered), "stdio": recorder.Stdio(t, offered)}
	dir := configure(t, setup{
		policy: bytesPolicy,
		limits: `{"default": "100000/1m", "refused": "off", "rules": [{"tool": "http__limited", "rate": "1/1h"}, {"tool": "stdio__limited", "rate": "1/1h"}]}`,
		servers: []server{
			httpOf("http", recorders["http"], shared()), stdioOf("stdio", recorders["stdio"], shared()),
		},
	})
	g := serveReady(t, dir)
	pipe := openStdio(t, dir)
	stateless := rawStateless{startStdio(t, dir)}
	for _, client := range []rawClient{pipe, stateless} {
		awaitTools(t, client, 6) // of five tools per server one is hidden and one quarantined
		for transport := range recorders {
			mustCall(t, client, transport+"__echo", `{}`) // its connections are open then
		}
	}
	http := openHTTP(t, g.Agents+"/mcp", agentToken)
	for transport := range recorders { // the one call that the limit allows in each process
		for _, client := range []rawClient{http, pipe, stateless} {
			mustCall(t, client, transport+"__limited", `{}`)
		}
	}
	for door, d := range map[string]rawClient{
		"HTTP": http, "HTTP, stateless": rawStateless{&rawHTTP{url: http.url, token: agentToken}}, "stdio": pipe, "stdio, stateless": stateless,
	} {
		for transport, rec := range recorders {
			t.Run(door+" to "+transport, func(t *testing.T) {
				b := byteCheck{door: d, prefix: transport, rec: rec, all: recorders}
				for _, tc := range acceptedArguments {
					t.Run(tc.name, func(t *testing.T) { b.wantArrives(t, tc.args, tc.args) })
				}
				if strings.HasPrefix(door, "HTTP") {
					// Line ends between tokens become spaces; a tab stays.
					t.Run("line ends", func(t *testing.T) { b.wantArrives(t, "{\r\n\t\"a\": [\n1\n]\r\n}", "{  \t\"a\": [ 1 ]  }") })
				}
				for _, tc := range refusedMessages {
					if !tc.http || strings.HasPrefix(door, "HTTP") {
						t.Run(tc.name, func(t *testing.T) { b.wantRefused(t, tc) })
					}
				}
				b.wantArrives(t, `{"last":true}`, `{"last":true}`)
			})
		}
	}
}

// byteCheck is one client with one recorder.
type byteCheck struct {
	door   rawClient
	prefix string
	rec    *recorder.Recorder
	all    map[string]*recorder.Recorder
}

// received returns the number of messages that all recorders have received.
func (b byteCheck) received() (n int) {
	for _, rec := range b.all {
		n += len(rec.Messages())
	}
	return n
}

// wantArrives makes a call and checks its arguments at the server and in the echo.
func (b byteCheck) wantArrives(t *testing.T, args, want string) {
	t.Helper()
	before := b.received()
	result := mustCall(t, b.door, b.prefix+"__echo", args)
	if got := b.received() - before; got != 1 {
		t.Errorf("the servers received %d messages, want 1", got)
	}
	messages := b.rec.Messages()
	last := messages[len(messages)-1]
	tool, _ := jsonrpc.At(last, "params", "name")
	if arguments, _ := jsonrpc.At(last, "params", "arguments"); string(tool) != `"echo"` || string(arguments) != want {
		t.Errorf("%s received %s, want echo with %s", tool, clip(arguments), clip([]byte(want)))
	}
	if !bytes.Contains(last, []byte(`"arguments":`+want)) {
		t.Errorf("the message was %s", clip(last))
	}
	if !bytes.Contains(result, []byte(`"structuredContent":`+want)) {
		t.Errorf("the echo was %s", clip(result))
	}
}

// wantRefused sends a message that must be refused, and checks that no server
// receives anything.
func (b byteCheck) wantRefused(t *testing.T, tc refusedMessage) {
	t.Helper()
	before := b.received()
	message := strings.ReplaceAll(strings.ReplaceAll(tc.message, "%[1]s", b.prefix), "%s", b.prefix)
	answer := b.door.exchange(t, []byte(message))
	result, failure := splitAnswer(answer)
	switch {
	case tc.code == 0 && (failure != nil || !bytes.Contains(result, []byte(`"isError":true`))):
		t.Errorf("got %s, want a result with isError", answer)
	case tc.code != 0 && failure == nil:
		t.Errorf("got %s, want %d", answer, tc.code)
	case tc.code != 0:
		if r := readRefusal(t, failure); r.Code != tc.code || r.Data.Code == "" {
			t.Errorf("got %s, want %d", failure, tc.code)
		}
	}
	if got := b.received() - before; got != 0 {
		t.Errorf("the servers received %d messages", got)
	}
}

func clip(text []byte) string {
	if len(text) > 200 {
		return fmt.Sprintf("%s… (%d bytes)", text[:200], len(text))
	}
	return string(text)
}

// TestCancel: a cancellation reaches the server with the ID of the call at that
// server, the caller gets no answer to the call, and the trail records it.
func TestCancel(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	offered := recorder.Config{Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}}}
	recorders := map[string]*recorder.Recorder{"http": recorder.HTTP(t, offered), "stdio": recorder.Stdio(t, offered)}
	dir := configure(t, setup{servers: []server{
		httpOf("http", recorders["http"], shared()), stdioOf("stdio", recorders["stdio"], shared()),
	}})
	g := serveReady(t, dir)
	pipe := openStdio(t, dir)
	awaitTools(t, pipe, len(recorders))
	agents := openHTTP(t, g.Agents+"/mcp", agentToken)
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
	for transport, rec := range recorders {
		t.Run("HTTP to "+transport, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), timeout)
			defer stop()
			ended := make(chan []byte, 1)
			own := *agents
			go func() {
				text, err := own.tryExchange(ctx, callMessage("7", transport+"__hang", `{}`))
				ended <- append(text, fmt.Sprint(err)...)
			}()
			program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 1 })
			agents.exchange(t, []byte(cancel))
			wantCancelled(t, rec, 1)
			if got := string(<-ended); got != "<nil>" {
				t.Errorf("the cancelled call was answered: %s", got)
			}
		})
		t.Run("stdio to "+transport, func(t *testing.T) {
			pipe.send(t, callMessage("7", transport+"__hang", `{}`))
			program.Await(t, "the call runs", func() bool { return len(rec.Calls()) == 2 })
			pipe.send(t, []byte(cancel))
			wantCancelled(t, rec, 2)
			if got := pipe.exchange(t, []byte(`{"jsonrpc":"2.0","id":"after","method":"ping"}`)); !bytes.Contains(got, []byte(`"after"`)) {
				t.Errorf("the cancelled call was answered: %s", got)
			}
		})
	}
	program.Await(t, "the trail has every cancelled call", func() bool { return cancelledIn(t, dir) == 2*len(recorders) })
}

// cancelledIn returns the number of calls that a trail records as cancelled.
func cancelledIn(t testing.TB, dir string) (n int) {
	t.Helper()
	out, _ := runCommand(t, dir, "audit", "tail", "-n", "1000", "-o", "json")
	for line := range strings.Lines(out) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err == nil && r.Code == signal.CodeCancelled && r.Tool == "hang" {
			n++
		}
	}
	return n
}

// wantCancelled waits until a recorder has n cancellations, and checks that the last
// one names its last call.
func wantCancelled(t *testing.T, rec *recorder.Recorder, n int) {
	t.Helper()
	var cancelled [][]byte
	program.Await(t, "the cancellation arrives", func() bool {
		cancelled = nil
		for _, m := range rec.Messages() {
			if method, _ := jsonrpc.Get(m, "method"); string(method) == `"notifications/cancelled"` {
				cancelled = append(cancelled, m)
			}
		}
		return len(cancelled) == n
	})
	calls := rec.Calls()
	id, _ := jsonrpc.Get(calls[len(calls)-1].Raw, "id")
	params, _ := jsonrpc.Get(cancelled[n-1], "params")
	if got, _ := jsonrpc.Get(params, "requestId"); string(got) != string(id) {
		t.Errorf("cancelled %s, the call is %s", got, id)
	}
}
