package approval_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/approval"
)

// What a held call reads of tickets, it reads by an index that leaves the old ones out:
// none of its queries scans tickets or goes through those of its requester.
func TestOldTicketsCostAHeldCallNothing(t *testing.T) {
	if postgres.Used() {
		t.Skip("about the plans of SQLite")
	}
	db := openStore(t, newWorld(t).path).Read
	for name, want := range map[string][]string{
		"supersede": {"SEARCH approvals USING INDEX approvals_waiting (subject=? AND tenant=? AND digest=?)"},
		"answering": {"USING COVERING INDEX approvals_running (subject=? AND tenant=?)", "USING INDEX approvals_answering (subject=? AND tenant=? AND deadline>?)"},
		"retention": {"USING INDEX approvals_ended (deadline<?)"},
		"over":      {"USING INDEX approvals_state (state=?)"},
		"live":      {"USING COVERING INDEX approvals_state (state=?)"},
		"binding":   {"USING INDEX approvals_binding (binding=?)"},
	} {
		query := approval.Queries[name]
		rows, err := db.Query("EXPLAIN QUERY PLAN "+query, make([]any, strings.Count(query, "?"))...)
		if err != nil {
			t.Fatal(name, err)
		}
		defer rows.Close()
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(name, err)
		}
		text := strings.Join(plan, "\n")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q:\n%s", name, w, text)
			}
		}
		if strings.Contains(text, "SCAN approvals") {
			t.Errorf("%s scans tickets:\n%s", name, text)
		}
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
