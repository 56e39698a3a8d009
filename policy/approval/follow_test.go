package approval_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/internal/testkit/filled"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

// events takes the next n of a sequence and gives it back.
func events(t testing.TB, next func() (approval.Event, error, bool), n int) (got []approval.Change) {
	t.Helper()
	for range n {
		e, err, more := next()
		if err != nil || !more {
			t.Fatalf("after %d of %d events: %v", len(got), n, err)
		}
		if e.Seq != e.Change.Seq || e.Ticket.ID == "" {
			t.Errorf("event %+v", e)
		}
		got = append(got, e.Change)
	}
	return got
}

func pull(t testing.TB, seq iter.Seq2[approval.Event, error]) func() (approval.Event, error, bool) {
	t.Helper()
	next, stop := iter.Pull2(seq)
	t.Cleanup(stop)
	return next
}

// Every change of every process comes once and in order, from wherever one
// begins.
func TestFollow(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w := newWorld(t)
	second := w.open(approval.Options{})
	k := w.claim(pair(), approval.Pending)
	now := pull(t, second.Follow(ctx, -1)) // what was before is not news
	w.approve(k.ID, ann)
	if _, err := second.Decide(ctx, approval.Vote{ID: k.ID, Approver: bob, Approve: true}); err != nil {
		t.Fatal(err)
	}
	w.claim(pair(), approval.Granted)
	all := pull(t, w.Follow(ctx, 0))
	history := w.get(k.ID).History
	if diff := cmp.Diff(history, events(t, all, 4)); diff != "" {
		t.Errorf("from the beginning (-history +events):\n%s", diff)
	}
	if diff := cmp.Diff(history[1:], events(t, now, 3)); diff != "" {
		t.Errorf("from then on (-history +events):\n%s", diff)
	}
	if diff := cmp.Diff(history[2:], events(t, pull(t, w.Follow(ctx, history[1].Seq)), 2)); diff != "" {
		t.Errorf("from a number on (-history +events):\n%s", diff)
	}

	// What comes while one waits is told, in this process and in others.
	finished := make(chan error, 1)
	go func() { finished <- w.Finish(ctx, k.ID, approval.StateDone, []byte(answer), "") }()
	want := []approval.Change{{Seq: 5, At: noon, Who: "toolgate", From: "dispatching", To: "done", Reason: "the upstream answered", Digest: k.Digest}}
	for where, next := range map[string]func() (approval.Event, error, bool){"here": all, "in another process": now} {
		if diff := cmp.Diff(want, events(t, next, 1)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", where, diff)
		}
	}
	if err := <-finished; err != nil {
		t.Error(err)
	}
}

// Two changes are under way at once, and the one with the higher number is made first: who
// follows gets both, in order, from whenever it began. A change that fails holds back none.
func TestFollowSeesAChangeThatIsMadeLate(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w := newWorld(t)
	db := openStore(t, w.path)
	statements := filled.Record(db)
	watching, err := approval.New(ctx, db, approval.Options{Now: w.clock, Keys: ring(t, w.path)})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Close()
	before := pull(t, watching.Follow(ctx, 0))
	for _, fails := range []error{nil, errors.New("the trail is full")} {
		begun, goOn, late := make(chan int64), make(chan struct{}), make(chan error)
		slow := w.open(approval.Options{Changed: func(_ context.Context, _ *sql.Tx, _ approval.Ticket, c approval.Change) error {
			begun <- c.Seq
			<-goOn
			return fails
		}})
		go func() {
			_, err := slow.Claim(ctx, transfer(fmt.Sprintf(`{"n":"slow","fails":%v}`, fails != nil)))
			late <- err
		}()
		first := <-begun
		other := transfer(fmt.Sprintf(`{"n":"quick","fails":%v}`, fails != nil))
		other.Principal.Subject = "another"
		var got []approval.Change
		if !postgres.Used() { // changes of a file are made one after the other
			close(goOn)
		}
		k := w.claim(other, approval.Pending)
		during := make(chan func() (approval.Event, error, bool))
		go func() { during <- pull(t, w.Follow(ctx, -1)) }()
		if postgres.Used() {
			second := w.get(k.ID).History[0].Seq
			if second <= first {
				t.Fatalf("the change that was made first has number %d, and the other %d", second, first)
			}
			next := make(chan []approval.Change, 1)
			go func() { next <- events(t, before, 1) }()
			statements.Count()
			for looks := 0; looks < 20; looks += statements.Count() { // the follower looks, and waits
				if ctx.Err() != nil || len(next) > 0 {
					t.Fatalf("change %d came before %d: %v", second, first, ctx.Err())
				}
				runtime.Gosched()
			}
			close(goOn)
			got = <-next
		}
		if err := <-late; (err != nil) != (fails != nil) {
			t.Fatal(err)
		}
		want := []approval.Change{w.get(k.ID).History[0]}
		if fails == nil {
			found, err := w.List(ctx, approval.Filter{Principal: "agent"})
			if err != nil || len(found) != 1 {
				t.Fatalf("%d tickets, %v", len(found), err)
			}
			want = append([]approval.Change{w.get(found[0].ID).History[0]}, want...)
		}
		if diff := cmp.Diff(want, append(got, events(t, before, len(want)-len(got))...)); diff != "" {
			t.Errorf("fails: %v (-want +got):\n%s", fails, diff)
		}
		began := <-during
		last := w.claim(transfer(fmt.Sprintf(`{"n":"last","fails":%v}`, fails != nil)), approval.Pending)
		if diff := cmp.Diff(w.get(last.ID).History, events(t, began, 1)); diff != "" {
			t.Errorf("who began to follow meanwhile (-want +got):\n%s", diff)
		}
		events(t, before, 1)
		w.deny(last.ID, ann)
		events(t, before, 1)
	}
}

// A store without live tickets is looked at again once another process has changed it:
// what that process leaves behind expires here.
func TestRestEndsWithAChangeOfAnotherProcess(t *testing.T) {
	w := newWorld(t)
	second := w.open(approval.Options{})
	k := claimOn(t, second, pair(), approval.Pending)
	w.approve(k.ID, ann)
	w.deny(k.ID, bob)
	for range 2 { // the second look finds the store at rest
		if held, err := w.Held(t.Context()); held != 0 || err != nil {
			t.Fatalf("%d held, %v; want none", held, err)
		}
	}
	left := claimOn(t, second, transfer(hundred), approval.Pending)
	w.pass(time.Hour)
	if held, err := w.Held(t.Context()); held != 0 || err != nil {
		t.Fatalf("%d held after their time, %v; want none", held, err)
	}
	w.wantState(left.ID, approval.StateExpired)
}

// A ticket that nobody decides on is told to expire by following alone.
func TestFollowSeesExpiry(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w := newWorld(t)
	next := pull(t, w.Follow(ctx, -1))
	k := w.claim(transfer(hundred), approval.Pending)
	events(t, next, 1)
	w.pass(10 * time.Minute)
	want := []approval.Change{{From: "proposed", To: "expired", Who: "toolgate"}}
	if diff := cmp.Diff(want, events(t, next, 1), cmpopts.IgnoreFields(approval.Change{}, "Seq", "At", "Reason", "Digest")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w.wantState(k.ID, approval.StateExpired)
}

// However many there are, none is left out.
func TestFollowAfterALongTime(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w := newWorld(t)
	const many = 210 // more than are read twice
	for i := range many {
		h := transfer(fmt.Sprintf(`{"n":%d}`, i))
		h.Principal.Subject = fmt.Sprintf("agent%d", i%10)
		w.claim(h, approval.Pending)
	}
	for i, c := range events(t, pull(t, w.Follow(ctx, 0)), many) {
		if c.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d", i+1, c.Seq)
		}
	}
}

func TestFollowEnds(t *testing.T) {
	w := newWorld(t)
	w.claim(transfer(hundred), approval.Pending)
	ctx, stop := context.WithCancel(t.Context())
	next := pull(t, w.Follow(ctx, 0))
	events(t, next, 1)
	stop()
	if e, err, more := next(); more {
		t.Errorf("after the end: %+v, %v", e, err)
	}
	if e, err, more := pull(t, w.Follow(cancelled(), -1))(); more {
		t.Errorf("of a caller that went away: %+v, %v", e, err)
	}
	db := openStore(t, w.path)
	broken, err := approval.New(t.Context(), db, approval.Options{Now: w.clock, Keys: ring(t, w.path)})
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, after := range []int64{-1, 0} {
		next := pull(t, broken.Follow(t.Context(), after))
		if _, err, more := next(); err == nil || !more {
			t.Errorf("a store that is closed: %v", err)
		}
		if _, err, more := next(); more {
			t.Errorf("the sequence went on after its error: %v", err)
		}
	}
}
