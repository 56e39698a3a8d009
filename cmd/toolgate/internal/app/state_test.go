package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// stateOf opens a state directory, and nothing else of an App.
func stateOf(t *testing.T, dir string) *state {
	t.Helper()
	auth, err := identity.New(identity.Config{Tokens: []identity.Token{{Subject: "ann", Roles: []string{"approver"}, SHA256: identity.HashToken("x")}}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{State: dir, Keys: dir + "-keys"}
	a := &App{serving: serving{log: hclog.NewNullLogger(), policy: &policyFeed{}, cfg: cfg}, auth: auth, metrics: newMetrics("test")}
	if err := errors.Join(a.openStore(t.Context(), cfg), a.openState(t.Context(), cfg)); err != nil {
		t.Fatal(err)
	}
	return a.state
}

// payment is a call that people approve.
func payment() approval.Held {
	sum := sha256.Sum256([]byte(`{"n":1}`))
	return approval.Held{
		Principal: policy.Principal{Subject: "agent"}, Server: "s", Tool: "pay", Exposed: "pay", Fingerprint: "sha256:f", Revision: "sha256:r",
		Arguments: []byte(`{"n":1}`), Digest: "sha256:" + hex.EncodeToString(sum[:]), Approval: policy.Approval{Roles: []string{"approver"}, Quorum: 1, Each: map[string]int{"approver": 1}},
	}
}

func claimed(t *testing.T, in *state, want approval.ClaimOutcome) approval.Ticket {
	t.Helper()
	c, err := in.tickets.Claim(t.Context(), payment())
	if err != nil || c.Outcome != want {
		t.Fatalf("outcome %q, %v; want %q", c.Outcome, err, want)
	}
	return c.Ticket
}

// A vote that the trail cannot take is not counted.
func TestNoVoteWithoutItsRecord(t *testing.T) {
	dir := t.TempDir()
	in := stateOf(t, dir)
	k := claimed(t, in, approval.Pending)
	if err := in.trail.Close(); err != nil {
		t.Fatal(err)
	}
	vote := approval.Vote{ID: k.ID, Approver: policy.Principal{Subject: "ann", Roles: []string{"approver"}}, Approve: true}
	if _, err := in.tickets.Decide(t.Context(), vote); !errors.Is(err, audit.ErrClosed) || !errors.Is(err, approval.ErrUntold) {
		t.Errorf("error %v", err)
	}
	if got, err := in.tickets.Get(t.Context(), k.ID); err != nil || got.State != approval.StateProposed || len(got.Votes) != 0 {
		t.Errorf("the ticket is %s with %d votes, %v", got.State, len(got.Votes), err)
	}
	if err := in.close(); err != nil {
		t.Error(err)
	}
}

// A run that the last process left behind is in the trail of the next one, before
// anybody asks for it.
func TestALostRunIsInTheTrail(t *testing.T) {
	dir := t.TempDir()
	first := stateOf(t, dir)
	k := claimed(t, first, approval.Pending)
	vote := approval.Vote{ID: k.ID, Approver: policy.Principal{Subject: "ann", Roles: []string{"approver"}}, Approve: true}
	if _, err := first.tickets.Decide(t.Context(), vote); err != nil {
		t.Fatal(err)
	}
	claimed(t, first, approval.Granted)
	if err := first.close(); err != nil {
		t.Fatal(err)
	}
	second := stateOf(t, dir)
	if err := second.close(); err != nil {
		t.Fatal(err)
	}
	var moves []string
	for line, err := range audit.Tail(t.Context(), filepath.Join(dir, "audit"), audit.TailOptions{Records: 100}) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := audit.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == audit.KindTicket && r.Ticket == k.ID {
			moves = append(moves, r.Change.From+" > "+r.Change.To)
			if given := min(1, len(moves)-1); r.Change.Quorum != 1 || r.Change.Approvals != given || r.Change.Given["approver"] != given || r.Change.Each["approver"] != 1 {
				t.Errorf("the record of %s has other approvals: %+v", r.Change.To, r.Change)
			}
		}
		if r.Kind == audit.KindTicket && r.Change.To == "unknown" && r.Instance != second.trail.Instance() {
			t.Error("the loss is in the trail of another process")
		}
	}
	want := []string{" > proposed", "proposed > approved", "approved > dispatching", "dispatching > unknown"}
	if !slices.Equal(moves, want) {
		t.Errorf("the trail has %q, want %q", moves, want)
	}
	if rep, err := (notary.Evidence{}).Verify(filepath.Join(dir, "audit")); err != nil || !rep.OK() {
		t.Errorf("the trail does not verify: %+v, %v", rep, err)
	}
}
