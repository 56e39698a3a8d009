package approval_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
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

// A change wakes those who wait for its ticket, and those who wait for every ticket; the
// end of their wait leaves nothing behind.
func TestAChangeWakesWhoWaitsForItsTicket(t *testing.T) {
	if postgres.Used() {
		t.Skip("the server also wakes a little later")
	}
	w := newWorld(t)
	k, other := w.claim(transfer(hundred), approval.Pending), w.claim(transfer(`{"n":1}`), approval.Pending)
	woken, all := w.Woken(k.ID), w.Woken("")
	w.approve(other.ID, ann)
	if len(woken) != 0 || len(all) != 1 {
		t.Errorf("a change of another ticket woke %d, and %d of every ticket", len(woken), len(all))
	}
	w.approve(k.ID, ann)
	if len(woken) != 1 {
		t.Error("a change of the ticket woke nobody")
	}
	if !w.Awaited(k.ID) || w.Awaited(other.ID) {
		t.Error("it is not known who is waited for")
	}
	before := w.Waiting()
	if err := w.Wait(t.Context(), k.ID); err != nil {
		t.Error(err)
	}
	if err := w.Wait(cancelled(), other.ID); err == nil {
		t.Error("no error of a wait that has ended")
	}
	if now := w.Waiting(); now != before {
		t.Errorf("%d tickets are waited for, %d before", now, before)
	}
}

// hears makes changes until another process on a server, which has looked at all tickets, is notified of one, so
// that it is notified of each from then on.
func (w *world) hears(other *approval.Tickets) {
	w.t.Helper()
	program.Await(w.t, "the state is compared with the trail", func() bool { return other.Check(w.t.Context()) == nil })
	all := other.Woken("")
	for n := -1; ; n-- {
		w.claim(transfer(fmt.Sprintf(`{"n":%d}`, n)), approval.Pending)
		select {
		case <-all:
			return
		case <-time.After(time.Second):
		}
	}
}

// On a server, a caller at another replica is woken by the notification of the decision: Wait returns although
// it never looks by itself.
func TestADecisionWakesACallerElsewhere(t *testing.T) {
	if !postgres.Used() {
		t.Skip("processes on a file look for changes")
	}
	for name, decide := range map[string]func(w *world, id string){
		"approved":   func(w *world, id string) { w.approve(id, ann) },
		"denied":     func(w *world, id string) { w.deny(id, ann) },
		"superseded": func(w *world, id string) { w.t.Helper(); _ = w.Supersede(w.t.Context(), id, "agent", "not wanted") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var looks atomic.Int64
			other := w.open(approval.Options{Now: func() time.Time { looks.Add(1); return w.clock() }})
			other.NeverPoll()
			w.hears(other)
			k := w.claim(transfer(hundred), approval.Pending)
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			defer stop()
			waiting, looked := other.Waiting(), looks.Load()
			ended := make(chan error, 1)
			go func() { ended <- other.Wait(ctx, k.ID) }()
			program.Await(t, "the caller has looked, and waits", func() bool { return other.Waiting() > waiting && looks.Load() > looked })
			decide(w, k.ID)
			if err := <-ended; err != nil {
				t.Errorf("nobody has woken the caller: %v", err)
			}
		})
	}
}

// On a server, a change wakes those who wait for its ticket in other processes, and those
// who wait for other tickets read nothing meanwhile.
func TestChangesWakeOtherProcesses(t *testing.T) {
	if !postgres.Used() {
		t.Skip("processes on a file look for changes")
	}
	w := newWorld(t)
	var looks atomic.Int64
	other := w.open(approval.Options{Now: func() time.Time { looks.Add(1); return w.clock() }})
	k, waits := w.claim(transfer(hundred), approval.Pending), w.claim(transfer(`{"n":-1000}`), approval.Pending)
	w.hears(other)
	const changes = 100
	change := func(n int) { // of tickets that nobody waits for
		h := transfer(fmt.Sprintf(`{"n":%d}`, n))
		h.Principal.Subject = fmt.Sprintf("agent%d", n/50)
		w.claim(h, approval.Pending)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- other.Wait(ctx, waits.ID) }()
	woken := other.Woken(k.ID)
	before := looks.Load()
	for n := range changes {
		change(n)
	}
	w.approve(k.ID, ann)
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Error("nobody was woken")
	}
	polls := int64(time.Since(began) / approval.PollEvery)
	if n := looks.Load() - before; n > polls+5 { // the first look, and what the process does in any case
		t.Errorf("%d looks during %d changes of other tickets, %d of them because time passed", n, changes, polls)
	}
	stop()
	<-ended
}
