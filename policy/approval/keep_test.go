package approval_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/filled"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy/approval"
)

// A held call costs the same whatever has ended before: no statement of its path, of an
// approver who lists and votes, or of a follower, reads a whole table.
func TestOldTicketsCostAHeldCallNothing(t *testing.T) {
	parts.Long(t, "makes 20,000 tickets")
	w := newWorld(t)
	old := w.claim(transfer(hundred), approval.Pending)
	w.approve(old.ID, ann)
	w.claim(transfer(hundred), approval.Granted)
	w.finish(old.ID, approval.StateDone, answer, "")
	if err := filled.Tickets(t.Context(), openStore(t, w.path), old.ID, 1, 20_000); err != nil {
		t.Fatal(err)
	}
	db := openStore(t, w.path)
	statements := filled.Record(db)
	tickets, err := approval.New(t.Context(), db, approval.Options{Keys: ring(t, w.path), Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer tickets.Close()
	w.Tickets = tickets
	liveHeldCall(w)
	w.pass(31 * 24 * time.Hour) // and then the retention
	w.claim(transfer(other), approval.Pending)
	for _, scan := range statements.Scans(t) {
		t.Errorf("this reads a whole table:\n%s", scan)
	}
}

// liveHeldCall makes a held call that is asked for under two policies, listed, approved, run and
// answered, while others follow and one expires.
func liveHeldCall(w *world) {
	t, ctx := w.t, w.t.Context()
	t.Helper()
	next := pull(t, w.Follow(ctx, -1))
	held := transfer(`{"n":1}`)
	w.claim(held, approval.Pending)
	held.Revision = "sha256:r1"
	k := w.claim(held, approval.Pending)
	w.claim(transfer(`{"n":2}`), approval.Pending)
	f := approval.Filter{Awaiting: ann, Viewer: ann, States: []approval.State{approval.StateProposed, approval.StateApproved}}
	_, err := w.List(ctx, f)
	f.Before = k.ID
	_, again := w.List(ctx, f)
	_, _, counted := w.Queue(ctx)
	_, answers := w.Answering(ctx, held.Principal)
	_, live := w.Live(ctx)
	_, repeated := w.Repeated(ctx, held)
	if err := errors.Join(err, again, counted, answers, live, repeated); err != nil {
		t.Fatal(err)
	}
	w.approve(k.ID, ann)
	if _, err := w.Runnable(ctx); err != nil {
		t.Fatal(err)
	}
	w.claim(held, approval.Granted)
	if err := w.Release(ctx, k.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(ctx, k.ID); err != nil {
		t.Fatal(err)
	}
	w.claim(held, approval.Granted)
	w.finish(k.ID, approval.StateDone, answer, "")
	w.get(k.ID)
	w.pass(time.Hour)
	w.claim(transfer(`{"n":3}`), approval.Pending)
	events(t, next, 8)
}

// A list costs the same number of statements whatever it finds, and however many calls of
// other processes run.
func TestAListReadsEachTableOnce(t *testing.T) {
	w := newWorld(t)
	second := w.open(approval.Options{})
	db := openStore(t, w.path)
	statements := filled.Record(db)
	tickets, err := approval.New(t.Context(), db, approval.Options{Keys: ring(t, w.path), Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer tickets.Close()
	list := func() int {
		t.Helper()
		statements.Count()
		if _, err := tickets.List(t.Context(), approval.Filter{Viewer: ann}); err != nil {
			t.Fatal(err)
		}
		return statements.Count()
	}
	run := func(n int) {
		held := transfer(fmt.Sprintf(`{"n":%d}`, n))
		k := claimOn(t, second, held, approval.Pending)
		w.approve(k.ID, ann)
		claimOn(t, second, held, approval.Granted)
	}
	run(0)
	one := list()
	for n := range 20 {
		run(n + 1)
	}
	if many := list(); many > one {
		t.Errorf("a list of 21 tickets takes %d statements, and of one %d", many, one)
	}
}

// A ticket that has ended is deleted after its retention, with arguments, votes and
// history, and numbers of changes are not used again; an unknown one stays.
func TestRetention(t *testing.T) {
	w := newWorld(t)
	w.Tickets = w.open(approval.Options{Keep: time.Hour})
	done := w.claim(transfer(hundred), approval.Pending)
	w.approve(done.ID, ann)
	w.claim(transfer(hundred), approval.Granted)
	w.finish(done.ID, approval.StateDone, answer, "")
	lost := w.claim(transfer(other), approval.Pending)
	w.approve(lost.ID, ann)
	w.claim(transfer(other), approval.Granted)
	w.finish(lost.ID, approval.StateUnknown, "", "gone")
	last := w.get(lost.ID).History
	w.pass(10*time.Minute + time.Hour - 2*time.Second)
	w.claim(transfer(`{"n":1}`), approval.Pending)
	w.get(done.ID)
	w.pass(4 * time.Second)
	k := w.claim(transfer(`{"n":2}`), approval.Pending)
	if _, err := w.Get(t.Context(), done.ID); err == nil {
		t.Error("the ticket is still there")
	}
	if got := w.get(lost.ID); got.State != approval.StateUnknown {
		t.Errorf("the unknown ticket is %s", got.State)
	}
	if first := w.get(k.ID).History[0].Seq; first <= last[len(last)-1].Seq {
		t.Errorf("change %d again", first)
	}
	for _, table := range []string{"approvals WHERE id", "approval_votes WHERE ticket", "approval_history WHERE ticket"} {
		var n int
		if err := openStore(t, w.path).Read.QueryRow(fmt.Sprintf("SELECT count(*) FROM %s = ?", table), done.ID).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows of %s, %v", n, table, err)
		}
	}
}
