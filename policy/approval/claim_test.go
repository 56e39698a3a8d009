package approval_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func TestIncompleteCallsAreRefused(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*approval.Held){
		"nobody":             func(h *approval.Held) { h.Principal = policy.Principal{Roles: []string{"treasurer"}} },
		"no role":            func(h *approval.Held) { h.Approval.Roles = nil },
		"no server":          func(h *approval.Held) { h.Server = "" },
		"no tool":            func(h *approval.Held) { h.Tool = "" },
		"no fingerprint":     func(h *approval.Held) { h.Fingerprint = "" },
		"no policy revision": func(h *approval.Held) { h.Revision = "" },
		"no digest":          func(h *approval.Held) { h.Digest = "" },
		"another digest":     func(h *approval.Held) { h.Digest = digest(other) },
	} {
		held := transfer(hundred)
		change(&held)
		if c, err := w.Claim(t.Context(), held); err == nil || c.Outcome != "" {
			t.Errorf("%s: outcome %q, error %v", name, c.Outcome, err)
		}
	}
	if all, err := w.List(t.Context(), approval.Filter{}); err != nil || len(all) != 0 {
		t.Errorf("refused calls left %d tickets, %v", len(all), err)
	}
}

func TestACallWithoutArguments(t *testing.T) {
	w := newWorld(t)
	held := transfer("")
	held.Arguments = nil
	k := w.claim(held, approval.Pending)
	w.approve(k.ID, ann)
	w.claim(held, approval.Granted)
}

func TestTooManyWaiting(t *testing.T) {
	w := newWorld(t)
	few := w.open(approval.Options{MaxLive: 5})
	call := func(i int) approval.Held { return transfer(fmt.Sprintf(`{"amount":%d}`, i)) }
	var first approval.Ticket
	for i := range 5 {
		if k := claimOn(t, few, call(i), approval.Pending); i == 0 {
			first = k
		}
	}
	for i := range 100 {
		if k := claimOn(t, few, call(5+i), approval.TooMany); k.ID != "" {
			t.Fatal("a refused call has a ticket")
		}
	}
	claimOn(t, few, call(0), approval.Pending) // attaching is no new ticket
	other := call(0)
	other.Principal.Subject = "agent2"
	claimOn(t, few, other, approval.Pending) // the cap is each principal's own
	w.deny(first.ID, ann)
	claimOn(t, few, call(5), approval.Pending)
	claimOn(t, few, call(6), approval.TooMany)
	w.pass(time.Hour)
	claimOn(t, few, call(6), approval.Pending) // what has expired no longer counts
}

func TestTTLs(t *testing.T) {
	for _, tt := range []struct {
		name           string
		policy, option time.Duration
		want           time.Duration
	}{
		{"the policy's", time.Minute, time.Hour, time.Minute},
		{"the configured one", 0, time.Hour, time.Hour},
		{"the default", 0, 0, 15 * time.Minute},
	} {
		w := newWorld(t)
		held := transfer(hundred)
		held.Approval.TTL = tt.policy
		k := claimOn(t, w.open(approval.Options{TTL: tt.option}), held, approval.Pending)
		if got := k.Expires.Sub(k.Created); got != tt.want {
			t.Errorf("%s: the ticket lives %v, want %v", tt.name, got, tt.want)
		}
		w.pass(tt.want - 1)
		w.wantState(k.ID, approval.StateProposed)
		w.pass(1)
		w.wantState(k.ID, approval.StateExpired)
	}
}

func TestAStepBackOfTheClockRevivesNothing(t *testing.T) {
	w := newWorld(t)
	waiting := w.claim(transfer(hundred), approval.Pending)
	approved := w.claim(transfer(other), approval.Pending)
	w.approve(approved.ID, ann)
	w.pass(10 * time.Minute)
	// Nothing asks about these two tickets while they are due: only another
	// call shows the store what time it is.
	w.claim(transfer(`{}`), approval.Pending)
	w.pass(-time.Hour)
	_, err := w.Decide(t.Context(), approval.Vote{ID: waiting.ID, Approver: ann, Approve: true})
	if !errors.Is(err, approval.ErrExpired) {
		t.Errorf("approving after the step: %v", err)
	}
	w.claim(transfer(other), approval.Expired)
}

func TestAStepBackAcrossARestart(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.pass(9 * time.Minute)
	w.claim(transfer(other), approval.Pending)
	w.pass(-time.Hour)
	after := w.open(approval.Options{}) // a process that never saw the later time
	if _, err := after.List(t.Context(), approval.Filter{}); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute) // nine minutes and one are the ticket's ten
	if got, err := after.Get(t.Context(), k.ID); err != nil || got.State != approval.StateExpired {
		t.Errorf("ticket is %q, %v; want expired", got.State, err)
	}
}

func TestTimeGoesOnAfterAStepBack(t *testing.T) {
	w := newWorld(t)
	w.pass(24 * time.Hour) // the clock ran ahead for a while
	w.claim(transfer(`{}`), approval.Pending)
	w.pass(-24 * time.Hour)
	k := w.claim(transfer(hundred), approval.Pending)
	if want := noon.Add(10 * time.Minute); !k.Expires.Equal(want) {
		t.Errorf("people are told %v, want %v", k.Expires, want)
	}
	w.pass(9 * time.Minute)
	w.wantState(k.ID, approval.StateProposed)
	w.pass(time.Minute)
	w.wantState(k.ID, approval.StateExpired)
}

func TestResultsOfAnySize(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		size int
		kept bool
	}{{approval.MaxResultBytes, true}, {approval.MaxResultBytes + 1, false}} {
		held := transfer(fmt.Sprintf(`{"n":%d}`, tt.size))
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		w.claim(held, approval.Granted)
		w.finish(k.ID, approval.StateDone, strings.Repeat("x", tt.size), "")
		got := w.claim(held, approval.Replay)
		if kept := len(got.Result) == tt.size; kept != tt.kept || kept == (got.Note != "") {
			t.Errorf("result of %d bytes: %d kept, note %q", tt.size, len(got.Result), got.Note)
		}
	}
}

func TestOnlyTheRunnerEndsTheRun(t *testing.T) {
	w := newWorld(t)
	second := w.open(approval.Options{})
	k := w.claim(transfer(hundred), approval.Pending)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, approval.ErrNotDispatching) {
			t.Errorf("%s: %v, want ErrNotDispatching", what, err)
		}
	}
	refused("releasing a proposed ticket", w.Release(t.Context(), k.ID))
	refused("finishing a proposed ticket", w.Finish(t.Context(), k.ID, approval.StateDone, nil, ""))
	w.approve(k.ID, ann)
	refused("releasing an approved ticket", w.Release(t.Context(), k.ID))
	w.claim(transfer(hundred), approval.Granted)
	refused("releasing for another instance", second.Release(t.Context(), k.ID))
	refused("finishing for another instance", second.Finish(t.Context(), k.ID, approval.StateDone, nil, ""))
	for _, s := range approval.States() {
		if s != approval.StateDone && s != approval.StateFailed && s != approval.StateUnknown {
			if err := w.Finish(t.Context(), k.ID, s, nil, ""); err == nil {
				t.Errorf("finished as %s", s)
			}
		}
	}
	w.wantState(k.ID, approval.StateDispatching)
}

func TestFinishOfACancelledCall(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	w.claim(transfer(hundred), approval.Granted)
	if err := w.Finish(cancelled(), k.ID, approval.StateDone, []byte(answer), ""); err != nil {
		t.Errorf("the outcome of a call whose caller went away was not stored: %v", err)
	}
	if _, err := w.Claim(cancelled(), transfer(other)); err == nil {
		t.Error("a claim of a caller that went away was made")
	}
}

// An outcome that could not be stored leaves a ticket that is dispatching for
// ever. Its own instance knows better, and says so at the next call.
func TestAnOutcomeThatWasNotStored(t *testing.T) {
	w := newWorld(t)
	db := openStore(t, w.path)
	tickets, err := approval.New(t.Context(), db, approval.Options{Now: w.clock, Keys: ring(t, w.path)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tickets.Close() })
	k := claimOn(t, tickets, transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	claimOn(t, tickets, transfer(hundred), approval.Granted)
	if _, err := db.Write.Exec(`ALTER TABLE approvals RENAME COLUMN result_digest TO elsewhere`); err != nil {
		t.Fatal(err)
	}
	if err := tickets.Finish(t.Context(), k.ID, approval.StateDone, []byte(answer), ""); err == nil {
		t.Fatal("the broken store took the outcome")
	}
	if _, err := db.Write.Exec(`ALTER TABLE approvals RENAME COLUMN elsewhere TO result_digest`); err != nil {
		t.Fatal(err)
	}
	claimOn(t, w.Tickets, transfer(hundred), approval.InFlight) // another instance cannot know
	claimOn(t, tickets, transfer(hundred), approval.Unknown)
	claimOn(t, w.Tickets, transfer(hundred), approval.Unknown)
}

func TestHistory(t *testing.T) {
	w := newWorld(t)
	held := transfer(hundred)
	held.Approval.Quorum = 2
	k := w.claim(held, approval.Pending)
	w.pass(time.Minute)
	w.decide(approval.Vote{ID: k.ID, Approver: ann, Approve: true, Reason: "looks right", Digest: k.Digest})
	w.pass(time.Minute)
	w.approve(k.ID, bob)
	w.claim(held, approval.Granted)
	w.finish(k.ID, approval.StateDone, answer, "")
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	got := w.get(k.ID)
	want := []approval.Change{
		{Seq: 1, At: at(0), Who: "agent", To: "proposed", Reason: "amount above 100", Digest: k.Digest},
		{Seq: 2, At: at(1), Who: "ann", From: "proposed", To: "proposed", Reason: "looks right", Digest: k.Digest},
		{Seq: 3, At: at(2), Who: "bob", From: "proposed", To: "approved", Digest: k.Digest},
		{Seq: 4, At: at(2), Who: "toolgate", From: "approved", To: "dispatching", Reason: "the grant was spent", Digest: k.Digest},
		{Seq: 5, At: at(2), Who: "toolgate", From: "dispatching", To: "done", Reason: "the upstream answered", Digest: k.Digest},
	}
	if diff := cmp.Diff(want, got.History); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	votes := []approval.Ballot{
		{Subject: "ann", Approve: true, Reason: "looks right", Digest: k.Digest, At: at(1)},
		{Subject: "bob", Approve: true, Digest: k.Digest, At: at(2)},
	}
	if diff := cmp.Diff(votes, got.Votes, cmpopts.IgnoreUnexported(approval.Ballot{})); diff != "" {
		t.Errorf("votes (-want +got):\n%s", diff)
	}
	if got.DecidedBy != "bob" || string(got.Arguments) != hundred || string(got.Result) != answer {
		t.Errorf("decided by %q, arguments %s, result %s", got.DecidedBy, got.Arguments, got.Result)
	}
}

// A result is kept for replay, and no longer.
func TestResultsAreForgotten(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.approve(k.ID, ann)
	w.claim(transfer(hundred), approval.Granted)
	w.finish(k.ID, approval.StateDone, answer, "")
	w.pass(10*time.Minute - 1)
	w.claim(transfer(hundred), approval.Replay)
	w.pass(time.Second)
	w.claim(transfer(other), approval.Pending)
	if got := w.get(k.ID); got.State != approval.StateDone || got.Result != nil {
		t.Errorf("ticket is %s with result %s", got.State, got.Result)
	}
}

// What approvers read is what was held, or nothing.
func TestStoredArgumentsThatChanged(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	if _, err := openStore(t, w.path).Write.Exec("UPDATE approvals SET arguments = ? WHERE id = ?", []byte(other), k.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Get(t.Context(), k.ID); err != nil || got.Arguments != nil || got.State != approval.StateUnknown {
		t.Errorf("read %s of a ticket that is %s, %v", got.Arguments, got.State, err)
	}
}
