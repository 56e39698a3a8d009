package upstream_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/registry/upstream"
)

// Only time counts in which nobody is asked, and progress starts it again.
func TestPatience(t *testing.T) {
	type act struct {
		after time.Duration
		do    func(p upstream.Deadline)
	}
	hold, release, progress := upstream.Deadline.Hold, upstream.Deadline.Release, upstream.Deadline.Progress
	holdAll := func(p upstream.Deadline) { p.Group.Hold() }
	releaseAll := func(p upstream.Deadline) { p.Group.Release() }
	for _, tc := range []struct {
		name  string
		acts  []act
		ends  time.Duration // 0 = never
		total bool          // ended by the total time
	}{
		{name: "nobody is asked", ends: 10 * time.Second},
		{name: "one question", acts: []act{{4 * time.Second, hold}, {time.Hour, release}}, ends: time.Hour + 10*time.Second},
		{name: "two questions at once", acts: []act{{4 * time.Second, hold}, {time.Second, hold}, {time.Minute, release}, {time.Minute, release}}, ends: 2*time.Minute + 11*time.Second},
		{name: "one after the other", acts: []act{{4 * time.Second, hold}, {time.Minute, release}, {5 * time.Second, hold}, {time.Minute, release}}, ends: 2*time.Minute + 10*time.Second},
		{name: "one that is not answered", acts: []act{{9 * time.Second, hold}}, ends: 0},
		{name: "one of the session", acts: []act{{4 * time.Second, holdAll}, {time.Hour, releaseAll}}, ends: time.Hour + 10*time.Second},
		{name: "one of each", acts: []act{{4 * time.Second, holdAll}, {time.Second, hold}, {time.Minute, releaseAll}, {time.Minute, release}}, ends: 2*time.Minute + 11*time.Second},
		{name: "too late", acts: []act{{11 * time.Second, hold}}, ends: 10 * time.Second},
		{name: "progress", acts: []act{{9 * time.Second, progress}}, ends: 19 * time.Second},
		{name: "silence after progress", acts: []act{{time.Second, progress}, {9 * time.Second, progress}}, ends: 20 * time.Second},
		{name: "progress for ever", acts: []act{{9 * time.Second, progress}, {9 * time.Second, progress}, {9 * time.Second, progress}}, ends: 30 * time.Second, total: true},
		{name: "progress before a question", acts: []act{{9 * time.Second, progress}, {time.Second, hold}, {time.Hour, release}}, ends: time.Hour + 19*time.Second},
		{name: "progress during a question", acts: []act{{9 * time.Second, hold}, {time.Hour, progress}, {time.Hour, release}}, ends: 2*time.Hour + 19*time.Second},
		{name: "a question before the end of all", acts: []act{{9 * time.Second, progress}, {9 * time.Second, progress}, {9 * time.Second, progress}, {time.Second, hold}, {time.Hour, release}}, ends: time.Hour + 30*time.Second, total: true},
		{name: "progress too late", acts: []act{{11 * time.Second, progress}}, ends: 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				group := &upstream.Group{}
				ctx, p := upstream.WithDeadline(t.Context(), 10*time.Second, 30*time.Second, group)
				defer p.Done()
				var ended time.Duration
				defer context.AfterFunc(ctx, func() { ended = time.Since(begun) })()
				for _, a := range tc.acts {
					time.Sleep(a.after)
					a.do(p)
				}
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				if ended != tc.ends {
					t.Errorf("ended after %v, want %v", ended, tc.ends)
				}
				if late := errors.Is(context.Cause(ctx), context.DeadlineExceeded); late != (tc.ends != 0) {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				if total := errors.Is(context.Cause(ctx), upstream.ErrMaxTimeout); total != tc.total {
					t.Errorf("cause %v, by the total time %v, want %v", context.Cause(ctx), total, tc.total)
				}
			})
		})
	}
}

// Progress of a call, and of no other, starts its time again.
func TestProgressKeepsCallAlive(t *testing.T) {
	for _, tc := range []struct {
		name  string
		token string // "" = the call's own
		times int    // that progress is reported, each 9 s after the last
		ends  time.Duration
		fate  error // nil = a result
	}{
		{name: "result after progress", times: 2, ends: 27 * time.Second},
		{name: "silence", ends: 10 * time.Second, fate: context.DeadlineExceeded},
		{name: "progress of another call", token: "other", times: 2, ends: 10 * time.Second, fate: context.DeadlineExceeded},
		{name: "progress for ever", times: 100, ends: time.Minute, fate: upstream.ErrMaxTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				e := upstream.DoWithin(10*time.Second, time.Minute, func(line []byte, say func(string)) {
					var msg struct{ ID string }
					if json.Unmarshal(line, &msg) != nil || msg.ID == "" {
						return // the notification that the call is cancelled
					}
					go func() {
						for range tc.times {
							time.Sleep(9 * time.Second)
							say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"` + cmp.Or(tc.token, msg.ID) + `"}}`)
						}
						if tc.times > 0 {
							time.Sleep(9 * time.Second)
							say(`{"jsonrpc":"2.0","id":"` + msg.ID + `","result":{}}`)
						}
					}()
				})
				took := time.Since(begun)
				time.Sleep(24 * time.Hour) // the server says the rest to nobody
				synctest.Wait()
				if took != tc.ends {
					t.Errorf("it took %v, want %v", took, tc.ends)
				}
				switch {
				case (e != nil) != (tc.fate != nil):
					t.Errorf("error %v, want %v", e, tc.fate)
				case e != nil && (e.Kind != upstream.Timeout || !e.Sent || !errors.Is(e, tc.fate)):
					t.Errorf("error %v of kind %v, sent %v; want %v", e, e.Kind, e.Sent, tc.fate)
				}
			})
		})
	}
}

// The caller's own end always counts, and whoever comes while a question is
// under way waits for it too.
func TestPatienceOfLatecomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := &upstream.Group{}
		group.Hold()
		parent, stop := context.WithCancel(t.Context())
		ctx, p := upstream.WithDeadline(parent, time.Second, time.Second, group)
		defer p.Done()
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Error("it ended while a question was under way")
		}
		stop()
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("cause %v after the caller gave up", context.Cause(ctx))
		}
		group.Release()
	})
}

// A question has ten minutes.
func TestQuestionIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		home := &diary{answer: func(ctx context.Context, _ upstream.Question) upstream.Answer {
			<-ctx.Done()
			if took := time.Since(begun); took != 10*time.Minute {
				t.Errorf("it had %v", took)
			}
			return upstream.Answer{Error: json.RawMessage(`{"code":-32603,"message":"nobody came"}`)}
		}}
		var back []string
		end := upstream.Hear(home, []byte(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`), func(line []byte) { back = append(back, string(line)) })
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if len(back) != 1 || back[0] != `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"nobody came"}}` {
			t.Errorf("the server got %q", back)
		}
		end()
	})
}
