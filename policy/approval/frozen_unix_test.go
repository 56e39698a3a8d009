//go:build unix

package approval_test

import (
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

// A process that is frozen while it spends a grant stops nobody else: other calls are held,
// voted on, listed and run meanwhile. Its own call is made once: by the next caller, when
// the server has ended its transaction; or by the process itself, where its locks cannot
// be taken away.
func TestAFrozenProcessStopsNobody(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	frozen := start(t, "freeze", w.path)
	defer frozen.Process.Kill() // it may have ended
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := frozen.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	if !postgres.Used() {
		signal(syscall.SIGCONT)
		if err := frozen.in.Close(); err != nil {
			t.Fatal(err)
		}
		if said := frozen.lines(t, 1); said != "granted" {
			t.Errorf("the frozen process got %q", said)
		}
		frozen.ends(t)
		w.claim(transfer(hundred), approval.Unknown) // it ended without an outcome
		return
	}
	held := transfer(other)
	held.Principal.Subject = "another"
	second := w.claim(held, approval.Pending)
	w.approve(second.ID, ann)
	w.claim(held, approval.Granted)
	w.finish(second.ID, approval.StateDone, answer, "")
	if found, err := w.List(t.Context(), approval.Filter{}); err != nil || len(found) != 2 {
		t.Errorf("%d tickets, %v", len(found), err)
	}
	var begun int
	if err := openStore(t, w.path).Read.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()").Scan(&begun); err != nil || begun == 0 {
		t.Errorf("the others waited for the end of the frozen transaction, %v", err)
	}
	w.claim(transfer(hundred), approval.Granted)
	signal(syscall.SIGCONT)
	if err := frozen.in.Close(); err != nil {
		t.Fatal(err)
	}
	if said := frozen.lines(t, 1); said != "" {
		t.Errorf("the frozen process got %q", said)
	}
	frozen.ends(t)
	w.finish(k.ID, approval.StateDone, answer, "")
	w.claim(transfer(hundred), approval.Replay)
}
