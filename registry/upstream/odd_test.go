package upstream_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// oddServer is an HTTP server of 2026-07-28 that is well-behaved but for its
// answer to tools/call.
func oddServer(t *testing.T, call func(w http.ResponseWriter, id string)) (*running, *httptest.Server) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		raw, _ := jsonrpc.Get(body, "id")
		id := string(raw)
		w.Header().Set("Content-Type", "application/json")
		switch req.Header.Get("Mcp-Method") {
		case "server/discover":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}}`, id)
		case "tools/list":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}}`, id)
		default:
			call(w, id)
		}
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	cfg := serveHTTP(t, web.Config.Handler)
	cfg.URL = web.URL
	up := start(t, cfg, soon())
	up.ready()
	return up, web
}

// What comes in place of a proper answer over HTTP.
func TestOddAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		stream bool
		answer string // in which ID is the id
		rpc    string
		result string
		fails  string
	}{
		{name: "an error without an id", status: 400, answer: `{"jsonrpc":"2.0","error":{"code":-32020,"message":"m"}}`, rpc: `{"code":-32020,"message":"m"}`},
		{name: "an error for null", status: 400, answer: `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"m"}}`, rpc: `{"code":-32602,"message":"m"}`},
		{name: "an error of another", status: 400, answer: `{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"m"}}`, fails: "status 400"},
		{name: "a method that is not there", status: 404, answer: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"m"}}`, rpc: `{"code":-32601,"message":"m"}`},
		{name: "no type of result", status: 200, answer: `{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`, result: `{"content":[]}`},
		{name: "a page", status: 500, answer: `oops`, fails: "status 500: oops"},
		{name: "a stream that ends", status: 200, stream: true, answer: `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`, fails: "failed"},
		{name: "a stream of events with ids", status: 200, stream: true, answer: "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\nid: 7\nretry: 1", result: `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up, _ := oddServer(t, func(w http.ResponseWriter, id string) {
				answer := strings.ReplaceAll(tt.answer, "ID", id)
				if tt.stream {
					w.Header().Set("Content-Type", "text/event-stream")
					answer = "data: " + answer + "\n\n"
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, answer)
			})
			got, e := up.send(asClient("one", &peer{}), "t", `{}`)
			if tt.result != "" {
				if e != nil || string(got) != tt.result {
					t.Fatalf("got %s %v", got, e)
				}
				return
			}
			wantError(t, e, upstream.Failed, true)
			if string(e.RPC) != tt.rpc || !strings.Contains(e.Error(), tt.fails) {
				t.Errorf("got %v %s", e, e.RPC)
			}
		})
	}
}

// A server that is gone when it is to get the answers has had the call all the
// same.
func TestGoneBetweenRounds(t *testing.T) {
	up, web := oddServer(t, func(w http.ResponseWriter, id string) {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}`, id)
	})
	_, e := up.send(asClient("one", &peer{answer: func(upstream.Question) upstream.Answer {
		web.CloseClientConnections()
		web.Listener.Close()
		return result(`{"roots":[]}`)
	}}), "t", `{}`)
	if e == nil || !e.Sent {
		t.Errorf("got %v, want an error that says that it was sent", e)
	}
}

// Where all sessions share a connection none can be asked or told.
func TestModernShared(t *testing.T) {
	cfg := recorder.Stateless{Capabilities: json.RawMessage(all), Tools: []recorder.StatelessTool{
		{Name: "log", Sends: []string{`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`}},
		{Name: "ask", Answers: []json.RawMessage{json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`)}},
	}}
	rec := recorder.HTTP(t, recorder.Config{Stateless: &cfg})
	up := start(t, httpServer(rec), soon())
	up.ready()
	p := &peer{}
	got, e := up.send(asClient("one", p), "log", `{}`)
	if e != nil || !strings.Contains(string(got), `"io.modelcontextprotocol/clientCapabilities":{}}`) {
		t.Errorf("got %s %v", got, e)
	}
	_, e = up.send(asClient("one", p), "ask", `{}`)
	wantError(t, e, upstream.Failed, true)
	_, e = up.subscribe(asClient("one", p), "a", false)
	wantError(t, e, upstream.Unavailable, false)
	if p.heard() != nil || p.asked() != nil {
		t.Errorf("told %q, asked %v", p.heard(), p.asked())
	}
}

// Subscriptions that come and go at the same time leave those that stayed.
func TestSubscriptionsAtOnce(t *testing.T) {
	overModernWith(t, recorder.Stateless{Capabilities: json.RawMessage(`{"tools":{}}`)}, soon, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		me := asClient("one", &peer{})
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				uri := fmt.Sprint("r", i)
				if _, e := up.subscribe(me, uri, false); e != nil {
					t.Error(e)
				}
				if i%2 == 1 {
					if _, e := up.subscribe(me, uri, true); e != nil {
						t.Error(e)
					}
				}
			})
		}
		all.Wait()
		up.await("six are left", func() bool { return slices.Equal(watchedOf(t, rec), []string{"r0", "r10", "r2", "r4", "r6", "r8"}) })
	})
}

// A request that its caller gives up while the server asks is over at once, and
// one that waits for its turn to subscribe too.
func TestGivenUp(t *testing.T) {
	began := make(chan bool, 2)
	up, _ := oddServer(t, func(w http.ResponseWriter, _ string) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // and never acknowledges
		began <- true
		<-t.Context().Done()
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan *upstream.Error, 2)
	for range 2 {
		go func() {
			_, e := up.Ask(ctx, upstream.Ask{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a"}`), From: asClient("one", &peer{})})
			done <- e
		}()
	}
	<-began
	stop()
	for range 2 {
		if e := <-done; e == nil || e.Kind != upstream.Cancelled {
			t.Errorf("got %v", e)
		}
	}
}

// What stands in a header is safe there, and can be read back.
func FuzzHeaderValue(f *testing.F) {
	for _, seed := range []string{"", "us-west1", "Hello, 世界", " padded ", "line1\nline2", "=?base64?literal?=", "=?base64?=", "a\tb", "\x7f", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := paramheader.Encode(text)
		for _, c := range []byte(got) {
			if c < 0x20 || c > 0x7e {
				t.Fatalf("%q is not safe", got)
			}
		}
		back := got
		if inner, ok := strings.CutPrefix(got, "=?base64?"); ok && strings.HasSuffix(inner, "?=") {
			raw, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(inner, "?="))
			if err != nil {
				t.Fatal(err)
			}
			back = string(raw)
		}
		if back != text || strings.TrimSpace(got) != got || got == "" {
			t.Errorf("%q became %q", text, got)
		}
	})
}
