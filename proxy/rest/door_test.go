package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
)

const patience = 10 * time.Second

func compiled(text json.RawMessage) *schema.Schema {
	s, err := schema.Compile(text)
	if err != nil {
		panic(err)
	}
	return s
}

// door is a handler over loopback, with all that it stands on.
type door struct {
	t testing.TB
	*gate
	handler *rest.Handler
	url     string

	eventsMu sync.Mutex // protects the field below
	events   []wire.Event
}

// open serves a door that the test closes: first the handler, then the server.
func open(t testing.TB, change func(*gate, *rest.Options)) *door {
	t.Helper()
	d := &door{t: t, gate: newGate(t, 0)}
	opts := rest.Options{
		Gate: d.gate, Refuser: d.gate, ToolIO: d.gate.ToolIO, Artifacts: d.gate, Bus: d.gate, Version: "1.2.3", Hosts: []string{"gate.example"}, Origins: []string{"https://gate.example", "http://localhost:3000"},
		Observe: func(e wire.Event) {
			d.eventsMu.Lock()
			defer d.eventsMu.Unlock()
			d.events = append(d.events, e)
		},
	}
	if change != nil {
		change(d.gate, &opts)
	}
	var err error
	if d.handler, err = rest.New(opts); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(d.handler)
	d.url = srv.URL
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		if err := d.handler.Drain(ctx); err != nil {
			t.Errorf("draining the handler: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
		srv.Close()
	})
	return d
}

// told gives the events so far.
func (d *door) told() []wire.Event {
	d.eventsMu.Lock()
	defer d.eventsMu.Unlock()
	return append([]wire.Event(nil), d.events...)
}

// request is one request of who, "" for nobody; headers are "Name: value",
// and "Name: (none)" takes one away.
func (d *door) request(who, method, path, body string, headers ...string) *http.Request {
	d.t.Helper()
	req, err := http.NewRequest(method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who+"-token")
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case name == "Host":
			req.Host = value
		case value == "(none)":
			req.Header.Del(name)
		default:
			req.Header.Set(name, value)
		}
	}
	return req
}

// answer is what came back.
type answer struct {
	status int
	head   http.Header
	body   string
}

func (d *door) send(req *http.Request) answer {
	d.t.Helper()
	ctx, stop := context.WithTimeout(req.Context(), patience)
	defer stop()
	res, err := http.DefaultClient.Do(req.WithContext(ctx))
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

func (d *door) do(who, method, path, body string, headers ...string) answer {
	d.t.Helper()
	return d.send(d.request(who, method, path, body, headers...))
}

func (d *door) job(who, body string, headers ...string) answer {
	d.t.Helper()
	return d.do(who, http.MethodPost, "/v1/jobs", body, headers...)
}

func (d *door) rpc(who, body string, headers ...string) answer {
	d.t.Helper()
	return d.do(who, http.MethodPost, "/v1/rpc", body, headers...)
}

// text gives a member of the answer's body by its JSON Pointer, members only;
// what is no string is given as it is spelled.
func (a answer) text(path string) string {
	raw := json.RawMessage(a.body)
	for _, key := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		raw, _ = jsonrpc.Get(raw, key)
	}
	if text, ok := jsonrpc.Text(raw); ok {
		return text
	}
	return string(raw)
}

// stream is an open event stream.
type stream struct {
	t     testing.TB
	lines *bufio.Reader
	end   context.CancelFunc
}

// listen opens the event stream of who and waits until it is heard; headers are as in request.
func (d *door) listen(who string, headers ...string) *stream {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	d.t.Cleanup(cancel)
	res, err := http.DefaultClient.Do(d.request(who, http.MethodGet, "/v1/signals", "", headers...).WithContext(ctx))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		d.t.Fatalf("listening: status %d, %s", res.StatusCode, res.Header)
	}
	s := &stream{d.t, bufio.NewReader(res.Body), cancel}
	if got := s.block(); got != ": listening" {
		d.t.Fatalf("the stream begins with %q", got)
	}
	return s
}

// block gives the lines up to the next empty one, "" at the end of the stream.
func (s *stream) block() string {
	var got []string
	for {
		line, err := s.lines.ReadString('\n')
		if errors.Is(err, context.DeadlineExceeded) {
			s.t.Errorf("waited %v in vain for an event or the end", patience)
		}
		if line = strings.TrimSuffix(line, "\n"); err != nil || line == "" {
			return strings.Join(got, "\n")
		}
		got = append(got, line)
	}
}

// event gives the next block that is no comment.
func (s *stream) event() string {
	for {
		if got := s.block(); !strings.HasPrefix(got, ":") {
			return got
		}
	}
}

// await polls until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}
