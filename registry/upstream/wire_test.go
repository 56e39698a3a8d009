package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// A request of the server's is answered under its own id, byte for byte, and
// is never taken for the answer to a call of ours that has the same id.
func TestServerAsks(t *testing.T) {
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "ask", Does: recorder.Ask}}}
	overAll(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		result, e := r.call(r.ready(), "ask", `{"mine":true}`)
		if e != nil || !strings.Contains(string(result), `{"mine":true}`) {
			t.Fatalf("result %s, error %v", result, e)
		}
		for _, want := range []string{`"id":9007199254740993,"result":{}`, `"code":-32601`} {
			await(t, want, func() bool { return strings.Contains(string(rec.Bytes()), want) })
		}
	}, "stdio", "http stream")
}

// answering puts a server in front of a recorder that answers tools/call
// itself.
func answering(t *testing.T, rec *recorder.Recorder, answer func(w http.ResponseWriter, id string)) (string, *atomic.Int64) {
	t.Helper()
	target, err := url.Parse(rec.URL)
	if err != nil {
		t.Fatal(err)
	}
	calls := new(atomic.Int64)
	proxy := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		var msg struct{ ID, Method string }
		if json.Unmarshal(body, &msg) == nil && msg.Method == "tools/call" {
			calls.Add(1)
			answer(w, msg.ID)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	return front.URL, calls
}

// What a status means: only a lost session is tried again, once; an answer is
// an answer under any status; a redirect is not followed.
func TestStatus(t *testing.T) {
	say := func(status int, body string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(status)
			io.WriteString(w, strings.ReplaceAll(body, "ID", `"`+id+`"`))
		}
	}
	for _, tc := range []struct {
		name   string
		answer func(http.ResponseWriter, string)
		kind   upstream.ErrorKind
		rpc    bool
		calls  int64
		want   string
	}{
		{"404, no answer", say(404, `Session not found`), upstream.Failed, false, 2, "404"},
		{"404, answer of the transport", say(404, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`), upstream.Failed, false, 2, "404"},
		{"404, answer", say(404, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no such method"}}`), upstream.Failed, true, 1, ""},
		{"400, forgotten session", say(400, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Bad Request: no valid session"}}`), upstream.Failed, false, 2, "400"},
		{"400, answer", say(400, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`), upstream.Failed, true, 1, ""},
		{"500", say(500, `oops`), upstream.Failed, false, 1, "status 500: oops"},
		{"401", say(401, ``), upstream.Unavailable, false, 1, "hint: check the headers"},
		{"307", say(307, ``), upstream.Failed, false, 1, "redirects to"},
		{"202", say(202, ``), upstream.Failed, false, 1, "status 202"},
		{"no JSON", say(200, `oops`), upstream.Failed, false, 1, "malformed"},
		{"answer to another", say(200, `{"jsonrpc":"2.0","id":"999","result":{}}`), upstream.Failed, false, 1, "malformed"},
		{"two answers", say(200, `{"jsonrpc":"2.0","id":ID,"result":{}}{"jsonrpc":"2.0","id":ID,"result":{}}`), upstream.Failed, false, 1, "malformed"},
		{"endless", func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "application/json")
			for chunk := bytes.Repeat([]byte("x"), 1<<16); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, upstream.TooLarge, false, 1, "an answer of more than 1 MiB"},
		{"endless event", func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			for chunk := []byte("data: " + strings.Repeat("x", 1<<16) + "\n"); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, upstream.TooLarge, false, 1, "an answer of more than 1 MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "a"}}})
			cfg := httpServer(rec)
			var calls *atomic.Int64
			cfg.URL, calls = answering(t, rec, tc.answer)
			r := start(t, cfg, upstream.Options{MaxAnswerBytes: 1 << 20})
			_, e := r.call(r.ready(), "a", `{}`)
			wantError(t, e, tc.kind, true)
			if (e.RPC != nil) != tc.rpc || !strings.Contains(e.Error(), tc.want) {
				t.Errorf("error %v, error object %s", e, e.RPC)
			}
			if got := calls.Load(); got != tc.calls {
				t.Errorf("sent %d times, want %d", got, tc.calls)
			}
		})
	}
}

// Configured headers go with every request, the end of the session included.
func TestHeaders(t *testing.T) {
	var without atomic.Int64
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "a"}}})
	target, _ := url.Parse(rec.URL)
	proxy := httputil.NewSingleHostReverseProxy(target)
	deleted := make(chan bool, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer x" {
			without.Add(1)
		}
		if req.Method == http.MethodDelete {
			deleted <- true
		}
		proxy.ServeHTTP(w, req)
	}))
	defer front.Close()
	cfg := httpServer(rec)
	cfg.URL, cfg.Headers = front.URL, map[string]string{"Authorization": "Bearer x"}
	r := start(t, cfg, upstream.Options{})
	if _, e := r.call(r.ready(), "a", `{}`); e != nil {
		t.Fatal(e)
	}
	r.Close(context.Background())
	<-deleted
	if got := without.Load(); got != 0 {
		t.Errorf("%d requests without the configured header", got)
	}
	front.CloseClientConnections()
}

// The environment of a server is an allow-list.
func TestEnviron(t *testing.T) {
	got := upstream.Environ(
		[]string{"PATH=/bin", "TOOLGATE_TOKEN=x", "LC_TIME=C", "LD_PRELOAD=x", "PATHX=1", "HOME=/root", "EMPTY="},
		map[string]string{"HOME": "/srv", "TOOLGATE_UID": "1", "A": "b=c"},
	)
	if diff := cmp.Diff([]string{"A=b=c", "HOME=/srv", "LC_TIME=C", "PATH=/bin"}, got); diff != "" {
		t.Error(diff)
	}
}
