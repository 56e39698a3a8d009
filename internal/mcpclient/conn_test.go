package mcpclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// transport is an http.RoundTripper made of a function.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// Sent is false exactly when the transport has read no byte of the request,
// whichever of its bodies it reads.
func TestSent(t *testing.T) {
	broken := errors.New("broken")
	again := func(req *http.Request) io.ReadCloser {
		req.Body.Close()
		body, err := req.GetBody()
		if err != nil {
			t.Error(err)
		}
		return body
	}
	for _, tt := range []struct {
		name string
		does func(req *http.Request)
		sent bool
	}{
		{"nothing is read", func(*http.Request) {}, false},
		{"one byte is read", func(req *http.Request) { _, _ = req.Body.Read(make([]byte, 1)) }, true},
		{"the body is closed", func(req *http.Request) { req.Body.Close() }, false},
		{"the body is read again", func(req *http.Request) { _, _ = io.ReadAll(again(req)) }, true},
		{"both bodies are read", func(req *http.Request) {
			first, _ := io.ReadAll(req.Body)
			second, err := io.ReadAll(again(req))
			if err != nil || string(first) != string(second) {
				t.Errorf("%q, then %q, %v", first, second, err)
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
			defer c.Close()
			base := transport(func(req *http.Request) (*http.Response, error) {
				tt.does(req)
				return nil, broken
			})
			if err := c.OpenHTTP("http://127.0.0.1:1/mcp", nil, base); err != nil {
				t.Fatal(err)
			}
			_, e := c.Do(t.Context(), &mcpclient.Call{ID: c.NextID(), Method: "tools/call"})
			if e == nil || e.Sent != tt.sent || !errors.Is(e, broken) {
				t.Errorf("%+v, want sent %t", e, tt.sent)
			}
		})
	}
}

// Initialize returns when the session's stream is open, because what a server asks
// on it before that is lost. A server that answers with its first event only, or
// never, holds the handshake up for a second.
func TestInitializeAwaitsStream(t *testing.T) {
	for _, tt := range []struct {
		name        string
		head, waits time.Duration // until the server answers the GET, and what Initialize waits
		status      int
	}{
		{"open", 300 * time.Millisecond, 300 * time.Millisecond, http.StatusOK},
		{"refused", 200 * time.Millisecond, 200 * time.Millisecond, http.StatusMethodNotAllowed},
		{"late", time.Hour, time.Second, http.StatusOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { initializes(t, tt.head, tt.waits, tt.status) })
		})
	}
}

// initializes opens a session with a server that answers a GET with status after
// the time head, and holds Initialize to the time waits.
func initializes(t *testing.T, head, waits time.Duration, status int) {
	c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
	defer c.Close()
	base := transport(func(req *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		if req.Method != http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"1","result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
			return w.Result(), nil
		}
		select {
		case <-time.After(head):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(status)
		res := w.Result()
		stream, end := io.Pipe()
		context.AfterFunc(req.Context(), func() { end.Close() })
		res.Body = stream
		return res, nil
	})
	if err := c.OpenHTTP("http://127.0.0.1:1/mcp", nil, base); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := c.Initialize(t.Context(), json.RawMessage(`{}`), json.RawMessage(`{}`)); err != nil {
		t.Fatal(err)
	}
	if got := time.Since(began); got != waits {
		t.Errorf("the handshake took %v, want %v", got, waits)
	}
}

// A call that was given up is not written later.
func TestWithdrawn(t *testing.T) {
	c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var late io.ReadCloser
	base := transport(func(req *http.Request) (*http.Response, error) {
		late = req.Body
		cancel()
		return nil, req.Context().Err()
	})
	if err := c.OpenHTTP("http://127.0.0.1:1/mcp", nil, base); err != nil {
		t.Fatal(err)
	}
	_, e := c.Do(ctx, &mcpclient.Call{ID: c.NextID(), Method: "tools/call"})
	if e == nil || e.Kind != mcpclient.Cancelled || e.Sent {
		t.Errorf("%+v", e)
	}
	if text, err := io.ReadAll(late); err == nil || len(text) > 0 {
		t.Errorf("%q went out, %v", text, err)
	}
}

// The error of an answer that cannot be trusted holds what is wrong with it,
// whether or not it is certain which call it answers.
func TestInvalidAnswer(t *testing.T) {
	twice := `"result":{"content":[],"content":[]}`
	for _, tt := range []struct{ name, media, answer, reason string }{
		{"one answer", "application/json", `{"jsonrpc":"2.0","id":"1",` + twice + `}`, `duplicate key "content"`},
		{"one answer without an id", "application/json", `{"jsonrpc":"2.0",` + twice + `}`, `duplicate key "content"`},
		{"one answer that is cut off", "application/json", `{"jsonrpc":"2.0","id":"1","result":`, "unexpected end"},
		{"an event", "text/event-stream", `data: {"jsonrpc":"2.0","id":"1",` + twice + "}\n\n", `duplicate key "content"`},
		{"an event without an id", "text/event-stream", `data: {"jsonrpc":"2.0",` + twice + "}\n\n", `duplicate key "content"`},
		{"an event that is cut off", "text/event-stream", `data: {"jsonrpc":"2.0","id":"1","result":` + "\n\n", "unexpected end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
			defer c.Close()
			base := transport(func(req *http.Request) (*http.Response, error) {
				_, _ = io.ReadAll(req.Body)
				w := httptest.NewRecorder()
				w.Header().Set("Content-Type", tt.media)
				_, _ = io.WriteString(w, tt.answer)
				return w.Result(), nil
			})
			if err := c.OpenHTTP("http://127.0.0.1:1/mcp", nil, base); err != nil {
				t.Fatal(err)
			}
			_, e := c.Do(t.Context(), &mcpclient.Call{ID: c.NextID(), Method: "tools/call"})
			if e == nil || e.Kind != mcpclient.Failed || !e.Sent {
				t.Fatalf("%+v", e)
			}
			if fault, ok := errors.AsType[*jsonrpc.Fault](error(e)); !ok || !strings.Contains(fault.Reason, tt.reason) {
				t.Errorf("%v, want %s", e, tt.reason)
			}
			if !errors.Is(e, mcpclient.ErrMalformed) {
				t.Errorf("%v, want ErrMalformed", e)
			}
		})
	}
}

// An answer that no message can be read from fails its call with a reason for callers.
func TestUnreadableAnswer(t *testing.T) {
	const other = `{"jsonrpc":"2.0","id":"other","result":{}}`
	for _, tt := range []struct {
		name, media, answer string
		status              int
		reason              string
	}{
		{"another id", "application/json", other, http.StatusOK, "a message that does not have the id of the request"},
		{"another id in an event", "text/event-stream", "data: " + other + "\n\n", http.StatusOK, "a message that does not have the id of the request"},
		{"a number for an id", "application/json", `{"jsonrpc":"2.0","id":1,"result":{}}`, http.StatusOK, `its id is the number 1, and the request has the string "1"`},
		{"a notification", "application/json", `{"jsonrpc":"2.0","method":"notifications/message"}`, http.StatusOK, "a message that does not have the id of the request"},
		{"cut off", "application/json", `{"jsonrpc":"2.0","id":"1","result":{}}`, http.StatusOK, "it breaks off"},
		{"a page", "text/html", "<p>", http.StatusOK, `status 200 with content type "text/html"`},
		{"a failure of HTTP", "text/html", "<p>secret", http.StatusBadGateway, "status 502"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
			defer c.Close()
			base := transport(func(req *http.Request) (*http.Response, error) {
				_, _ = io.ReadAll(req.Body)
				w := httptest.NewRecorder()
				w.Header().Set("Content-Type", tt.media)
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
				res := w.Result()
				if tt.name == "cut off" {
					res.ContentLength = 900
				}
				return res, nil
			})
			if err := c.OpenHTTP("http://127.0.0.1:1/mcp", nil, base); err != nil {
				t.Fatal(err)
			}
			_, e := c.Do(t.Context(), &mcpclient.Call{ID: c.NextID(), Method: "tools/call"})
			bad, ok := errors.AsType[*mcpclient.AnswerError](error(e))
			if !ok || bad.Reason != tt.reason || !e.Sent || !errors.Is(e, mcpclient.ErrMalformed) {
				t.Errorf("got %v, want %s", e, tt.reason)
			}
		})
	}
}

// A message that is too large fails the call that it answers and no other: as a body, as
// an event of the call's own stream, and on the one stream of HTTP+SSE. One that answers
// nothing is passed over.
func TestHTTPLongMessages(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	answer := `{"result":{"a":"` + large + `"},"jsonrpc":"2.0","id":"1"}`
	notice := `{"method":"notifications/message","params":{"data":"` + large + `"},"jsonrpc":"2.0"}`
	sound := `{"jsonrpc":"2.0","id":"1","result":{}}`
	for _, tt := range []struct {
		name, media, body string
		fails             bool
	}{
		{"a body", "application/json", answer, true},
		{"an event", "text/event-stream", "data: " + answer + "\n\n", true},
		{"an event without an id", "text/event-stream", "data: " + large + "x\n\n", true},
		{"a notification before the answer", "text/event-stream", "data: " + notice + "\n\ndata: " + sound + "\n\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
			defer c.Close()
			base := transport(func(req *http.Request) (*http.Response, error) {
				_, _ = io.ReadAll(req.Body)
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {tt.media}}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(tt.body))}, nil
			})
			if err := c.OpenHTTP("http://127.0.0.1:1/mcp", nil, base); err != nil {
				t.Fatal(err)
			}
			_, e := c.Do(t.Context(), &mcpclient.Call{ID: c.NextID(), Method: "tools/call"})
			if tt.fails && (e == nil || e.Kind != mcpclient.TooLarge) || !tt.fails && e != nil || c.Dead() {
				t.Errorf("got %v", e)
			}
		})
	}
	t.Run("the shared stream", func(t *testing.T) {
		stream, events := io.Pipe()
		c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
		defer func() { // the end of the stream ends its reader
			_ = events.Close()
			c.Close()
		}()
		go func() { _, _ = io.WriteString(events, "event: endpoint\ndata: /m\n\n") }()
		base := transport(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodGet {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: stream}, nil
			}
			_, _ = io.ReadAll(req.Body)
			return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, nil
		})
		if err := c.OpenSSE(t.Context(), "http://127.0.0.1:1/sse", nil, base, time.Minute); err != nil {
			t.Fatal(err)
		}
		errs := map[string]chan *mcpclient.Error{}
		for range 2 {
			call, ended := &mcpclient.Call{ID: c.NextID(), Method: "tools/call"}, make(chan *mcpclient.Error, 1)
			errs[call.ID] = ended
			go func() {
				_, e := c.Do(t.Context(), call)
				ended <- e
			}()
			for c.Lookup(call.ID) == nil {
				runtime.Gosched()
			}
		}
		_, _ = io.WriteString(events, "data: "+notice+"\n\ndata: "+answer+"\n\n")
		if e := <-errs["1"]; e == nil || e.Kind != mcpclient.TooLarge {
			t.Errorf("the call: %v", e)
		}
		_, _ = io.WriteString(events, "data: "+strings.Replace(sound, `"1"`, `"2"`, 1)+"\n\n")
		if e := <-errs["2"]; e != nil {
			t.Errorf("the other call: %v", e)
		}
	})
}

func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var msg struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(req.Body).Decode(&msg)
		w.Header().Set("Content-Type", "application/json")
		switch msg.Method {
		case "initialize":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, msg.ID)
		case "tools/call":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"n":9007199254740993}}`, msg.ID)
		case "": // no stream of its own
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()

	conn := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20})
	defer conn.Close()
	if err := conn.OpenHTTP(server.URL, nil, base); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := conn.Initialize(context.Background(), json.RawMessage(`{}`), json.RawMessage(`{"name":"example","version":"1"}`)); err != nil {
		fmt.Println(err)
	}
	result, e := conn.Do(context.Background(), &mcpclient.Call{ID: conn.NextID(), Method: "tools/call", Params: json.RawMessage(`{"name":"add"}`)})
	fmt.Println(string(result), e)
	// Output:
	// {"n":9007199254740993} <nil>
}
