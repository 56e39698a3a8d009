package bridge_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/conversation"
	"github.com/toolgate/toolgate/proxy/bridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take.
const patience = 20 * time.Second

const secret = "s3cret-token"

// client is the far end of a bridge: a program that speaks only stdio.
type client struct {
	*conversation.Line
	t      testing.TB
	log    *text
	bridge *bridge.Bridge
}

// connect starts a bridge to url and ends it with the test.
func connect(t testing.TB, url string, change func(*bridge.Options)) *client {
	t.Helper()
	c := &client{t: t, log: &text{}}
	opts := bridge.Options{URL: url, Token: secret, Pause: 10 * time.Millisecond, MaxAnswerBytes: 16 << 20,
		Log: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: c.log})}
	if change != nil {
		change(&opts)
	}
	b, err := bridge.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	c.bridge = b
	t.Cleanup(func() { // after the bridge has ended
		if strings.Contains(c.log.String(), secret) {
			t.Errorf("the token is in the log:\n%s", c.log)
		}
		if t.Failed() {
			t.Logf("log of the bridge:\n%s", c.log)
		}
	})
	c.Line = conversation.Dial(t, b.Serve)
	return c
}

// failure is an error answer as the tests look at it.
type failure struct {
	ID    json.RawMessage
	Error struct {
		Code    int
		Message string
		Data    struct {
			Code          string
			RetryEligible bool    `json:"retry_eligible"`
			RetryAfterMS  float64 `json:"retry_after_ms"`
			Reason        string
			Remedy        string
			DecisionID    string `json:"decision_id"`
		}
	}
}

// fails sends one line and wants an error with the canonical code for the
// request id back.
func (c *client) fails(line, id, code string) failure {
	c.t.Helper()
	return c.failed(c.Ask(line), id, code)
}

func (c *client) failed(answer, id, code string) failure {
	c.t.Helper()
	var f failure
	if err := json.Unmarshal([]byte(answer), &f); err != nil || string(f.ID) != id || f.Error.Data.Code != code {
		c.t.Fatalf("answer %s (%v), want %s for id %s", answer, err, code, id)
	}
	return f
}

// open does the handshake.
func (c *client) open() *client {
	c.t.Helper()
	if got := c.Ask(initialize); !strings.Contains(got, `"result"`) {
		c.t.Fatalf("initialize: %s", got)
	}
	c.Send(initialized)
	return c
}

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	modernMeta  = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
)

func call(id, tool string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `"}}`
}

// text gathers what is written to it.
type text struct {
	mu  sync.Mutex // protects the fields below
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String gives all that was written.
func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// seen is one HTTP request that an endpoint got.
type seen struct {
	verb, path, method string // method is that of the message, "" without one
	head               http.Header
	body               string
}

// endpoint is a server that behaves as a test says.
type endpoint struct {
	*httptest.Server // nil in a bubble
	t                testing.TB
	handle           http.HandlerFunc
	come             chan seen // every request that has no standard answer

	mu  sync.Mutex // protects the fields below
	all []seen
}

// handler answers the n-th HTTP request, from 1, with one verb or about one
// method.
type handler func(w http.ResponseWriter, r *http.Request, n int)

// misbehave starts an endpoint. The keys of special are verbs or methods of
// messages; what has none is answered as by a good server: initialize with
// session "s1", "s2" and so on, notifications and answers with 202, DELETE with
// 204, GET with 405, any other request with a result.
func misbehave(t testing.TB, special map[string]handler) *endpoint {
	t.Helper()
	e := newEndpoint(t, special)
	e.Server = httptest.NewServer(e.handle)
	t.Cleanup(e.Close)
	return e
}

// newEndpoint makes the endpoint of misbehave, and no server.
func newEndpoint(t testing.TB, special map[string]handler) *endpoint {
	e := &endpoint{t: t, come: make(chan seen, 1000)}
	e.handle = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s := seen{verb: r.Method, path: r.URL.RequestURI(), head: r.Header, body: string(body)}
		m, _ := jsonrpc.Decode(body, jsonrpc.MostLimits())
		if m != nil {
			s.method = m.Method
		}
		n := e.enter(s)
		key := s.verb
		if key == http.MethodPost {
			key = s.method
		}
		if do := special[key]; do != nil {
			do(w, r, n)
			return
		}
		standard(w, s, m, n)
	}
	return e
}

// enter notes s and counts its like.
func (e *endpoint) enter(s seen) int {
	e.mu.Lock()
	n := 1
	for _, before := range e.all {
		if before.verb == s.verb && before.method == s.method {
			n++
		}
	}
	e.all = append(e.all, s)
	e.mu.Unlock()
	e.come <- s
	return n
}

func standard(w http.ResponseWriter, s seen, m *jsonrpc.Message, n int) {
	switch {
	case s.verb == http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case s.verb == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case m.Kind != jsonrpc.Request:
		w.WriteHeader(http.StatusAccepted)
	case s.method == "initialize":
		w.Header().Set("Mcp-Session-Id", "s"+string(rune('0'+n)))
		answerJSON(w, m.ID, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"fake","version":"1"}}`)
	default:
		answerJSON(w, m.ID, `{"echo":`+string(jsonrpc.Quote(s.body))+`}`)
	}
}

func answerJSON(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(jsonrpc.NewSuccess(id, json.RawMessage(result)))
}

// begin starts an event stream, and flushes it.
func begin(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, text := range events {
		_, _ = io.WriteString(w, text)
	}
	_ = http.NewResponseController(w).Flush()
}

// hangUp breaks the connection.
func hangUp(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) }

// await waits for a request with this verb and, unless "", about this method.
func (e *endpoint) await(verb, method string) seen {
	e.t.Helper()
	late := time.After(patience)
	for {
		select {
		case s := <-e.come:
			if s.verb == verb && (method == "" || s.method == method) {
				return s
			}
		case <-late:
			e.t.Fatalf("%s %s never came", verb, method)
		}
	}
}

// count gives how many requests came with verb about method.
func (e *endpoint) count(verb, method string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.all {
		if s.verb == verb && s.method == method {
			n++
		}
	}
	return n
}

// requests gives what has come so far.
func (e *endpoint) requests() []seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// last gives the request that came last, but for streams: one that was asked for
// before may arrive after it.
func (e *endpoint) last() seen {
	all := slices.DeleteFunc(e.requests(), func(s seen) bool { return s.verb == http.MethodGet })
	return all[len(all)-1]
}
