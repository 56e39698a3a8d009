package app

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// TestRefusedActsAreFolded holds that a flood of refused votes, sign-ins and readings of
// the trail is a few records with exact counts, for each ticket apart, while each act that
// was not refused has its record.
func TestRefusedActsAreFolded(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"keys": "keys"}}`)
	cfg, err := read(dir)()
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(t.Context(), cfg, Options{Role: "observer"})
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		for _, act := range []people.Act{
			{Name: audit.EventVoteRefused, Ticket: "apr_1", Reason: "SELF_APPROVAL"}, {Name: audit.EventVoteRefused, Ticket: "apr_2", Reason: "SELF_APPROVAL"},
			{Name: audit.EventTrailRead, Reason: "NOT_AUDITOR"}, {Name: audit.EventSignInRefused, Reason: "unknown"},
		} {
			act.Principal, act.Source = policy.Principal{Subject: "ann"}, "192.0.2.1"
			err = errors.Join(err, a.state.recordAct(act))
		}
	}
	err = errors.Join(err, a.state.recordAct(people.Act{Name: audit.EventTrailRead}), a.state.recordAct(people.Act{Name: audit.EventTrailRead}), a.Close())
	if err != nil {
		t.Fatal(err)
	}
	acts, records := map[[2]string]int{}, 0
	for line, err := range audit.Tail(t.Context(), trail.Dir(cfg.State), audit.TailOptions{Records: 10_000}) {
		r, broken := audit.Parse(line)
		if err = errors.Join(err, broken); err != nil {
			t.Fatal(err)
		}
		if r.Event == nil || r.Event.Name == audit.EventConfined {
			continue
		}
		records++
		acts[[2]string{r.Event.Name + " " + r.Event.Reason, r.Ticket}] += max(1, r.Event.Count)
	}
	for key, want := range map[[2]string]int{
		{"vote_refused SELF_APPROVAL", "apr_1"}: 500, {"vote_refused SELF_APPROVAL", "apr_2"}: 500,
		{"trail_read NOT_AUDITOR"}: 500, {"sign_in_refused unknown"}: 500, {"trail_read "}: 2,
	} {
		if acts[key] != want {
			t.Errorf("%v: %d acts, want %d", key, acts[key], want)
		}
	}
	if records > 50 {
		t.Errorf("%d records of %v", records, acts)
	}
}
