package upstream_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// polled is a server that ends the stream of a call and has the client ask for
// the rest (MCP 2025-11-25, basic/transports, "Resumability and Redelivery").
type polled struct {
	first func(w http.ResponseWriter, id string)   // what it writes before it ends the stream of a call
	later []func(w http.ResponseWriter, id string) // and on each stream that continues it

	mu    sync.Mutex // protects the fields below
	call  string     // id of the call
	calls int
	asked []string // Last-Event-ID of each stream that continues it
}

func (s *polled) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var msg struct {
		ID     json.RawMessage
		Method string
	}
	if req.Method == http.MethodGet {
		s.more(w, req)
		return
	}
	_ = json.NewDecoder(req.Body).Decode(&msg)
	w.Header().Set("Content-Type", "application/json")
	switch msg.Method {
	case "initialize":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"p","version":"1"}}}`, msg.ID)
	case "tools/list":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"poll","inputSchema":{"type":"object"}}]}}`, msg.ID)
	case "tools/call":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.call = string(msg.ID)
		s.calls++
		w.Header().Set("Content-Type", "text/event-stream")
		s.first(w, s.call)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// more is a stream that continues another; any other is not offered.
func (s *polled) more(w http.ResponseWriter, req *http.Request) {
	last := req.Header.Get("Last-Event-ID")
	s.mu.Lock()
	defer s.mu.Unlock()
	if last == "" || len(s.asked) >= len(s.later) {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	s.asked = append(s.asked, last)
	w.Header().Set("Content-Type", "text/event-stream")
	s.later[len(s.asked)-1](w, s.call)
}

// A call whose stream the server ends goes on where the server says, and what
// is told meanwhile reaches whom the call is for.
func TestPolledStream(t *testing.T) {
	says := func(text string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, id string) {
			if text == "404" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			text, broken := strings.CutSuffix(text, "BREAK")
			_, _ = io.WriteString(w, strings.ReplaceAll(text, "CALL", id))
			if broken {
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		}
	}
	const (
		primed = "id: e1\nretry: 20\ndata: \n\n"
		told   = "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":1}}\n\n"
		answer = "id: e3\ndata: {\"jsonrpc\":\"2.0\",\"id\":CALL,\"result\":{\"content\":[]}}\n\n"
	)
	for _, tc := range []struct {
		name  string
		first string
		later []string // "404" = the session is gone
		asked []string
		told  int
		fails bool
	}{
		{"answered on the second", primed, []string{answer}, []string{"e1"}, 0, false},
		{"answered on the third", primed, []string{told, answer}, []string{"e1", "e2"}, 1, false},
		{"told before the end", primed + told, []string{answer}, []string{"e2"}, 1, false},
		{"ended for good", "data: \n\n", nil, nil, 0, true},
		{"refused", primed, nil, nil, 0, true},
		{"forgotten", primed, []string{"404"}, []string{"e1"}, 0, true},
		{"broken off", primed + told + "BREAK", []string{answer}, []string{"e2"}, 1, false},
		{"broken off twice", primed + "BREAK", []string{told + "id: e9\ndata: BREAK", answer}, []string{"e1", "e2"}, 1, false},
		{"broken off without an id", "data:\n\nBREAK", nil, nil, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &polled{first: says(tc.first)}
			for _, text := range tc.later {
				s.later = append(s.later, says(text))
			}
			front := httptest.NewServer(s)
			defer front.Close()
			r := start(t, config.Server{Name: "p", Type: "http", URL: front.URL, Timeout: patience, Isolation: "session"}, upstream.Options{})
			r.ready()
			me, peer, _ := from("me")
			e := r.do(t.Context(), me, "poll", `{}`)
			if (e != nil) != tc.fails {
				t.Errorf("error %v", e)
			}
			if diff := cmp.Diff(tc.asked, s.asked); diff != "" {
				t.Errorf("asked to continue (-want +got):\n%s", diff)
			}
			if s.calls != 1 {
				t.Errorf("the call was made %d times", s.calls)
			}
			if got := peer.read(); len(got) != tc.told {
				t.Errorf("told %q", got)
			}
		})
	}
}
