package approval_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

func TestWait(t *testing.T) {
	for name, end := range map[string]func(w *world, second *approval.Tickets, id string){
		"approved here": func(w *world, _ *approval.Tickets, id string) { w.approve(id, ann) },
		"denied here":   func(w *world, _ *approval.Tickets, id string) { w.deny(id, ann) },
		"expired":       func(w *world, _ *approval.Tickets, _ string) { w.pass(10 * time.Minute) },
		"superseded": func(w *world, _ *approval.Tickets, _ string) {
			h := transfer(hundred)
			h.Revision = "sha256:r1"
			w.claim(h, approval.Pending)
		},
		"decided before": nil,
		"approved by another process": func(w *world, second *approval.Tickets, id string) {
			if _, err := second.Decide(w.t.Context(), approval.Vote{ID: id, Approver: ann, Approve: true}); err != nil {
				w.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			second := w.open(approval.Options{})
			k := w.claim(transfer(hundred), approval.Pending)
			if end == nil {
				w.approve(k.ID, ann)
				end = func(*world, *approval.Tickets, string) {}
			}
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			answered := make(chan error, 3)
			for range cap(answered) {
				go func() { answered <- w.Wait(ctx, k.ID) }()
			}
			end(w, second, k.ID)
			for range cap(answered) {
				if err := <-answered; err != nil {
					t.Error(err)
				}
			}
			if s := w.get(k.ID).State; s == approval.StateProposed {
				t.Error("Wait returned for a ticket that waits")
			}
		})
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if err := w.Wait(ctx, k.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := w.Wait(cancelled(), k.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if err := w.Wait(t.Context(), "apr_none"); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

// On a server, a change wakes those who wait in other processes.
func TestChangesWakeOtherProcesses(t *testing.T) {
	if !postgres.Used() {
		t.Skip("processes on a file look for changes")
	}
	w := newWorld(t)
	other := w.open(approval.Options{})
	k := w.claim(transfer(hundred), approval.Pending)
	for n, listens := 0, false; !listens; n++ {
		woken := other.Woken()
		w.claim(transfer(fmt.Sprintf(`{"n":%d}`, n)), approval.Pending)
		select {
		case <-woken:
			listens = true
		case <-time.After(time.Second):
		}
	}
	woken := other.Woken()
	w.approve(k.ID, ann)
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Error("nobody was woken")
	}
}
