package recorder

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// httpServer is a recorder over Streamable HTTP.
type httpServer struct {
	rec       *Recorder
	cfg       Config
	engine    *engine
	stateless *statelessServer // nil for a server with sessions
	server    *httptest.Server

	mu       sync.Mutex // protects the fields below
	sessions map[string]bool
	last     int
	streams  map[chan string]string // :: GET stream ⇒ session
}

// HTTP starts a recorder on the loopback interface; it stops with the test.
func HTTP(t testing.TB, cfg Config) *Recorder {
	t.Helper()
	rec := &Recorder{t: t}
	h := &httpServer{rec: rec, cfg: cfg, sessions: make(map[string]bool), streams: make(map[chan string]string)}
	h.engine = newEngine(cfg, func() { panic(http.ErrAbortHandler) })
	h.engine.apart = h.apart
	if cfg.Stateless != nil {
		h.stateless = newStateless(*cfg.Stateless, rec.note)
	}
	h.server = httptest.NewServer(h)
	rec.http, rec.URL = h, h.server.URL
	t.Cleanup(func() {
		close(h.engine.stop)
		h.server.CloseClientConnections()
		h.server.Close()
	})
	return rec
}

// SetTools replaces the tools of an HTTP recorder and, with announce, notifies every
// open stream.
func (r *Recorder) SetTools(announce bool, tools ...Tool) {
	r.http.engine.setTools(tools)
	if !announce {
		return
	}
	r.http.mu.Lock()
	defer r.http.mu.Unlock()
	for w := range r.http.streams {
		w <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	}
}

// ForgetSessions makes an HTTP recorder forget its sessions, as a restart does.
func (r *Recorder) ForgetSessions() {
	r.http.mu.Lock()
	defer r.http.mu.Unlock()
	clear(r.http.sessions)
}

// CloseStreams closes the open GET streams of an HTTP recorder.
func (r *Recorder) CloseStreams() {
	r.http.mu.Lock()
	defer r.http.mu.Unlock()
	for w := range r.http.streams {
		delete(r.http.streams, w)
		close(w)
	}
}

// Upgrade makes a swapped HTTP recorder stateless again, as an upgrade does, and
// drops its sessions.
func (r *Recorder) Upgrade() {
	r.ForgetSessions()
	r.http.stateless.mu.Lock()
	defer r.http.stateless.mu.Unlock()
	r.http.stateless.swapped = false
}

// Stop makes an HTTP recorder refuse connections, as a crashed server does.
func (r *Recorder) Stop() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.http.server.Close() // waits for open streams
	}()
	for {
		r.http.server.CloseClientConnections() // also those opened in the meantime
		select {
		case <-closed:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Sessions returns the number of open sessions of an HTTP recorder.
func (r *Recorder) Sessions() int {
	r.http.mu.Lock()
	defer r.http.mu.Unlock()
	return len(r.http.sessions)
}

// Streams returns the number of open GET streams.
func (r *Recorder) Streams() int {
	r.http.mu.Lock()
	defer r.http.mu.Unlock()
	return len(r.http.streams)
}

// ServeHTTP implements http.Handler.
func (h *httpServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	id := req.Header.Get("Mcp-Session-Id")
	if h.stateless != nil && !h.stateless.isSwapped() {
		h.serveStateless(w, req)
		return
	}
	switch req.Method {
	case http.MethodPost:
		h.post(w, req, id)
	case http.MethodGet:
		h.watch(w, req, id)
	case http.MethodDelete:
		h.mu.Lock()
		delete(h.sessions, id)
		h.mu.Unlock()
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// post receives one message.
func (h *httpServer) post(w http.ResponseWriter, req *http.Request, id string) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	initialize := strings.Contains(string(body), `"method":"initialize"`)
	if h.cfg.Sessions && !initialize && !h.known(id) {
		http.Error(w, "Session not found", http.StatusNotFound)
		return
	}
	h.rec.note("in", string(body))
	if h.cfg.Sessions && initialize {
		id = h.open()
		w.Header().Set("Mcp-Session-Id", id)
	}
	if !isRequest(body) {
		h.engine.serve(id, body, nil)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if h.cfg.Stream {
		h.stream(w, id, body)
		return
	}
	var last string
	h.engine.serve(id, body, func(m string) { last = m })
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, last) // the client may have disconnected
}

// stream answers with an event stream.
func (h *httpServer) stream(w http.ResponseWriter, id string, body []byte) {
	w.Header().Set("Content-Type", "text/event-stream")
	h.engine.serve(id, body, func(m string) {
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", m)
		_ = http.NewResponseController(w).Flush() // as above
	})
}

// known reports whether a session is open.
func (h *httpServer) known(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions[id]
}

// open opens a session.
func (h *httpServer) open() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	id := fmt.Sprintf("session-%d", h.last)
	h.sessions[id] = true
	return id
}

// watch is the GET stream.
func (h *httpServer) watch(w http.ResponseWriter, req *http.Request, id string) {
	if h.cfg.Sessions && !h.known(id) {
		http.Error(w, "Session not found", http.StatusNotFound)
		return
	}
	events := make(chan string, 256)
	h.mu.Lock()
	h.streams[events] = id
	h.mu.Unlock()
	h.engine.come("stream " + id)
	defer func() {
		h.mu.Lock()
		delete(h.streams, events)
		h.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // as above
	for {
		select {
		case m, open := <-events:
			if !open {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", m)
			_ = http.NewResponseController(w).Flush() // as above
		case <-req.Context().Done():
			return
		case <-h.engine.stop:
			return
		}
	}
}
