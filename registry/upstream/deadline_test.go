package upstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/registry/upstream"
)

// Only time counts in which nobody is asked.
func TestPatience(t *testing.T) {
	type act struct {
		after time.Duration
		do    func(p upstream.Deadline)
	}
	hold, release := upstream.Deadline.Hold, upstream.Deadline.Release
	holdAll := func(p upstream.Deadline) { p.Group.Hold() }
	releaseAll := func(p upstream.Deadline) { p.Group.Release() }
	for _, tc := range []struct {
		name string
		acts []act
		ends time.Duration // 0 = never
	}{
		{"nobody is asked", nil, 10 * time.Second},
		{"one question", []act{{4 * time.Second, hold}, {time.Hour, release}}, time.Hour + 10*time.Second},
		{"two questions at once", []act{{4 * time.Second, hold}, {time.Second, hold}, {time.Minute, release}, {time.Minute, release}}, 2*time.Minute + 11*time.Second},
		{"one after the other", []act{{4 * time.Second, hold}, {time.Minute, release}, {5 * time.Second, hold}, {time.Minute, release}}, 2*time.Minute + 10*time.Second},
		{"one that is not answered", []act{{9 * time.Second, hold}}, 0},
		{"one of the session", []act{{4 * time.Second, holdAll}, {time.Hour, releaseAll}}, time.Hour + 10*time.Second},
		{"one of each", []act{{4 * time.Second, holdAll}, {time.Second, hold}, {time.Minute, releaseAll}, {time.Minute, release}}, 2*time.Minute + 11*time.Second},
		{"too late", []act{{11 * time.Second, hold}}, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				group := &upstream.Group{}
				ctx, p := upstream.WithDeadline(t.Context(), 10*time.Second, group)
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
		ctx, p := upstream.WithDeadline(parent, time.Second, group)
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
