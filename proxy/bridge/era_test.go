package bridge_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// head picks the headers of the protocol.
func (s seen) headers() map[string]string {
	out := map[string]string{}
	for name, values := range s.head {
		if strings.HasPrefix(name, "Mcp-") || slices.Contains([]string{"Accept", "Content-Type", "Authorization", "Last-Event-Id"}, name) {
			out[name] = strings.Join(values, "|")
		}
	}
	return out
}

func TestASessionIsShownOnEveryLaterRequest(t *testing.T) {
	e := misbehave(t, nil)
	c := connect(t, e.URL, nil).open()
	c.Ask(call("1", "x"))
	c.Send(`{"jsonrpc":"2.0","id":"q","result":{}}`)
	e.await(http.MethodGet, "") // the stream of its own is opened beside the talk
	if _, err := c.End(); err != nil {
		t.Errorf("ending: %v", err)
	}
	const both, auth = "application/json, text/event-stream", "Bearer " + secret
	post := map[string]string{"Accept": both, "Content-Type": "application/json", "Authorization": auth}
	in := map[string]string{"Accept": both, "Content-Type": "application/json", "Authorization": auth, "Mcp-Session-Id": "s1", "Mcp-Protocol-Version": "2025-06-18"}
	want := map[string]map[string]string{
		"POST initialize": post, "POST notifications/initialized": in, "POST tools/call": in, "POST ": in,
		"GET ":    {"Accept": "text/event-stream", "Authorization": auth, "Mcp-Session-Id": "s1", "Mcp-Protocol-Version": "2025-06-18"},
		"DELETE ": {"Authorization": auth, "Mcp-Session-Id": "s1", "Mcp-Protocol-Version": "2025-06-18"},
	}
	got := map[string]map[string]string{}
	for _, s := range e.requests() {
		got[s.verb+" "+s.method] = s.headers()
		if s.path != "/mcp" {
			t.Errorf("%s %s went to %s", s.verb, s.method, s.path)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if last := e.last(); last.verb != http.MethodDelete {
		t.Errorf("the last request is %s %s", last.verb, last.method)
	}
}

// A client of 2026-07-28 has no session, even beside one.
func TestTheEraWithoutSessions(t *testing.T) {
	e := misbehave(t, nil)
	c := connect(t, e.URL, nil)
	for _, around := range []string{"before a session", "in a session"} {
		for _, test := range []struct{ method, params, name string }{
			{"server/discover", modernMeta, ""},
			{"tools/list", modernMeta, ""},
			{"tools/call", `"name":"demo__echo","arguments":{"name":"other"},` + modernMeta, "demo__echo"},
			{"prompts/get", `"name":"Grüße","uri":"x",` + modernMeta, "=?base64?R3LDvMOfZQ==?="},
			{"resources/read", `"name":"x","uri":"file:///a b",` + modernMeta, "file:///a b"},
			{"resources/read", `"uri":" padded",` + modernMeta, "=?base64?IHBhZGRlZA==?="},
			{"resources/read", `"uri":"two\r\nEvil: lines",` + modernMeta, "=?base64?dHdvDQpFdmlsOiBsaW5lcw==?="},
			{"tools/call", `"name":"=?base64?literal?=",` + modernMeta, "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="},
			{"tasks/get", `"taskId":"t-1",` + modernMeta, "t-1"},
			{"completion/complete", `"name":"x",` + modernMeta, ""},
		} {
			c.Ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, test.method, test.params))
			got := e.await(http.MethodPost, test.method).headers()
			want := map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json",
				"Authorization": "Bearer " + secret, "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": test.method}
			if test.name != "" {
				want["Mcp-Name"] = test.name
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s {%s} (-want +got):\n%s", around, test.method, test.params, diff)
			}
		}
		if around == "before a session" && e.count(http.MethodGet, "") > 0 {
			t.Error("a GET stream was opened")
		}
		c.open()
	}
}

// What no header can carry stays away, and never becomes another header.
func TestAHeaderThatCannotBe(t *testing.T) {
	e := misbehave(t, nil)
	c := connect(t, e.URL, nil)
	c.Ask(`{"jsonrpc":"2.0","id":1,"method":"a\r\nEvil: b","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"1\r\nEvil: 2"}}}`)
	got := e.await(http.MethodPost, "a\r\nEvil: b")
	if h := got.headers(); h["Mcp-Method"] != "" || h["Mcp-Protocol-Version"] != "" || got.head.Get("Evil") != "" {
		t.Errorf("headers: %v", got.head)
	}
}

// What a tool's schema wants in headers is learnt from its list.
func TestArgumentsInHeaders(t *testing.T) {
	const schema = `{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},
		"yes":{"type":"boolean","x-mcp-header":"Yes"},
		"real":{"type":"number","x-mcp-header":"Real"},
		"bad":{"type":"string","x-mcp-header":"a b"},
		"list":{"type":"array","items":{"type":"object","properties":{"in":{"type":"string","x-mcp-header":"In"}}}},
		"free":{"type":"string"}}}`
	e := misbehave(t, map[string]handler{"tools/list": func(w http.ResponseWriter, _ *http.Request, _ int) {
		answerJSON(w, []byte("1"), `{"tools":[{"name":"t","inputSchema":`+schema+`},{"name":"plain"},7]}`)
	}})
	c := connect(t, e.URL, nil)
	params := func(tool, args string) map[string]string {
		c.Ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `,` + modernMeta + `}}`)
		out := map[string]string{}
		for name, value := range e.await(http.MethodPost, "tools/call").headers() {
			if rest, ok := strings.CutPrefix(name, "Mcp-Param-"); ok {
				out[rest] = value
			}
		}
		return out
	}
	const args = `{"region":"us-west1","deep":{"n":42.0},"yes":true,"real":1.5,"bad":"x","list":[{"in":"y"}],"free":"z"}`
	if got := params("t", args); len(got) > 0 {
		t.Errorf("before the list: %v", got)
	}
	c.Ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modernMeta + `}}`)
	for _, test := range []struct {
		tool, args string
		want       map[string]string
	}{
		{"t", args, map[string]string{"Region": "us-west1", "N": "42", "Yes": "true"}},
		{"t", `{"region":"Hello, 世界","deep":{"n":-7}}`, map[string]string{"Region": "=?base64?SGVsbG8sIOS4lueVjA==?=", "N": "-7"}},
		{"t", `{"region":null,"deep":{"n":9007199254740993},"yes":"false"}`, map[string]string{"N": "9007199254740993", "Yes": "false"}},
		{"t", `{"region":"","deep":{"n":1e22}}`, map[string]string{"Region": "=?base64??=", "N": "10000000000000000000000"}},
		{"t", `{"deep":1}`, map[string]string{}},
		{"plain", args, map[string]string{}},
	} {
		if diff := cmp.Diff(test.want, params(test.tool, test.args)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.tool, test.args, diff)
		}
	}
}

// In the era without sessions closing the exchange is what cancels a request;
// before it a message does.
func TestCancelling(t *testing.T) {
	hung := make(chan struct{}, 2)
	e := misbehave(t, map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, _ int) {
		begin(w, "data: "+note(1)+"\n\n")
		<-r.Context().Done()
		hung <- struct{}{}
	}})
	c := connect(t, e.URL, nil).open()
	c.Send(`{"jsonrpc":"2.0","id":"m","method":"tools/call","params":{"name":"x",` + modernMeta + `}}`)
	c.Receive()
	c.Ask(`{"jsonrpc":"2.0","id":"meanwhile","method":"ping"}`) // so that the bridge waits for more of the stream
	c.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"m"}}`)
	<-hung
	if n := e.count(http.MethodPost, "notifications/cancelled"); n > 0 {
		t.Errorf("%d messages cancelled what a closed exchange had", n)
	}
	c.Ask(call(`"m"`, "x")) // its id is free again
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"m","reason":"no"}}`
	c.Send(cancel)
	if got := e.await(http.MethodPost, "notifications/cancelled"); got.body != cancel || got.head.Get("Mcp-Session-Id") != "s1" {
		t.Errorf("cancelled by %s %v", got.body, got.head)
	}
	if got := c.Ask(`{"jsonrpc":"2.0","id":"after","method":"ping"}`); !strings.Contains(got, `"after"`) {
		t.Errorf("a cancelled request was answered: %s", got)
	}
	e.CloseClientConnections()
	if rest, err := c.End(); rest != "" || err != nil {
		t.Errorf("at the end: %q, %v", rest, err)
	}
}

// A subscription has no end of its own: it does not hold up the bridge's.
func TestASubscriptionEndsWithItsClient(t *testing.T) {
	gone := make(chan struct{})
	e := misbehave(t, map[string]handler{"subscriptions/listen": func(w http.ResponseWriter, r *http.Request, _ int) {
		begin(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
		<-r.Context().Done()
		close(gone)
	}})
	c := connect(t, e.URL, nil)
	if got := c.Ask(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{` + modernMeta + `}}`); !strings.Contains(got, "list_changed") {
		t.Errorf("heard: %s", got)
	}
	if rest, err := c.End(); rest != "" || err != nil {
		t.Errorf("at the end: %q, %v", rest, err)
	}
	<-gone
	if n := e.count(http.MethodDelete, ""); n > 0 {
		t.Errorf("%d sessions were ended", n)
	}
}

// Two initializes: the second begins a new session, and the first is ended.
func TestASecondSession(t *testing.T) {
	e := misbehave(t, nil)
	c := connect(t, e.URL, nil).open()
	c.Ask(strings.Replace(initialize, `"id":0`, `"id":1`, 1))
	if got := e.await(http.MethodDelete, "").head.Get("Mcp-Session-Id"); got != "s1" {
		t.Errorf("session %q was ended", got)
	}
	c.Ask(call("2", "x"))
	if got := e.await(http.MethodPost, "tools/call").head.Get("Mcp-Session-Id"); got != "s2" {
		t.Errorf("session %q was shown", got)
	}
}

// Bytes pass as they are, but for line ends, in both directions.
func TestBytesPass(t *testing.T) {
	const odd = `{"id" : "a\u0062",  "jsonrpc":"2.0","method":"x/y","params":{"big":9007199254740993,"e":1E+2,"t":"\u00e9é<&>","A":1,"b":[ ]}}`
	e := misbehave(t, map[string]handler{"x/y": func(w http.ResponseWriter, _ *http.Request, _ int) {
		begin(w, "data: {\"jsonrpc\":\"2.0\",\r\ndata:  \"id\" : \"ab\",\"result\":\rdata: {\"x\":1,\"X\":\"\u2028\",\"n\":1e400}, \"extra\":[1]}\n\n")
	}})
	c := connect(t, e.URL, nil)
	c.Send("  " + odd + "\r")
	if got, want := c.Receive(), "{\"jsonrpc\":\"2.0\",  \"id\" : \"ab\",\"result\": {\"x\":1,\"X\":\"\u2028\",\"n\":1e400}, \"extra\":[1]}"; got != want {
		t.Errorf("the client got  %s\nwant            %s", got, want)
	}
	if got := e.await(http.MethodPost, "x/y").body; got != odd {
		t.Errorf("the endpoint got %s\nwant             %s", got, odd)
	}
	if _, err := jsonrpc.Decode([]byte(odd), jsonrpc.Limits{}); err != nil {
		t.Fatal(err)
	}
}

// The one revision that has batches: a batch travels message by message.
func TestBatches(t *testing.T) {
	version := "2025-03-26"
	e := misbehave(t, map[string]handler{"initialize": func(w http.ResponseWriter, _ *http.Request, _ int) {
		answerJSON(w, []byte("0"), `{"protocolVersion":"`+version+`"}`)
	}})
	batch := `[ {"jsonrpc":"2.0","id":1,"method":"ping"}, {"jsonrpc":"2.0","method":"notifications/x"},7]`
	c := connect(t, e.URL, nil).open()
	c.Send(batch)
	got := []string{c.Receive(), c.Receive()}
	slices.Sort(got)
	c.failed(got[1], "null", "INVALID_ENVELOPE")
	if !strings.Contains(got[0], `"id":1,"result"`) {
		t.Errorf("answered with %s", got[0])
	}
	if got := e.await(http.MethodPost, "notifications/x").body; got != `{"jsonrpc":"2.0","method":"notifications/x"}` {
		t.Errorf("the endpoint got %s", got)
	}
	c.fails("[]", "null", "INVALID_ENVELOPE")
	version = "2025-06-18"
	c.open().fails(batch, "null", "INVALID_ENVELOPE")
}
