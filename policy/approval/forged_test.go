package approval_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// forge writes to the store as a program that has no keys.
func (w *world) forge(statement string, args ...any) {
	w.t.Helper()
	res, err := openStore(w.t, w.path).Write.ExecContext(w.t.Context(), statement, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		w.t.Fatalf("%s: %d rows, %v", statement, n, err)
	}
}

// state is what the row of a ticket says.
func (w *world) state(id string) (s approval.State) {
	w.t.Helper()
	if err := openStore(w.t, w.path).Read.QueryRowContext(w.t.Context(), "SELECT state FROM approvals WHERE id = ?", id).Scan(&s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// A row that toolgate did not write grants nothing, and nobody decides on it.
func TestForgedRows(t *testing.T) {
	for name, statement := range map[string]string{
		"an approval":       "UPDATE approvals SET state = 'approved', decided_by = 'ann'",
		"another principal": "UPDATE approvals SET subject = 'other'",
		"a longer life":     "UPDATE approvals SET deadline = deadline + 3600000000000",
		"no MAC":            "UPDATE approvals SET mac = ''",
		"a vote":            "INSERT INTO approval_votes (ticket, subject, approve, reason, digest, at, roles) SELECT id, 'bob', 1, '', digest, 1, '[\"approver\"]' FROM approvals",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			held := transfer(`{"amount":750}`)
			k := w.claim(held, approval.Pending)
			w.forge(statement)
			if _, err := w.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: ann, Approve: true}); !errors.Is(err, approval.ErrDoubt) {
				t.Errorf("decided: %v", err)
			}
			c, err := w.Claim(t.Context(), held)
			if err == nil && c.Outcome == approval.Granted || w.state(k.ID) == approval.StateApproved {
				t.Errorf("claimed: %q, %v; the row is %s", c.Outcome, err, w.state(k.ID))
			}
		})
	}
}

// Arguments that are not those of the call are shown to nobody.
func TestForgedArguments(t *testing.T) {
	w := newWorld(t)
	k := w.claim(transfer(`{"amount":750}`), approval.Pending)
	w.forge("UPDATE approvals SET arguments = ?", []byte(`{"amount":1}`))
	if got, err := w.Get(t.Context(), k.ID); err != nil || got.State != approval.StateUnknown || got.Arguments != nil {
		t.Errorf("%s with %s, %v", got.State, got.Arguments, err)
	}
}

// A forged decision, unseen by a vote, is unknown to the caller.
func TestForgedApproval(t *testing.T) {
	for _, state := range []string{"approved", "denied", "done"} {
		w := newWorld(t)
		held := transfer(`{"amount":750}`)
		w.claim(held, approval.Pending)
		w.forge("UPDATE approvals SET state = ?, decided_by = 'ann'", state)
		w.claim(held, approval.Unknown)
	}
}

// A forged row that runs, or that is over, becomes unknown: neither its outcome nor its
// end is stored.
func TestForgedRun(t *testing.T) {
	w := newWorld(t)
	held := transfer(`{"amount":750}`)
	k := w.claim(held, approval.Pending)
	w.approve(k.ID, ann)
	w.claim(held, approval.Granted)
	w.forge("UPDATE approvals SET tool = 'other'")
	if err := w.Finish(t.Context(), k.ID, approval.StateDone, []byte("{}"), ""); !errors.Is(err, approval.ErrNotDispatching) {
		t.Errorf("ended: %v", err)
	}
	if got, err := w.Get(t.Context(), k.ID); err != nil || got.State != approval.StateUnknown || w.state(k.ID) != approval.StateUnknown {
		t.Errorf("the row that ran is %s, %v", got.State, err)
	}
	late := w.claim(transfer(`{"amount":751}`), approval.Pending)
	w.forge("UPDATE approvals SET tool = 'other' WHERE id = ?", late.ID)
	w.pass(time.Hour)
	w.claim(transfer(`{"amount":752}`), approval.Pending)
	if got := w.state(late.ID); got != approval.StateUnknown {
		t.Errorf("the row that is over is %s", got)
	}
}

// Only the process that runs a ticket ends the run.
func TestEndOfAnothersRun(t *testing.T) {
	w := newWorld(t)
	held := transfer(`{"amount":750}`)
	k := w.claim(held, approval.Pending)
	if err := w.Finish(t.Context(), k.ID, approval.StateDone, []byte("{}"), ""); !errors.Is(err, approval.ErrNotDispatching) {
		t.Errorf("ended before it ran: %v", err)
	}
	w.approve(k.ID, ann)
	w.claim(held, approval.Granted)
	if err := w.open(approval.Options{}).Finish(t.Context(), k.ID, approval.StateDone, []byte("{}"), ""); !errors.Is(err, approval.ErrNotDispatching) {
		t.Errorf("ended by another process: %v", err)
	}
	if got := w.state(k.ID); got != approval.StateDispatching {
		t.Errorf("the row is %s", got)
	}
}

// A store that was replaced, or that went back, while it is open answers nothing.
func TestReplacedStore(t *testing.T) {
	for name, replace := range map[string]func(w *world){
		"no clock":      func(w *world) { w.forge("DELETE FROM approval_clock") },
		"another store": func(w *world) { w.forge("UPDATE approval_clock SET store = 'x'") },
		"fewer changes": func(w *world) {
			w.forge("UPDATE approval_clock SET changes = 0")
			w.forge("DELETE FROM approval_history")
		},
		"the file moved": func(w *world) { _ = os.Rename(w.path, w.path+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "the file moved" && postgres.Used() {
				t.Skip("there is no file")
			}
			w := newWorld(t)
			w.claim(transfer(`{"amount":750}`), approval.Pending)
			if err := w.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			replace(w)
			if err := w.Check(t.Context()); !errors.Is(err, approval.ErrReplaced) {
				t.Errorf("check: %v", err)
			}
			if c, err := w.Claim(t.Context(), transfer(`{"amount":751}`)); !errors.Is(err, approval.ErrReplaced) {
				t.Errorf("claimed: %q, %v", c.Outcome, err)
			}
		})
	}
}

// That the file is gone is said by a store that needs a new connection as well.
func TestReplacedStoreWithoutConnections(t *testing.T) {
	if postgres.Used() {
		t.Skip("there is no file")
	}
	w := newWorld(t)
	db := openStore(t, w.path)
	db.Read.SetMaxIdleConns(0)
	tickets, err := approval.New(t.Context(), db, approval.Options{Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer tickets.Close()
	claimOn(t, tickets, transfer(`{"amount":750}`), approval.Pending)
	if err := os.Rename(w.path, w.path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := tickets.Check(t.Context()); !errors.Is(err, approval.ErrReplaced) {
		t.Errorf("check: %v", err)
	}
}

// While the trail cannot be read, held calls and votes are refused, and Check says why.
func TestUnreadableTrail(t *testing.T) {
	w := newWorld(t)
	held := transfer(`{"amount":750}`)
	k := w.claim(held, approval.Pending)
	broken := errors.New("the trail cannot be read")
	other := w.open(approval.Options{LastWord: func(context.Context, string, time.Time) (approval.Word, error) { return approval.Word{}, broken }})
	if c, err := other.Claim(t.Context(), held); !errors.Is(err, broken) {
		t.Errorf("claimed: %q, %v", c.Outcome, err)
	}
	if _, err := other.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: ann, Approve: true}); !errors.Is(err, broken) {
		t.Errorf("decided: %v", err)
	}
	if err := other.Check(t.Context()); !errors.Is(err, broken) {
		t.Errorf("check: %v", err)
	}
	if got := w.state(k.ID); got != approval.StateProposed {
		t.Errorf("the row is %s", got)
	}
}

// The trail that becomes unreadable later refuses the vote, and the row stays.
func TestTrailFailsLater(t *testing.T) {
	w := newWorld(t)
	var broken error
	tickets := w.open(approval.Options{LastWord: func(context.Context, string, time.Time) (approval.Word, error) { return approval.Word{}, broken }})
	k := claimOn(t, tickets, transfer(`{"amount":750}`), approval.Pending)
	broken = errors.New("the trail cannot be read")
	if _, err := tickets.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: ann, Approve: true}); !errors.Is(err, broken) {
		t.Errorf("decided: %v", err)
	}
	if got := w.state(k.ID); got != approval.StateProposed {
		t.Errorf("the row is %s", got)
	}
}

// A count of grants that cannot be read closes approvals: the store may be older.
func TestUnreadableGrants(t *testing.T) {
	w := newWorld(t)
	held := transfer(`{"amount":750}`)
	k := w.claim(held, approval.Pending)
	w.approve(k.ID, ann)
	w.claim(held, approval.Granted)
	dir := filepath.Join(filepath.Dir(w.path), "keys")
	counts, err := filepath.Glob(filepath.Join(dir, "grants-*.count"))
	if err != nil || len(counts) != 1 {
		t.Fatalf("%v, %v", counts, err)
	}
	if err := os.WriteFile(counts[0], []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := w.open(approval.Options{})
	if _, err := other.Claim(t.Context(), transfer(`{"amount":751}`)); err == nil || !strings.Contains(err.Error(), "not a number") {
		t.Errorf("claimed: %v", err)
	}
}

// A call that no ticket can be bound to is refused.
func TestUnboundCalls(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		want   string
		change func(h *approval.Held)
	}{
		{"no principal", func(h *approval.Held) { h.Principal = policy.Principal{} }},
		{"no approver role", func(h *approval.Held) { h.Roles = nil }},
		{"are needed", func(h *approval.Held) { h.Server = "" }},
		{"are needed", func(h *approval.Held) { h.Tool = "" }},
		{"are needed", func(h *approval.Held) { h.Fingerprint = "" }},
		{"are needed", func(h *approval.Held) { h.Revision = "" }},
		{"the digest is not", func(h *approval.Held) { h.Digest = digest("{}") }},
	} {
		h := transfer(`{"amount":750}`)
		tc.change(&h)
		if c, err := w.Claim(t.Context(), h); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q, %v; want %s", c.Outcome, err, tc.want)
		}
	}
}

// Looking for the ticket of a call finds the one that would answer, or none.
func TestRepeated(t *testing.T) {
	w := newWorld(t)
	held := transfer(`{"amount":750}`)
	if _, err := w.Repeated(t.Context(), held); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("before the claim: %v", err)
	}
	k := w.claim(held, approval.Pending)
	if got, err := w.Repeated(t.Context(), held); err != nil || got.ID != k.ID {
		t.Errorf("%s, %v; want %s", got.ID, err, k.ID)
	}
}

// Verify reports what toolgate did not write, and what the trail contradicts.
func TestVerifyStore(t *testing.T) {
	for name, tc := range map[string]struct {
		forge string
		word  func(k approval.Ticket) map[string]approval.Word
		want  string // "" = no fault
	}{
		"as written": {"", func(k approval.Ticket) map[string]approval.Word {
			return map[string]approval.Word{k.ID: {Seq: 1, State: approval.StateProposed}}
		}, ""},
		"a forged row": {"UPDATE approvals SET tool = 'other'", func(k approval.Ticket) map[string]approval.Word {
			return map[string]approval.Word{k.ID: {Seq: 1, State: approval.StateProposed}}
		}, "ticket "},
		"the trail does not know": {"", func(approval.Ticket) map[string]approval.Word { return nil }, "has no record of it"},
		"the trail goes on": {"", func(k approval.Ticket) map[string]approval.Word {
			return map[string]approval.Word{k.ID: {Seq: 2, State: approval.StateApproved}}
		}, "approved by the trail (change 2)"},
		"a ticket is gone": {"DELETE FROM approvals", func(k approval.Ticket) map[string]approval.Word {
			return map[string]approval.Word{k.ID: {Seq: 2, State: approval.StateApproved}}
		}, "is not in the state"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(transfer(`{"amount":750}`), approval.Pending)
			if tc.forge != "" {
				unlink := "PRAGMA foreign_keys = OFF; "
				if postgres.Used() {
					unlink = "SET session_replication_role = replica; "
				}
				w.forge(unlink + tc.forge)
			}
			faults, _, err := approval.Verify(t.Context(), openStore(t, w.path), keys.At(filepath.Join(filepath.Dir(w.path), "keys")),
				func() (map[string]approval.Word, time.Time, error) { return tc.word(k), noon.Add(-time.Hour), nil })
			if name == "the trail does not know" && postgres.Used() {
				tc.want = "" // another replica's may
			}
			if err != nil || tc.want == "" && len(faults) > 0 || !strings.Contains(strings.Join(faults, "\n"), tc.want) {
				t.Errorf("%v, %v; want %q", faults, err, tc.want)
			}
		})
	}
}
