package upstream_test

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// never is a clock whose pauses do not end.
func never(time.Duration) <-chan time.Time { return nil }

// A server that is restarted gets new connections, for its sessions too. A call under way
// ends with an unknown outcome, one that comes meanwhile waits, and what a session has said
// is said again.
func TestRestart(t *testing.T) {
	cfg := library()
	cfg.Tools = append(cfg.Tools, recorder.Tool{Name: "hang", Does: recorder.Hang})
	overLibrary(t, cfg, upstream.Options{}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		me, _, _ := from("me")
		if e := r.ask(me, "resources/subscribe", `{"uri":"a:1"}`); e != nil {
			t.Fatal(e)
		}
		under := make(chan *upstream.Error, 1)
		go func() { under <- r.do(context.Background(), me, "hang", `{}`) }()
		await(t, "the call arrives", func() bool { return len(rec.Calls()) == 1 })
		before := rec.Starts()
		_, n := said(rec, 0)
		restarted := r.Restart()
		wantError(t, <-under, upstream.Failed, true)
		if e := r.do(t.Context(), me, "echo", `{}`); e != nil {
			t.Errorf("a call during the restart: %v", e)
		}
		<-restarted
		if got := r.Status().State; got != upstream.StateReady {
			t.Errorf("state %s", got)
		}
		got, _ := said(rec, n)
		slices.Sort(got)
		if diff := cmp.Diff([]string{`resources/subscribe {"uri":"a:1"}`, echoed}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if rec.URL == "" {
			r.await("new processes", func() bool { return len(rec.Starts()) == len(before)+2 })
			r.await("no old process", func() bool { return !slices.ContainsFunc(before, alive) })
		}
	})
}

// A server that has failed is restarted without its pause, and one that hangs at its
// start ends before it starts again.
func TestRestartOfAFailedServer(t *testing.T) {
	for name, cfg := range map[string]recorder.Config{"failed": {CrashAtStart: true}, "hanging": {HangAtStart: true}} {
		t.Run(name, func(t *testing.T) {
			rec := recorder.Stdio(t, cfg)
			r := start(t, stdioServer(rec), upstream.Options{After: never})
			r.await("the first start", func() bool {
				return len(rec.Starts()) == 1 && (name == "hanging" || r.Status().State == upstream.StateFailed)
			})
			for n := 2; n < 4; n++ {
				r.Restart()
				r.await("another start", func() bool { return len(rec.Starts()) == n })
				if starts := rec.Starts(); alive(starts[n-2]) {
					t.Error("the process before it is alive")
				}
				r.await("its failure", func() bool { return name == "hanging" || r.Status().State == upstream.StateFailed })
			}
		})
	}
}

// A server is restarted while connections to it are being opened: the calls that wait for
// them wait for the new server instead, at most for start_wait, and the processes that were
// being started end.
func TestRestartDuringOpening(t *testing.T) {
	parts.Long(t, "waits for servers that start slowly")
	const callers = 8
	for _, tc := range []struct {
		name      string
		isolation string
		spare     bool
		startWait time.Duration // 0 = longer than the test
		alive     int           // processes at the end
	}{
		{name: "shared", isolation: "shared", alive: 1},
		{name: "session", isolation: "session", alive: 1 + callers},
		{name: "spare", isolation: "session", spare: true, alive: 1 + callers},
		{name: "slow", isolation: "session", startWait: 50 * time.Millisecond, alive: 1 + callers},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gate := recorder.NewGate(t)
			gate.Open()
			rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}, Gate: gate.Address})
			cfg := stdioServer(rec)
			cfg.Isolation, cfg.Spare, cfg.StartWait = tc.isolation, tc.spare, tc.startWait
			r := start(t, cfg, upstream.Options{})
			r.ready()
			gate.Shut()
			opening := callers
			if tc.isolation == "shared" {
				opening = 1
				r.Restart()
			}
			if tc.spare {
				me, _, _ := from("0")
				r.Profile(t.Context(), me)
				r.await("the spare", func() bool { return gate.Held() == 1 })
			}
			answers := make(chan *upstream.Error, callers)
			call := func() {
				for n := range callers {
					me, _, _ := from(strconv.Itoa(n))
					go func() { answers <- r.do(context.Background(), me, "echo", `{}`) }()
				}
			}
			call()
			r.await("connections are being opened", func() bool { return gate.Held() == opening && r.Waiting() == 0 })
			before := rec.Starts()
			restarted := r.Restart()
			r.await("no process from before", func() bool { return !slices.ContainsFunc(before, alive) })
			if tc.startWait > 0 {
				for range callers {
					wantError(t, <-answers, upstream.Unavailable, false)
				}
			}
			gate.Open()
			<-restarted
			if tc.startWait > 0 {
				r.await("ready", func() bool { return r.Status().State == upstream.StateReady })
				call()
			}
			for range callers {
				if e := <-answers; e != nil {
					t.Error(e)
				}
			}
			var left []int
			r.await("one process for each connection", func() bool {
				left = slices.DeleteFunc(rec.Starts(), func(pid int) bool { return !alive(pid) })
				return len(left) == tc.alive
			})
		})
	}
}

// Clients are notified after a restart that resources and prompts may be others, where
// toolgate cannot list and compare them.
func TestRestartAnnouncesLists(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Capabilities: json.RawMessage(`{"prompts":{},"resources":{}}`), Answers: map[string]json.RawMessage{
		"prompts/list": json.RawMessage(`[]`), "resources/list": json.RawMessage(`[]`),
	}})
	announced := make(chan string, 8)
	r := start(t, httpServer(rec), upstream.Options{ListChanged: func(method string) { announced <- method }})
	r.ready()
	if len(announced) > 0 {
		t.Errorf("announced %s at the first start", <-announced)
	}
	r.Restart()
	r.ready()
	r.await("announcements", func() bool { return len(announced) == 2 })
}
