package approval_test

import (
	"errors"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// lost is a world with a ticket whose outcome is unknown.
func lost(t *testing.T) (*world, approval.Ticket) {
	t.Helper()
	w := newWorld(t)
	k := w.claim(transfer(hundred), approval.Pending)
	w.lead(transfer(hundred), k.ID, approval.StateUnknown)
	return w, w.get(k.ID)
}

func TestReconcile(t *testing.T) {
	for name, tt := range map[string]struct {
		took bool
		want approval.State
		then approval.ClaimOutcome
		note string
	}{
		"it took effect": {true, approval.StateDone, approval.Replay, "bob found that the call took effect: on the statement"},
		"it did not":     {false, approval.StateFailed, approval.Failed, "bob found that the call did not take effect: on the statement"},
	} {
		t.Run(name, func(t *testing.T) {
			w, k := lost(t)
			got, err := w.Reconcile(t.Context(), approval.Finding{ID: k.ID, Approver: bob, TookEffect: tt.took, Reason: " on the statement "})
			if err != nil {
				t.Fatal(err)
			}
			last := got.History[len(got.History)-1]
			if got.State != tt.want || got.Note != tt.note || got.Result != nil || got.DecidedBy != "ann" {
				t.Errorf("ticket is %s, decided by %s, note %q, result %s", got.State, got.DecidedBy, got.Note, got.Result)
			}
			if last.Who != "bob" || last.Reason != "on the statement" || last.From != approval.StateUnknown || last.To != tt.want {
				t.Errorf("history ends with %+v", last)
			}
			// The call itself never becomes possible again by it.
			w.claim(transfer(hundred), tt.then)
			w.pass(10 * time.Minute)
			if fresh := w.claim(transfer(hundred), approval.Pending); fresh.ID == k.ID {
				t.Error("the ticket is live again")
			}
		})
	}
	t.Run("after its expiry", func(t *testing.T) {
		w, k := lost(t)
		w.pass(time.Hour)
		if _, err := w.Reconcile(t.Context(), approval.Finding{ID: k.ID, Approver: ann, Reason: "no trace of it"}); err != nil {
			t.Fatal(err)
		}
		w.wantState(k.ID, approval.StateFailed)
	})
}

func TestRefusedFindings(t *testing.T) {
	acme := ann
	acme.Tenant = "acme"
	for name, tt := range map[string]struct {
		before  func(*world, string)
		finding approval.Finding
		want    error
	}{
		"no such ticket":   {finding: approval.Finding{ID: "apr_none", Approver: ann, Reason: "x"}, want: approval.ErrNotFound},
		"one's own call":   {finding: approval.Finding{Approver: person("agent", "approver"), Reason: "x"}, want: approval.ErrSelfApproval},
		"without the role": {finding: approval.Finding{Approver: person("eve", "treasurer"), Reason: "x"}, want: approval.ErrNotApprover},
		"nobody":           {finding: approval.Finding{Approver: policy.Principal{Roles: []string{"approver"}}, Reason: "x"}, want: approval.ErrNotApprover},
		"another tenant":   {finding: approval.Finding{Approver: acme, Reason: "x"}, want: approval.ErrNotApprover},
		"without a reason": {finding: approval.Finding{Approver: ann, Reason: " \n"}, want: approval.ErrReasonRequired},
		"a second finding": {
			before: func(w *world, id string) {
				if _, err := w.Reconcile(w.t.Context(), approval.Finding{ID: id, Approver: bob, Reason: "x"}); err != nil {
					w.t.Fatal(err)
				}
			},
			finding: approval.Finding{Approver: ann, TookEffect: true, Reason: "x"}, want: approval.ErrNotUnknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, k := lost(t)
			if tt.before != nil {
				tt.before(w, k.ID)
			}
			before := w.get(k.ID)
			if tt.finding.ID == "" {
				tt.finding.ID = k.ID
			}
			if _, err := w.Reconcile(t.Context(), tt.finding); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if after := w.get(k.ID); after.State != before.State || len(after.History) != len(before.History) {
				t.Errorf("the refused finding made the ticket %s", after.State)
			}
		})
	}
}

// Only what is unknown is found out about, and only what lives is superseded.
func TestReconcileAndSupersedeByState(t *testing.T) {
	for _, s := range []approval.State{
		approval.StateProposed, approval.StateApproved, approval.StateDispatching, approval.StateDone, approval.StateFailed, approval.StateUnknown,
	} {
		w := newWorld(t)
		k := w.claim(transfer(hundred), approval.Pending)
		if s == approval.StateDispatching {
			w.lead(transfer(hundred), k.ID, approval.StateApproved)
			w.claim(transfer(hundred), approval.Granted)
		} else {
			w.lead(transfer(hundred), k.ID, s)
		}
		live := s == approval.StateProposed || s == approval.StateApproved
		if _, err := w.Reconcile(t.Context(), approval.Finding{ID: k.ID, Approver: ann, Reason: "x"}); s != approval.StateUnknown && !errors.Is(err, approval.ErrNotUnknown) {
			t.Errorf("finding out about a ticket that is %s: %v", s, err)
		}
		if s != approval.StateUnknown {
			w.wantState(k.ID, s)
		}
		err := w.Supersede(t.Context(), k.ID, "agent", "not needed any more")
		if live != (err == nil) || !live && !errors.Is(err, approval.ErrNotLive) {
			t.Errorf("superseding a ticket that was %s: %v", s, err)
		}
		if !live {
			continue
		}
		got := w.get(k.ID)
		last := got.History[len(got.History)-1]
		if got.State != approval.StateSuperseded || got.Note != "not needed any more" || last.Who != "agent" || last.Reason != got.Note {
			t.Errorf("superseded: %+v", last)
		}
		if fresh := w.claim(transfer(hundred), approval.Pending); fresh.ID == k.ID {
			t.Error("the superseded ticket answered")
		}
	}
	w := newWorld(t)
	if err := w.Supersede(t.Context(), "apr_none", "", "x"); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("superseding nothing: %v", err)
	}
}

// Whoever looks at a ticket whose process died sees that its outcome is unknown,
// and can say what came of it: nothing has to be started or called for that.
func TestADeadRunIsSeenByPeople(t *testing.T) {
	for _, look := range []bool{true, false} {
		w := newWorld(t)
		k := w.claim(transfer(hundred), approval.Pending)
		w.approve(k.ID, ann)
		p := start(t, "claim", w.path)
		w.wantState(k.ID, approval.StateDispatching)
		p.kill(t)
		if look {
			w.wantState(k.ID, approval.StateUnknown)
		}
		got, err := w.Reconcile(t.Context(), approval.Finding{ID: k.ID, Approver: ann, TookEffect: true, Reason: "on the statement"})
		if err != nil || got.State != approval.StateDone {
			t.Fatalf("ticket is %s, %v", got.State, err)
		}
	}
}
