package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/policy/approval"
)

// The last word of the trail on a ticket, and whether it shows that nothing was sent since:
// not after the record of a decision on its call, nor where records may be lost or were archived.
func TestTicketWords(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}}`)
	a, cfg := opened(t, dir)
	began := time.Now()
	words, lossy := trail.NewWords(trail.Dir(cfg.State), true), trail.NewWords(trail.Dir(cfg.State), false)
	record := func(kind audit.Kind, ticket string, change *audit.Change) {
		t.Helper()
		if err := a.state.trail.Write(kind, &audit.Record{Ticket: ticket, Change: change}); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(ticket string, want approval.Word) {
		t.Helper()
		got, err := words.Of(t.Context(), ticket, began)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if got, err := lossy.Of(t.Context(), ticket, began); got.Unsent || got.Seq != want.Seq || err != nil {
			t.Errorf("where records may be lost: %+v, %v", got, err)
		}
	}
	wants("apr_1", approval.Word{})
	record(audit.KindTicket, "apr_1", &audit.Change{Seq: 3, To: "approved"})
	record(audit.KindTicket, "apr_1", &audit.Change{Seq: 4, To: "dispatching"})
	wants("apr_1", approval.Word{Seq: 4, State: approval.StateDispatching, Unsent: true})
	record(audit.KindDecision, "apr_2", nil)
	record(audit.KindDecision, "", nil)
	wants("apr_1", approval.Word{Seq: 4, State: approval.StateDispatching, Unsent: true})
	record(audit.KindDecision, "apr_1", nil)
	wants("apr_1", approval.Word{Seq: 4, State: approval.StateDispatching})
	record(audit.KindTicket, "apr_1", &audit.Change{Seq: 4, To: "approved"}) // the change before was not made
	wants("apr_1", approval.Word{Seq: 4, State: approval.StateApproved, Unsent: true})
	record(audit.KindTicket, "apr_1", &audit.Change{Seq: 2, To: "proposed"}) // of another chain that is read later
	wants("apr_1", approval.Word{Seq: 4, State: approval.StateApproved, Unsent: true})
	// Archiving may have moved a later decision before it was read here.
	if err := os.Remove(filepath.Join(trail.Dir(cfg.State), a.state.trail.Instance(), "000001.jsonl")); err != nil {
		t.Fatal(err)
	}
	wants("apr_1", approval.Word{Seq: 4, State: approval.StateApproved})
}
