package mcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/wire"
)

// members are the messages of an array, sorted.
func members(t testing.TB, array string) []string {
	t.Helper()
	var all []json.RawMessage
	if err := json.Unmarshal([]byte(array), &all); err != nil {
		t.Fatalf("no array: %s", array)
	}
	var out []string
	for _, m := range all {
		out = append(out, string(m))
	}
	slices.Sort(out)
	return out
}

// recordIDs finds what differs between two refusals of one thing.
var recordIDs = regexp.MustCompile(`"(dec|trc)_\d+"`)

// batchWays send to a session of a revision that was opened by hello, and give the
// answers, sorted. A refusal of the whole is one answer.
var batchWays = map[string]func(t *testing.T, d *mcp.Door, hello string) func(message string, answers int) []string{
	"http": func(t *testing.T, d *mcp.Door, hello string) func(string, int) []string {
		session := record(d, "alice", "", hello).Header().Get("Mcp-Session-Id")
		return func(message string, answers int) []string {
			rec := record(d, "alice", session, message)
			switch body := rec.Body.String(); {
			case answers == 0:
				if rec.Code != http.StatusAccepted || body != "" {
					t.Errorf("status %d, want 202: %s", rec.Code, body)
				}
				return nil
			case strings.HasPrefix(body, "["):
				if rec.Code != http.StatusOK {
					t.Errorf("status %d, want 200", rec.Code)
				}
				return members(t, body)
			default:
				return []string{body}
			}
		}
	},
	"stdio": func(t *testing.T, d *mcp.Door, hello string) func(string, int) []string {
		c := dial(t, d)
		c.Ask(hello)
		return func(message string, answers int) []string {
			c.Send(message)
			if answers == 0 {
				return nil
			}
			line := c.Receive()
			if strings.HasPrefix(line, "[") {
				return members(t, line)
			}
			return []string{line}
		}
	},
}

func helloAs(version string) string { return strings.Replace(initialize, "2025-11-25", version, 1) }

// TestBatch: each message of a batch is judged on its own, and is told of as one.
func TestBatch(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"demo__%s","arguments":%s}}`
	for way, dialed := range batchWays {
		t.Run(way, func(t *testing.T) {
			g, seen := newGate(), &events{}
			send := dialed(t, newDoor(t, g, func(o *mcp.Options) { o.Observe = seen.observe }), helloAs("2025-03-26"))
			seen.take()
			batch := "[\t" + strings.Join([]string{
				fmt.Sprintf(call, `"a"`, "echo", `{ "n" : 1.0e0,"big":9007199254740993}`),
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
				fmt.Sprintf(call, "2", "echo", `{"a":1,"a":2}`),
				fmt.Sprintf(call, "3", "denied", `{}`),
				`{"jsonrpc":"2.0","id":4,"method":"ping"}`,
				`{"jsonrpc":"2.0","id":5,"result":{}}`,
				`{"jsonrpc":"2.0","id":6,"method":"resources/read"}`,
			}, " ,\t") + " ] "
			var got []string
			for _, answer := range send(batch, 5) {
				id, _ := jsonrpc.Get(json.RawMessage(answer), "id")
				e, _ := jsonrpc.Get(json.RawMessage(answer), "error")
				data, _ := jsonrpc.Get(e, "data")
				code, _ := jsonrpc.Get(data, "code")
				got = append(got, string(id)+" "+string(code))
			}
			want := []string{`"a" `, `2 "INVALID_ENVELOPE"`, `3 "POLICY_DENIED"`, `4 `, `6 "METHOD_NOT_FOUND"`}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			var told []string
			for _, e := range seen.take() {
				told = append(told, e.RequestID+" "+e.Method+" "+e.Status)
			}
			slices.Sort(told)
			want = []string{" notifications/initialized accepted", "2  error", "3 tools/call error", "4 ping ok", "5  accepted", "6 resources/read error", "a tools/call ok"}
			if diff := cmp.Diff(want, told); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			for _, in := range g.reached {
				args, _ := jsonrpc.Get(in.Message.Params, "arguments")
				if id := string(in.Message.ID); id == `"a"` && string(args) != `{ "n" : 1.0e0,"big":9007199254740993}` {
					t.Errorf("the tool got %s", args)
				}
			}
			if g.calls() != 2 {
				t.Errorf("%d calls reached a tool, want 2", g.calls())
			}
		})
	}
}

// TestBatchParity: a message in a batch has the answer that it has alone.
func TestBatchParity(t *testing.T) {
	for way, dialed := range batchWays {
		for _, tt := range denials {
			if all, err := jsonrpc.Split([]byte("["+tt.body+"]"), jsonrpc.Limits{Bytes: 4096}, 64); err != nil || len(all) > 1 || strings.HasPrefix(tt.body, "[") {
				continue // no message of a batch
			}
			t.Run(way+"/"+tt.name, func(t *testing.T) {
				send := dialed(t, newDoor(t, newGate(), small), helloAs("2025-03-26"))
				alone := recordIDs.ReplaceAllString(send(tt.body, 1)[0], "x")
				batch := send("["+tt.body+"]", 1)
				if len(batch) != 1 || recordIDs.ReplaceAllString(batch[0], "x") != alone {
					t.Errorf("alone %s\nin a batch %s", alone, batch)
				}
			})
		}
	}
}

// TestBatchRefused: what is refused as a whole reaches nobody, and is told once.
func TestBatchRefused(t *testing.T) {
	many := func(n int) string { return "[" + strings.Repeat(echoCall+",", n-1) + echoCall + "]" }
	for way, dialed := range batchWays {
		for _, tt := range []struct{ name, body, version, code string }{
			{"empty", `[]`, "2025-03-26", "INVALID_ENVELOPE"},
			{"initialize", `[` + echoCall + `,` + initialize + `]`, "2025-03-26", "INVALID_ENVELOPE"},
			{"too many", many(65), "2025-03-26", "INVALID_ENVELOPE"},
			{"half a batch", `[` + echoCall + `,`, "2025-03-26", "PARSE_ERROR"},
			{"two batches", `[` + echoCall + `][` + echoCall + `]`, "2025-03-26", "PARSE_ERROR"},
			{"too large", `[` + strings.Repeat(" ", 40_000) + echoCall + `]`, "2025-03-26", "TOO_LARGE"},
			{"2025-06-18", `[` + echoCall + `]`, "2025-06-18", "INVALID_ENVELOPE"},
			{"2025-11-25", `[` + echoCall + `]`, "2025-11-25", "INVALID_ENVELOPE"},
		} {
			t.Run(way+"/"+tt.name, func(t *testing.T) {
				g, seen := newGate(), &events{}
				send := dialed(t, newDoor(t, g, func(o *mcp.Options) { o.Observe, o.Limits.Bytes = seen.observe, 30_000 }), helloAs(tt.version))
				seen.take()
				answers := send(tt.body, 1)
				if len(answers) != 1 {
					t.Fatalf("answers %v", answers)
				}
				want := refusal{"null", -32600, tt.code, 0}
				if tt.code == "PARSE_ERROR" {
					want.RPC = -32700
				}
				if diff := cmp.Diff(want, refusalOf(t, answers[0], g)); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
				if told := seen.take(); len(told) != 1 || told[0].Status != wire.StatusError {
					t.Errorf("events %v", told)
				}
			})
		}
		t.Run(way+"/as many as may be", func(t *testing.T) {
			g := newGate()
			send := dialed(t, newDoor(t, g, nil), helloAs("2025-03-26"))
			var all []string
			for i := range 64 {
				all = append(all, strings.Replace(echoCall, `"id":1`, fmt.Sprintf(`"id":"n%d"`, i), 1))
			}
			if got := send("["+strings.Join(all, ",")+"]", 64); len(got) != 64 || g.calls() != 64 {
				t.Errorf("%d answers and %d calls, want 64", len(got), g.calls())
			}
			if got := send(`[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":1,"result":{}}]`, 0); got != nil {
				t.Errorf("got %v", got)
			}
			if got := send(`[`+echoCall+`,`+ping+`]`, 2); len(got) != 2 || !strings.Contains(strings.Join(got, ""), "in flight") {
				t.Errorf("one id twice: %v", got)
			}
		})
	}
}

// TestBatchNeedsItsSession: without the session there is no revision with
// batches, and a header of another one takes it away.
func TestBatchNeedsItsSession(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	h := openAs(t, srv.URL+"/mcp", "alice", "2025-03-26")
	other := h.request(http.MethodPost, `[`+echoCall+`]`)
	other.Header.Set("MCP-Protocol-Version", "2025-06-18")
	same := h.request(http.MethodPost, `[`+echoCall+`]`)
	same.Header.Set("MCP-Protocol-Version", "2025-03-26")
	for _, tt := range []struct {
		name string
		req  *http.Request
		want int
	}{
		{"another revision", other, 400},
		{"no session", (&far{t: t, url: h.url, who: "alice"}).request(http.MethodPost, `[`+echoCall+`]`), 400},
		{"another principal", (&far{t: t, url: h.url, who: "bob", session: h.session}).request(http.MethodPost, `[`+echoCall+`]`), 404},
		{"a lost session", (&far{t: t, url: h.url, who: "alice", session: "gone"}).request(http.MethodPost, `[`+echoCall+`]`), 404},
		{"a lost session of HTTP+SSE", (&far{t: t, url: srv.URL + "/messages?sessionId=gone", who: "alice"}).request(http.MethodPost, `[`+echoCall+`]`), 404},
		{"a sender", (&far{t: t, url: h.url, who: "mallory", session: h.session}).request(http.MethodPost, `[`+echoCall+`]`), 401},
		{"the session's own", same, 200},
	} {
		if res, body := h.do(tt.req); res.StatusCode != tt.want {
			t.Errorf("%s: status %d, want %d: %s", tt.name, res.StatusCode, tt.want, body)
		}
	}
	if g.calls() != 1 {
		t.Errorf("%d calls reached a tool, want 1", g.calls())
	}
}

// TestBatchStream: a batch with a call that reports is answered with events,
// which can be asked for again.
func TestBatchStream(t *testing.T) {
	g := newGate()
	reporter(g, 2, 1)
	srv, _ := newServer(t, g, nil)
	h := openAs(t, srv.URL+"/mcp", "alice", "2025-03-26")
	second := strings.Replace(reportCall, `"id":1`, `"id":2`, 1)
	second = strings.Replace(second, `"progressToken":1`, `"progressToken":2`, 1)
	f := h.flow(h.request(http.MethodPost, `[`+reportCall+`,`+second+`]`))
	got, last := f.take(2)
	_ = f.body.Close()
	close(g.release)
	rest, _ := h.flow(h.after(last)).take(100)
	got = append(got, rest...)
	slices.Sort(got)
	with2 := func(s string) string {
		return strings.NewReplacer(`"progressToken":1`, `"progressToken":2`, `"id":1`, `"id":2`).Replace(s)
	}
	want := []string{reported, with2(reported), progressed(1), progressed(2), with2(progressed(1)), with2(progressed(2))}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestBatchOverSSE: answers come as single events.
func TestBatchOverSSE(t *testing.T) {
	g := newGate()
	srv, _ := newServer(t, g, nil)
	o := openSSE(t, srv, "/sse", "alice").greet("2025-03-26")
	got := []string{o.ask(`[` + echoCall + `,{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"}]`), o.receive()}
	slices.Sort(got)
	if !strings.HasPrefix(got[0], `{"jsonrpc":"2.0","id":1,"result"`) || got[1] != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("got %q", got)
	}
	if got := o.ask(`[]`); !strings.HasPrefix(got, "400 ") {
		t.Errorf("an empty batch: %s", got)
	}
	old := openSSE(t, srv, "/sse", "alice").greet("2024-11-05")
	if got := old.ask(`[` + echoCall + `]`); !strings.HasPrefix(got, "400 ") || g.calls() != 1 {
		t.Errorf("2024-11-05: %s", got)
	}
}

// TestBatchCancel: a notification may cancel a call that came before it in the
// same batch; the rest is answered.
func TestBatchCancel(t *testing.T) {
	for way, dialed := range batchWays {
		t.Run(way, func(t *testing.T) {
			send := dialed(t, newDoor(t, newGate(), nil), helloAs("2025-03-26"))
			got := send(`[`+waitCall+`,{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, 1)
			if diff := cmp.Diff([]string{`{"jsonrpc":"2.0","id":2,"result":{}}`}, got); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzBatch: a message has the same answer in a batch as alone, and an array
// that is no batch calls nothing.
func FuzzBatch(f *testing.F) {
	for _, tt := range denials {
		f.Add([]byte(tt.body))
	}
	f.Add([]byte(echoCall))
	f.Add([]byte(echoCall + "," + ping))
	f.Add([]byte(ping + `],[` + echoCall))
	f.Fuzz(func(t *testing.T, body []byte) {
		g := newGate()
		delete(g.behave, "wait")
		d := newDoor(t, g, nil)
		session := record(d, "alice", "", helloAs("2025-03-26")).Header().Get("Mcp-Session-Id")
		batch := append(append([]byte("["), body...), ']')
		rec := record(d, "alice", session, string(batch))
		elements, err := jsonrpc.Split(batch, jsonrpc.Limits{}, 64)
		if err != nil {
			if g.calls() != 0 || rec.Code != http.StatusBadRequest {
				t.Errorf("no batch: %d calls, status %d", g.calls(), rec.Code)
			}
			return
		}
		if g.calls() > len(elements) {
			t.Errorf("%d messages made %d calls", len(elements), g.calls())
		}
		if len(elements) != 1 || elements[0][0] == '[' || rec.Header().Get("Content-Type") != "application/json" || strings.Contains(string(body), "initialize") {
			return
		}
		alone := record(d, "alice", session, string(elements[0])).Body.String()
		if got := members(t, rec.Body.String()); len(got) != 1 || recordIDs.ReplaceAllString(got[0], "") != recordIDs.ReplaceAllString(alone, "") {
			t.Errorf("alone %s\nin a batch %s", alone, got)
		}
	})
}

// A batch that names its session twice is of no session, as any other request is.
func TestBatchOfTwoSessions(t *testing.T) {
	g := newGate()
	d := newDoor(t, g, nil)
	session := record(d, "alice", "", helloAs("2025-03-26")).Header().Get("Mcp-Session-Id")
	for ids, status := range map[int]int{1: http.StatusOK, 2: http.StatusNotFound} {
		req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(`[`+echoCall+`]`))
		standardHeaders(req, "alice")
		req.Header["Mcp-Session-Id"] = slices.Repeat([]string{session}, ids)
		res := httptest.NewRecorder()
		d.ServeHTTP(res, req)
		if res.Code != status || g.calls() > 1 {
			t.Errorf("%d session ids: status %d, want %d; %d calls", ids, res.Code, status, g.calls())
		}
	}
}
