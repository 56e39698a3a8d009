package approval_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// listener is who is told of changes; refuse makes it refuse them.
type listener struct {
	mu     sync.Mutex // protects the fields below
	told   []approval.Event
	refuse error
}

func (l *listener) changed(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := tx.ExecContext(ctx, "UPDATE approvals SET attached = attached + 100 WHERE id = ?", t.ID); err != nil {
		return err
	}
	if l.refuse != nil {
		return l.refuse
	}
	l.told = append(l.told, approval.Event{Seq: c.Seq, Change: c, Ticket: t})
	return nil
}

// of gives what was told of one ticket.
func (l *listener) of(id string) (told []approval.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.told {
		if e.Ticket.ID == id {
			told = append(told, e.Change)
		}
	}
	return told
}

func (l *listener) set(refuse error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = refuse
}

// changes are the ways in which a ticket changes: how it gets there, and the step.
var changes = map[string]struct {
	before func(w *world, k string)
	step   func(t *testing.T, tickets *approval.Tickets, k string) error
	marks  []string // from → to, of the step
}{
	"made": {nil, func(t *testing.T, tickets *approval.Tickets, _ string) error {
		_, err := tickets.Claim(t.Context(), transfer(other))
		return err
	}, []string{" > proposed"}},
	"first vote of two": {nil, vote(ann, true), []string{"proposed > proposed"}},
	"last vote":         {func(w *world, k string) { w.approve(k, bob) }, vote(ann, true), []string{"proposed > approved"}},
	"denied":            {nil, vote(ann, false), []string{"proposed > denied"}},
	"spent":             {func(w *world, k string) { w.approve(k, ann); w.approve(k, bob) }, claimAgain, []string{"approved > dispatching"}},
	"expired": {func(w *world, _ string) { w.pass(time.Hour) }, func(t *testing.T, tickets *approval.Tickets, k string) error {
		_, err := tickets.Get(t.Context(), k)
		return err
	}, []string{"proposed > expired"}},
	"superseded": {nil, func(t *testing.T, tickets *approval.Tickets, k string) error {
		return tickets.Supersede(t.Context(), k, "", "the policy changed")
	}, []string{"proposed > superseded"}},
	"superseded by a call": {nil, func(t *testing.T, tickets *approval.Tickets, _ string) error {
		held := pair()
		held.Revision = "sha256:r1"
		_, err := tickets.Claim(t.Context(), held)
		return err
	}, []string{"proposed > superseded", " > proposed"}},
	"released": {grant, func(t *testing.T, tickets *approval.Tickets, k string) error {
		return tickets.Release(t.Context(), k)
	}, []string{"dispatching > approved"}},
	"done":    {grant, finishAs(approval.StateDone), []string{"dispatching > done"}},
	"failed":  {grant, finishAs(approval.StateFailed), []string{"dispatching > failed"}},
	"unknown": {grant, finishAs(approval.StateUnknown), []string{"dispatching > unknown"}},
	"reconciled": {func(w *world, k string) { grant(w, k); w.finish(k, approval.StateUnknown, "", "lost") }, func(t *testing.T, tickets *approval.Tickets, k string) error {
		_, err := tickets.Reconcile(t.Context(), approval.Finding{ID: k, Approver: ann, TookEffect: true, Reason: "it is on the statement"})
		return err
	}, []string{"unknown > done"}},
}

// pair is a call that two people approve.
func pair() approval.Held {
	h := transfer(hundred)
	h.Approval.Quorum = 2
	return h
}

func vote(by policy.Principal, approve bool) func(*testing.T, *approval.Tickets, string) error {
	return func(t *testing.T, tickets *approval.Tickets, k string) error {
		_, err := tickets.Decide(t.Context(), approval.Vote{ID: k, Approver: by, Approve: approve, Reason: "because"})
		return err
	}
}

func claimAgain(t *testing.T, tickets *approval.Tickets, _ string) error {
	_, err := tickets.Claim(t.Context(), pair())
	return err
}

func grant(w *world, k string) {
	w.approve(k, ann)
	w.approve(k, bob)
	w.claim(pair(), approval.Granted)
}

func finishAs(s approval.State) func(*testing.T, *approval.Tickets, string) error {
	return func(t *testing.T, tickets *approval.Tickets, k string) error {
		return tickets.Finish(t.Context(), k, s, []byte(answer), "")
	}
}

// listened returns a world whose changes a listener receives.
func listened(t *testing.T) (*world, *listener) {
	t.Helper()
	l := &listener{}
	w := &world{t: t, now: noon, path: filepath.Join(t.TempDir(), "state.db")}
	w.Tickets = w.open(approval.Options{Changed: l.changed}) // alone: others on the file would expire tickets too
	return w, l
}

// Whoever is told of changes can forbid them, each of them: then nothing has
// changed, and nothing of what was written beside the change is there.
func TestAnErrorOfTheListenerUndoesTheChange(t *testing.T) {
	refused := errors.New("the trail cannot be written")
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			w, l := listened(t)
			k := w.claim(pair(), approval.Pending)
			if c.before != nil {
				c.before(w, k.ID)
			}
			l.set(refused)
			db := openStore(t, w.path).Read
			before, rows := dump(t, db), count(t, db)
			if err := c.step(t, w.Tickets, k.ID); !errors.Is(err, refused) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(before, dump(t, db)); diff != "" || count(t, db) != rows {
				t.Errorf("the change is there (-before +after):\n%s", diff)
			}
			l.set(nil)
			told := len(l.told)
			if name == "done" || name == "failed" || name == "unknown" || name == "released" {
				w.wantState(k.ID, approval.StateUnknown) // the outcome is lost, and the call is never made again
				return
			}
			if err := c.step(t, w.Tickets, k.ID); err != nil {
				t.Fatal(err)
			}
			var marks []string
			for _, e := range l.told[told:] {
				marks = append(marks, fmt.Sprintf("%s > %s", e.Change.From, e.Change.To))
			}
			if diff := cmp.Diff(c.marks, marks); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

// dump is every ticket's state and what was written beside changes.
func dump(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.Query("SELECT id, state || ' ' || trace_id || ' ' || attached FROM approvals")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var id, text string
		if err := rows.Scan(&id, &text); err != nil {
			t.Fatal(err)
		}
		all[id] = text
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// count is how many votes and lines of history there are.
func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	err := db.QueryRow("SELECT (SELECT count(*) FROM approval_votes) + (SELECT count(*) FROM approval_history)").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What is told is the history, in its order; the ticket is as the change left it,
// without what may be secret.
func TestWhatIsToldIsTheHistory(t *testing.T) {
	w, l := listened(t)
	k := w.claim(pair(), approval.Pending)
	grant(w, k.ID)
	w.finish(k.ID, approval.StateDone, answer, "")
	var told []approval.Change
	for _, e := range l.told {
		told = append(told, e.Change)
		if e.Ticket.State != e.Change.To || e.Ticket.ID != k.ID || e.Ticket.Arguments != nil || e.Ticket.Result != nil || e.Seq != e.Change.Seq {
			t.Errorf("told of %v with ticket %+v", e.Change, e.Ticket)
		}
	}
	if diff := cmp.Diff(w.get(k.ID).History, told); diff != "" {
		t.Errorf("told (-history +told):\n%s", diff)
	}
	if l.told[1].Ticket.Approvals != 1 || l.told[2].Ticket.Approvals != 2 || l.told[2].Ticket.DecidedBy != "bob" {
		t.Errorf("the votes are told as %+v", l.told[1:3])
	}
}

// Any number of tickets may be due at once: each is told, and none that is due is
// ever taken for one that waits.
func TestManyExpireAtOnce(t *testing.T) {
	w, l := listened(t)
	const many = 140 // more than two transactions expire
	for i := range many {
		h := transfer(fmt.Sprintf(`{"n":%d}`, i))
		h.Principal.Subject = fmt.Sprintf("agent%d", i%10)
		w.claim(h, approval.Pending)
	}
	w.pass(10 * time.Minute)
	h := transfer(fmt.Sprintf(`{"n":%d}`, many-1))
	h.Principal.Subject = "agent9"
	w.claim(h, approval.Expired)
	if n, err := w.Held(t.Context()); err != nil || n != 0 {
		t.Errorf("%d tickets wait, %v", n, err)
	}
	if len(l.told) != 2*many {
		t.Errorf("told of %d changes, want %d", len(l.told), 2*many)
	}
}

// So may any number have been running when their process died.
func TestManyRunsAreLostAtOnce(t *testing.T) {
	w, l := listened(t)
	gone, err := openTickets(t, w.path, approval.Options{Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	const many = 70 // more than one transaction settles
	for i := range many {
		h := transfer(fmt.Sprintf(`{"n":%d}`, i))
		w.approve(claimOn(t, gone, h, approval.Pending).ID, ann)
		claimOn(t, gone, h, approval.Granted)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	told := len(l.told)
	found, err := w.List(t.Context(), approval.Filter{States: []approval.State{approval.StateUnknown}, Limit: 2 * many})
	if err != nil || len(found) != many {
		t.Errorf("%d runs are unknown, %v", len(found), err)
	}
	if len(l.told) != told+many {
		t.Errorf("told of %d, want %d", len(l.told)-told, many)
	}
}
