package ndjson_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/ndjson"
)

// pen notes each Write, and fails from the one on that it is told.
type pen struct {
	written []string
	fails   int
}

func (p *pen) Write(b []byte) (int, error) {
	if len(p.written) == p.fails {
		return 0, errors.New("dry")
	}
	p.written = append(p.written, string(b))
	return len(b), nil
}

func TestSink(t *testing.T) {
	p := &pen{fails: 2}
	s := ndjson.NewSink(p)
	for _, message := range []string{"a", "b"} {
		s.Send([]byte(message))
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	s.Send([]byte("c"))
	if s.Await(t.Context(), nil) {
		t.Error("nobody is told that it broke")
	}
	p.fails = 9
	s.Send([]byte("d"))
	if !slices.Equal(p.written, []string{"a\n", "b\n"}) {
		t.Errorf("written %q", p.written)
	}
	if err := s.Err(); err == nil || err.Error() != "writing to the client: dry" {
		t.Errorf("got %v", err)
	}
}

// Await ends with what it waits for, with the context, and when a Write fails.
func TestAwait(t *testing.T) {
	s, until := ndjson.NewSink(&pen{}), make(chan struct{}, 1)
	until <- struct{}{}
	if !s.Await(t.Context(), until) {
		t.Error("what has happened was not seen")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if s.Await(ctx, until) {
		t.Error("the context has ended, and nothing has happened")
	}
	s.Send([]byte("x"))
	if s.Await(t.Context(), until) {
		t.Error("nobody reads, and nothing has happened")
	}
}

// Work may take as long as it is given after other work has begun, is cancelled then or
// when nobody reads the answers, and is given up a little later.
func TestDrain(t *testing.T) {
	for _, tt := range []struct {
		name            string
		takes           time.Duration // until it ends by itself
		heeds           bool          // ends when it is cancelled
		done, cancelled bool
		begins, breaks  time.Duration // when other work begins and a Write fails
		stops           time.Duration // when the context ends
		after           time.Duration
	}{
		{"in time", time.Second, false, true, false, 0, 0, 0, time.Second},
		{"when cancelled", time.Hour, true, true, true, 0, 0, 0, 10 * time.Second},
		{"never", time.Hour, false, false, true, 0, 0, 0, 15 * time.Second},
		{"after other work", time.Hour, true, true, true, 9 * time.Second, 0, 0, 19 * time.Second},
		{"in time after other work", 18 * time.Second, false, true, false, 9 * time.Second, 0, 0, 18 * time.Second},
		{"when nobody reads", time.Hour, true, true, true, 0, 3 * time.Second, 0, 3 * time.Second},
		{"after the context", time.Hour, true, true, true, 9 * time.Second, 0, 8 * time.Second, 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var work sync.WaitGroup
				stop, cancelled, began := make(chan struct{}), false, time.Now()
				work.Go(func() {
					select {
					case <-time.After(tt.takes):
					case <-stop:
					}
				})
				begun, out := make(chan struct{}), ndjson.NewSink(&pen{})
				if tt.begins > 0 {
					time.AfterFunc(tt.begins, func() { begun <- struct{}{} })
				}
				if tt.breaks > 0 {
					time.AfterFunc(tt.breaks, func() { out.Send([]byte("x")) })
				}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				if tt.stops > 0 {
					time.AfterFunc(tt.stops, end)
				}
				done := out.Drain(ctx, &work, begun, 10*time.Second, func() {
					cancelled = true
					if tt.heeds {
						close(stop)
					}
				})
				if done != tt.done || cancelled != tt.cancelled || time.Since(began) != tt.after {
					t.Errorf("done %v, cancelled %v, after %v", done, cancelled, time.Since(began))
				}
				work.Wait()
				synctest.Wait()
			})
		})
	}
}
