package upstream_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// Clients are notified that resources and prompts may be others after a restart.
func TestRestartAnnouncesLists(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Capabilities: json.RawMessage(`{"prompts":{},"resources":{}}`)})
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
