package upstream_test

import (
	"os"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// startSpared starts a stdio server with a connection for each session, and a spare.
func startSpared(t *testing.T, spare bool, opts upstream.Options) (*recorder.Recorder, *running) {
	t.Helper()
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	cfg := stdioServer(rec)
	cfg.Isolation, cfg.Spare = "session", spare
	r := start(t, cfg, opts)
	r.ready()
	return rec, r
}

// starts waits until n processes have been started.
func (r *running) starts(rec *recorder.Recorder, n int) {
	r.t.Helper()
	r.await("starts", func() bool { return len(rec.Starts()) == n })
}

// A session that lists tools finds its process started when it calls one. Whoever has a
// connection needs no other.
func TestSpare(t *testing.T) {
	rec, r := startSpared(t, true, upstream.Options{})
	for n, session := range []string{"first", "second"} {
		me, _, _ := from(session)
		r.Profile(t.Context(), me)
		r.starts(rec, n+2)
		for range 2 {
			if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
				t.Fatal(e)
			}
			if r.Profile(t.Context(), me); r.HasSpare() {
				t.Errorf("%s has a connection, and another process is started", session)
			}
		}
		if got := len(rec.Starts()); got != n+2 {
			t.Errorf("%d processes after the calls of %s", got, session)
		}
	}
}

// Without the setting, the process of a session starts with its first call.
func TestNoSpare(t *testing.T) {
	rec, r := startSpared(t, false, upstream.Options{})
	me, _, _ := from("me")
	r.Profile(t.Context(), me)
	if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
		t.Fatal(e)
	}
	r.Profile(t.Context(), me)
	if got := len(rec.Starts()); got != 2 {
		t.Errorf("%d processes", got)
	}
}

// A spare that has ended costs its session nothing but time.
func TestSpareThatEnded(t *testing.T) {
	rec, r := startSpared(t, true, upstream.Options{})
	me, _, _ := from("me")
	r.Profile(t.Context(), me)
	r.starts(rec, 2)
	p, err := os.FindProcess(rec.Starts()[1])
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
		t.Fatal(e)
	}
	r.starts(rec, 3)
}

// A spare ends when nobody takes it, and with a restart.
func TestSpareEnds(t *testing.T) {
	me, _, _ := from("me")
	for name, tc := range map[string]struct {
		opts upstream.Options
		end  func(*running)
	}{
		"idle":    {upstream.Options{IdleTTL: 50 * time.Millisecond}, func(*running) {}},
		"restart": {upstream.Options{}, func(r *running) { r.Restart() }},
	} {
		t.Run(name, func(t *testing.T) {
			rec, r := startSpared(t, true, tc.opts)
			r.Profile(t.Context(), me)
			r.starts(rec, 2)
			spare := rec.Starts()[1]
			tc.end(r)
			r.await("the end of the spare", func() bool { return !alive(spare) })
		})
	}
}
