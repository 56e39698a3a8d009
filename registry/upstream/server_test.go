package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// An upstream that dies in mid-call fails that call, was called once, and
// comes back by itself.
func TestCrashInCall(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "crash", Does: recorder.Crash}, {Name: "echo"}}})
	over := make(chan span.Session, 2)
	r := start(t, stdioServer(rec), upstream.Options{Ended: func(s span.Session) { over <- s }})
	prints := r.ready()
	_, e := r.call(prints, "crash", `{}`)
	wantError(t, e, upstream.Failed, true)
	if !strings.Contains(e.Error(), "exit status 3") {
		t.Errorf("error does not say how it ended: %v", e)
	}
	if got := len(rec.Calls()); got != 1 {
		t.Fatalf("%d calls arrived, want exactly 1", got)
	}
	r.ready()
	if _, e := r.call(prints, "echo", `{}`); e != nil {
		t.Errorf("after the restart: %v", e)
	}
	if got := len(rec.Starts()); got != 2 {
		t.Errorf("%d starts, want 2", got)
	}
	if s := <-over; s.Protocol == "" || s.Duration <= 0 || len(over) > 0 {
		t.Errorf("the first session ended as %+v, %d more did", s, len(over))
	}
}

// While an upstream is down calls fail at once, and it is tried again after
// growing pauses.
func TestRestartPauses(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{CrashAtStart: true})
	pauses := make(chan time.Duration, 64)
	r := start(t, stdioServer(rec), upstream.Options{After: func(d time.Duration) <-chan time.Time {
		pauses <- d
		now := make(chan time.Time, 1)
		if len(pauses) < 6 {
			now <- time.Time{}
		}
		return now
	}})
	r.await("pauses", func() bool { return len(pauses) == 6 })
	most := 250 * time.Millisecond
	for range 6 {
		if got := <-pauses; got < most/2 || got > most {
			t.Errorf("pause %v, want between %v and %v", got, most/2, most)
		}
		most *= 2
	}
	status := r.Status()
	if status.State != upstream.StateFailed || status.Err == nil {
		t.Errorf("status %+v, want failed with a reason", status)
	}
	_, e := r.call(nil, "echo", `{}`)
	wantError(t, e, upstream.Unavailable, false)
}

// A server that hangs at start counts as settled after a second, and does not
// hold up its end.
func TestHangAtStart(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{HangAtStart: true})
	r := start(t, stdioServer(rec), upstream.Options{})
	<-r.Settled()
	if got := r.Status().State; got != upstream.StateStarting {
		t.Errorf("state %s, want starting", got)
	}
}

// What is wrong with a command or an address is told.
func TestCannotConnect(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server config.Server
		want   string
	}{
		{"no such command", config.Server{Type: "stdio", Command: "no-such-command-here"}, "hint: install it"},
		{"ends at once", config.Server{Type: "stdio", Command: "false"}, "exit status 1"},
		{"speaks no MCP", config.Server{Type: "stdio", Command: "echo", Args: []string{"hello"}}, "the server ended"},
		{"nobody listens", config.Server{Type: "http", URL: "http://127.0.0.1:1/mcp"}, "connection refused"},
		{"sse: nobody listens", config.Server{Type: "sse", URL: "http://127.0.0.1:1/sse"}, "connection refused"},
		{"no address", config.Server{Type: "http", URL: "file:///etc/passwd"}, "not an http or https address"},
		{"unknown type", config.Server{Type: "pigeon", Command: "true"}, "pigeon"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.server.Name, tc.server.Timeout = "x", patience
			tc.server.Env = map[string]string{"GORACE": "atexit_sleep_ms=0"}
			r := start(t, tc.server, upstream.Options{})
			r.await("failure", func() bool { return r.Status().State == upstream.StateFailed })
			if err := r.Status().Err; err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// A server of an unknown revision is not spoken to.
func TestRevision(t *testing.T) {
	overAll(t, recorder.Config{Revision: "2026-07-28"}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		r.await("failure", func() bool { return r.Status().State == upstream.StateFailed })
		if err := r.Status().Err; !strings.Contains(err.Error(), "2026-07-28") {
			t.Errorf("error %v does not name the revision", err)
		}
	})
}

// The list is read page by page, in order, and never without end.
func TestPages(t *testing.T) {
	tools := []recorder.Tool{{Name: "e"}, {Name: "d"}, {Name: "c"}, {Name: "b"}, {Name: "a"}}
	overAll(t, recorder.Config{Tools: tools, Page: 2}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		var got []string
		for _, d := range <-r.listed {
			name, _ := upstream.NameOf(d)
			got = append(got, name)
		}
		if diff := cmp.Diff([]string{"e", "d", "c", "b", "a"}, got); diff != "" {
			t.Error(diff)
		}
	})
	overAll(t, recorder.Config{Tools: tools, RepeatCursor: true}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		r.await("failure", func() bool { return r.Status().State == upstream.StateFailed })
		if err := r.Status().Err; !strings.Contains(err.Error(), "repeats a cursor") {
			t.Errorf("error %v", err)
		}
	})
}

// A server may list 10,000 tools on one page, larger than a client's message may be,
// but not any number.
func TestManyToolsOnOnePage(t *testing.T) {
	parts.Long(t, "lists thousands of tools")
	for n, fault := range map[int]string{10_000: "", 20_001: "more than 20000"} {
		var list bytes.Buffer
		list.WriteString(`{"tools":[{"name":"first"}`)
		for i := 1; i < n; i++ {
			fmt.Fprintf(&list, `,{"name":"tool%d","description":%q}`, i, strings.Repeat("x", 5<<20/10_000))
		}
		list.WriteString(`]}`)
		r := start(t, httpServer(recorder.HTTP(t, recorder.Config{ListResult: list.Bytes()})), upstream.Options{})
		if fault == "" {
			if got := len(<-r.listed); got != n {
				t.Errorf("%d definitions, want %d", got, n)
			}
			continue
		}
		r.await("failure", func() bool { return r.Status().State == upstream.StateFailed })
		if err := r.Status().Err; !strings.Contains(err.Error(), fault) {
			t.Errorf("error %v, want %q", err, fault)
		}
	}
}

// One broken definition does not sink its neighbours.
func TestBrokenDefinition(t *testing.T) {
	list := `{"tools":[{"name":"good","inputSchema":{"type":"object"}},{"name":"bad","name":"worse"},{"name":"also"}]}`
	overAll(t, recorder.Config{ListResult: json.RawMessage(list)}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		if got := len(<-r.listed); got != 3 {
			t.Errorf("%d definitions, want 3", got)
		}
	})
}

// A changed list is fetched again, and a call that was judged against the old
// definition is not made.
func TestListChanged(t *testing.T) {
	old := recorder.Tool{Name: "a", Definition: json.RawMessage(`{"name":"a","description":"old","inputSchema":{"type":"object"}}`)}
	now := recorder.Tool{Name: "a", Definition: json.RawMessage(`{"name":"a","description":"new","inputSchema":{"type":"object"}}`)}
	cfg := recorder.Config{Tools: []recorder.Tool{old}, Changed: []recorder.Tool{now}, ChangeAfter: 1, Notify: true}
	overAll(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		before := r.ready()
		if _, e := r.call(before, "a", `{}`); e != nil {
			t.Fatal(e)
		}
		after := r.next()
		if before["a"] == after["a"] {
			t.Fatal("same fingerprint after the change")
		}
		_, e := r.call(before, "a", `{}`)
		wantError(t, e, upstream.Quarantined, false)
		if _, e := r.call(after, "a", `{}`); e != nil {
			t.Error(e)
		}
		if got := len(rec.Calls()); got != 2 {
			t.Errorf("%d calls arrived, want 2", got)
		}
	}, "stdio", "http stream")
}

// Fault 4: a server that announces changes without end is listed less and less often, at
// most once a minute.
func TestRelistPauses(t *testing.T) {
	var got []string
	for row := range 14 {
		got = append(got, upstream.RelistPause(row).String())
	}
	if got, want := strings.Join(got, " "), "1s 1s 1s 1s 1s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s 1m0s"; got != want {
		t.Errorf("the pauses are %s, want %s", got, want)
	}
	if got := upstream.RelistPause(1 << 40); got != time.Minute {
		t.Errorf("after very many lists: %s", got)
	}
}

// The GET stream tells of changes too.
func TestListChangedOnGet(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "a"}}})
	r := start(t, httpServer(rec), upstream.Options{})
	r.ready()
	r.await("stream", func() bool { return rec.Streams() == 1 })
	rec.SetTools(true, recorder.Tool{Name: "b"})
	if got := r.next(); got["b"] == "" {
		t.Errorf("listed %v, want b", got)
	}
}

// A forgotten HTTP session is opened again, its tools are compared, and the
// refused call is sent once more: it arrives once.
func TestSessionLoss(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "echo"}}})
	for _, isolation := range []string{"shared", "session"} {
		cfg := httpServer(rec)
		cfg.Isolation = isolation
		r := start(t, cfg, upstream.Options{})
		prints := r.ready()
		before := len(rec.Calls())
		for _, forget := range []bool{false, true} {
			if forget {
				rec.ForgetSessions()
			}
			_, e := r.Do(context.Background(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], From: upstream.Downstream{Session: "s"}, Arguments: json.RawMessage(`{}`)})
			if e != nil {
				t.Fatalf("%s, forget %v: %v", isolation, forget, e)
			}
		}
		if got := len(rec.Calls()) - before; got != 2 {
			t.Errorf("%s: %d calls arrived, want 2", isolation, got)
		}
		rec.SetTools(false, recorder.Tool{Name: "echo", Definition: json.RawMessage(`{"name":"echo","title":"x","inputSchema":{"type":"object"}}`)})
		rec.ForgetSessions()
		_, e := r.Do(context.Background(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], From: upstream.Downstream{Session: "s"}})
		wantError(t, e, upstream.Quarantined, false)
		rec.SetTools(false, recorder.Tool{Name: "echo"})
	}
}

// Each downstream session has a connection of its own, made once; the shared
// one serves whoever has none.
func TestIsolation(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "echo"}}})
	cfg := httpServer(rec)
	cfg.Isolation, cfg.MaxSessions = "session", 2
	r := start(t, cfg, upstream.Options{})
	prints := r.ready()
	do := func(session string) *upstream.Error {
		_, e := r.Do(context.Background(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], From: upstream.Downstream{Session: session}, Arguments: json.RawMessage(`{}`)})
		return e
	}
	var calls sync.WaitGroup
	for range 20 {
		for _, session := range []string{"", "one", "two"} {
			calls.Go(func() {
				if e := do(session); e != nil {
					t.Errorf("session %q: %v", session, e)
				}
			})
		}
	}
	calls.Wait()
	if got := rec.Sessions(); got != 3 {
		t.Errorf("%d connections, want 3", got)
	}
	r.EndSession("one")
	r.EndSession("unknown")
	r.await("connection ends", func() bool { return rec.Sessions() == 2 })
	if e := do("three"); e != nil {
		t.Errorf("after a session ended: %v", e)
	}
}

// Threat H5, fault 19: more sessions than max_sessions are served one after the other.
// The idle connection of the principal that has the most is closed, the one used longest
// ago first, and opens again at the next call.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "echo"}}})
	cfg := httpServer(rec)
	cfg.Isolation, cfg.MaxSessions = "session", 4
	r := start(t, cfg, upstream.Options{})
	prints := r.ready()
	for range 2 {
		for i := range 50 {
			from := upstream.Downstream{Session: fmt.Sprint(i), Subject: fmt.Sprint("agent-", i%10)}
			if _, e := r.Do(t.Context(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], From: from}); e != nil {
				t.Fatalf("session %d: %v", i, e)
			}
			r.await("at most 4 connections, and the shared one", func() bool { return rec.Sessions() <= 5 })
		}
	}
}

// A thousand agents call at once, four for each place, and all are served. A stateless
// server has no sessions, but each agent has a connection of its own.
func TestThousandAgents(t *testing.T) {
	parts.Long(t, "serves a thousand agents")
	const agents = 1_000
	rec := recorder.HTTP(t, recorder.Config{Stateless: &recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "echo"}}}})
	cfg := httpServer(rec)
	cfg.Isolation, cfg.MaxSessions = "session", 256
	never := func(time.Duration) <-chan time.Time { return nil } // nobody who waits gives up
	r := start(t, cfg, upstream.Options{After: never})
	prints := r.ready()
	var all sync.WaitGroup
	for i := range agents {
		all.Go(func() {
			from := upstream.Downstream{Session: fmt.Sprint(i), Subject: fmt.Sprint("agent-", i)}
			if _, e := r.Do(t.Context(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], From: from, Timeout: time.Minute}); e != nil {
				t.Errorf("agent %d: %v", i, e)
			}
			if n := r.Open(); n > cfg.MaxSessions {
				t.Errorf("%d connections are open, more than %d", n, cfg.MaxSessions)
			}
		})
	}
	all.Wait()
}

// Threat H5: the session hog. A principal that is alone has every connection. Another
// one gets the first that is idle, before any further session of the hog, and is refused
// only while all of them are busy.
func TestSessionHog(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "wait", Does: recorder.Hang}, {Name: "echo"}}})
	cfg := httpServer(rec)
	cfg.Isolation, cfg.MaxSessions = "session", 3
	patient := make(chan time.Time) // nobody who waits gives up
	after := atomic.Pointer[chan time.Time]{}
	after.Store(&patient)
	r := start(t, cfg, upstream.Options{After: func(time.Duration) <-chan time.Time { return *after.Load() }})
	prints := r.ready()
	do := func(ctx context.Context, who, session, tool string) *upstream.Error {
		_, e := r.Do(ctx, upstream.Call{Tool: tool, Fingerprint: prints[tool], From: upstream.Downstream{Session: who + session, Subject: who}})
		return e
	}
	hog, release := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer release()
	busy := func(ctx context.Context, session string) {
		n := len(rec.Calls())
		calls.Go(func() { do(ctx, "hog", session, "wait") })
		r.await("the call of the hog arrives", func() bool { return len(rec.Calls()) > n })
	}
	one, end := context.WithCancel(hog)
	busy(one, "1")
	busy(hog, "2")
	busy(hog, "3")

	gone := make(chan time.Time)
	close(gone)
	after.Store(&gone)
	e := do(t.Context(), "agent", "", "echo")
	wantError(t, e, upstream.Unavailable, false)
	if !strings.Contains(e.Error(), "max_sessions") {
		t.Errorf("error %v does not say what to do", e)
	}
	if n := r.Waiting(); n != 0 {
		t.Errorf("%d connections wait after the call for them has failed", n)
	}
	after.Store(&patient)

	served := make(chan *upstream.Error, 1)
	go func() { served <- do(t.Context(), "agent", "", "echo") }()
	r.await("the agent waits", func() bool { return r.Waiting() == 1 })
	for i := range 10 { // neither further sessions nor further calls of the hog go first
		calls.Go(func() { do(hog, "hog", fmt.Sprint("more-", i), "wait") })
		calls.Go(func() { do(hog, "hog", "1", "wait") })
	}
	r.await("the hog waits", func() bool { return r.Waiting() == 12 })
	end()
	select {
	case e := <-served:
		if e != nil {
			t.Errorf("the agent's call: %v", e)
		}
	case <-time.After(patience):
		t.Error("the agent waits for the hog")
	}
}

// The connections of idle sessions are closed.
func TestIdleSessions(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{{Name: "echo"}}})
	cfg := httpServer(rec)
	cfg.Isolation = "session"
	r := start(t, cfg, upstream.Options{IdleTTL: 30 * time.Millisecond})
	prints := r.ready()
	if _, e := r.Do(context.Background(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], From: upstream.Downstream{Session: "s"}}); e != nil {
		t.Fatal(e)
	}
	r.await("idle connection ends", func() bool { return rec.Sessions() == 1 })
}

// Close waits for calls under way and refuses new ones.
func TestDrain(t *testing.T) {
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: 300 * time.Millisecond}}}
	overAll(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		done := make(chan *upstream.Error, 1)
		go func() {
			_, e := r.call(prints, "late", `{}`)
			done <- e
		}()
		await(t, "call arrives", func() bool { return len(rec.Calls()) == 1 })
		r.Close(context.Background())
		if e := <-done; e != nil {
			t.Errorf("the call under way: %v", e)
		}
		_, e := r.call(prints, "late", `{}`)
		wantError(t, e, upstream.Unavailable, false)
	})
}

// A server sees the variables that are allowed and its own, and none of our
// secrets.
func TestEnvironment(t *testing.T) {
	t.Setenv("TOOLGATE_TOKEN", "secret-1")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-2")
	t.Setenv("LC_ALL", "C.UTF-8")
	rec := recorder.Stdio(t, recorder.Config{Environ: true, Tools: []recorder.Tool{{Name: "env"}}})
	cfg := stdioServer(rec)
	cfg.Env["OWN"] = "mine"
	cfg.Env["HOME"] = "/elsewhere"
	cfg.Dir = t.TempDir()
	r := start(t, cfg, upstream.Options{})
	result, e := r.call(r.ready(), "env", `{}`)
	if e != nil {
		t.Fatal(e)
	}
	got := string(result)
	for _, want := range []string{"PATH=", "LC_ALL=C.UTF-8", "OWN=mine", "HOME=/elsewhere"} {
		if !strings.Contains(got, want) {
			t.Errorf("environment lacks %s", want)
		}
	}
	for _, not := range []string{"secret-", "TOOLGATE_", "HOME=" + os.Getenv("HOME")} {
		if strings.Contains(got, not) {
			t.Errorf("environment has %s", not)
		}
	}
}

// A command with a path is looked for below the server's own directory.
func TestRelativeCommand(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho was here >&2\nexit 7\n"
	if err := os.WriteFile(filepath.Join(dir, "server.sh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	r := start(t, config.Server{Name: "x", Type: "stdio", Command: "./server.sh", Dir: dir, Timeout: patience}, upstream.Options{})
	r.await("failure", func() bool { return r.Status().State == upstream.StateFailed })
	if err := r.Status().Err.Error(); !strings.Contains(err, "exit status 7: was here") {
		t.Errorf("error %q", err)
	}
}

// The command "toolgate" is this binary, wherever it lies.
func TestOwnCommand(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	cfg := stdioServer(rec)
	cfg.Command = "toolgate"
	r := start(t, cfg, upstream.Options{Executable: rec.Command})
	if _, e := r.call(r.ready(), "echo", `{}`); e != nil {
		t.Error(e)
	}
}

// A server that does not read holds up nobody beyond the deadline, and what
// still waits behind it was certainly not sent.
func TestDeaf(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{StopReading: true, Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}}})
	r := start(t, stdioServer(rec), upstream.Options{})
	prints := r.ready()
	for _, tc := range []struct {
		size int
		sent bool
	}{{1, true}, {1 << 20, true}, {1, false}, {1 << 20, false}} {
		call := upstream.Call{
			Tool: "hang", Fingerprint: prints["hang"], Timeout: 200 * time.Millisecond,
			Arguments: json.RawMessage(`{"x":"` + strings.Repeat("x", tc.size) + `"}`),
		}
		var e *upstream.Error
		if tc.sent {
			e = r.timeOut(call)
		} else {
			_, e = r.Do(context.Background(), call)
		}
		wantError(t, e, upstream.Timeout, tc.sent)
	}
	await(t, "the first call arrives", func() bool { return len(rec.Calls()) > 0 })
	if got := len(rec.Calls()); got != 1 {
		t.Errorf("%d calls arrived, want 1", got)
	}
}
