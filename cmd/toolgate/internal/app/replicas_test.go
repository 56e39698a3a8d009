package app

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// database makes a database of a server of its own.
func database(t *testing.T) string {
	t.Helper()
	address, err := postgres.Started(t).Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// replicaOf opens the state of a replica: a directory of its own, a key directory, and the
// store at an address.
func replicaOf(t *testing.T, address, keys string) (*App, *config.Config) {
	t.Helper()
	auth, err := identity.New(identity.Config{Tokens: []identity.Token{{Subject: "ann", Roles: []string{"approver"}, SHA256: identity.HashToken("x")}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := &config.Config{State: dir, Keys: keys, Store: address}
	a := &App{serving: serving{log: hclog.NewNullLogger(), policy: &policyFeed{}, cfg: cfg}, auth: auth, metrics: newMetrics("test")}
	if err := errors.Join(a.openStore(t.Context(), cfg), a.openState(t.Context(), cfg)); err != nil {
		t.Fatal(err)
	}
	return a, cfg
}

// A call that is held at one replica is decided on at another, runs once at either, and
// each has its result. So do the answers of multi-round calls, and a revoked token.
func TestReplicasAgree(t *testing.T) {
	address := database(t)
	shared := t.TempDir()
	one, _ := replicaOf(t, address, shared)
	two, _ := replicaOf(t, address, shared)
	k := claimed(t, one.state, approval.Pending)
	if _, err := two.state.tickets.Decide(t.Context(), approval.Vote{ID: k.ID, Approver: policy.Principal{Subject: "ann", Roles: []string{"approver"}}, Approve: true}); err != nil {
		t.Fatal(err)
	}
	claimed(t, two.state, approval.Granted)
	claimed(t, one.state, approval.InFlight)
	if err := two.state.tickets.Finish(t.Context(), k.ID, approval.StateDone, []byte(`{"ok":1}`), ""); err != nil {
		t.Fatal(err)
	}
	if got := claimed(t, one.state, approval.Replay); string(got.Result) != `{"ok":1}` {
		t.Errorf("the result is %s", got.Result)
	}
	if len(one.state.key) == 0 || !bytes.Equal(one.state.key, two.state.key) {
		t.Error("the keys of request states differ")
	}
	if err := two.state.revoked.Add(t.Context(), identity.Revocation{SHA256: identity.HashToken("x")}); err != nil {
		t.Fatal(err)
	}
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for one.state.revoked.Check(sha256.Sum256([]byte("x"))) == nil {
		<-look.C
	}
	if err := errors.Join(one.state.close(), two.state.close()); err != nil {
		t.Error(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The store has the last checkpoint of each chain of each replica.
func TestCheckpointsOfReplicas(t *testing.T) {
	address := database(t)
	var roots []string
	var known []note.Verifier
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		a, cfg := replicaOf(t, address, dir)
		if i == 0 { // the other one gets the secrets, and signs with a key of its own
			for _, name := range []string{keys.Arguments, keys.RequestState, keys.Tickets, keys.Credentials} {
				copyFile(t, filepath.Join(dir, name+"-1.key"), filepath.Join(dirs[1], name+"-1.key"))
			}
		}
		err := a.state.trail.Write(audit.KindEvent, &audit.Record{Event: &audit.Event{Name: "x"}})
		if err = errors.Join(err, a.state.close()); err != nil {
			t.Fatal(err)
		}
		publics, err := a.state.keys.Publics(keys.Checkpoints)
		if err != nil || len(publics) != 1 {
			t.Fatalf("%d public keys, %v", len(publics), err)
		}
		v, err := notary.NewVerifier(publics[0])
		if err != nil {
			t.Fatal(err)
		}
		roots, known = append(roots, trail.Dir(cfg.State)), append(known, v)
	}
	db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	notes, err := fleet.StoredNotes(t.Context(), db)
	if err != nil || len(notes) != 2 {
		t.Fatalf("%d notes, %v", len(notes), err)
	}
	all, err := notary.Evidence{Keys: known, Notes: notes}.Verify(roots...)
	if err != nil || !all.OK() || all.Verdicts.Independence != notary.OK {
		t.Errorf("both: %+v %v, %v", all.Verdicts, all.All(), err)
	}
	for i, root := range roots {
		rep, err := notary.Evidence{Keys: known, Notes: notes}.Verify(root)
		problems := rep.All()
		if err != nil || len(problems) != 1 || !strings.HasPrefix(problems[0].What, "chain "+all.Chains[1-i].Instance+" is missing: the store's checkpoint of process ") {
			t.Errorf("one alone: %v, %v", problems, err)
		}
	}
}

// A checkpoint that arrives late does not replace a later one of its chain.
func TestStoredCheckpointsNeverGoBack(t *testing.T) {
	db, err := store.OpenPostgres(t.Context(), database(t), store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, c := range []notary.Checkpoint{{Instance: "ins_1", Seq: 1}, {Instance: "ins_1", Seq: 9}, {Instance: "ins_1", Seq: 3}, {Instance: "ins_2", Seq: 2}} {
		if err := fleet.AnchoredInStore(db)[0].Anchor.Publish(t.Context(), c, []byte(strconv.Itoa(int(c.Seq)))); err != nil {
			t.Fatal(err)
		}
	}
	notes, err := fleet.StoredNotes(t.Context(), db)
	if err != nil || len(notes) != 2 || string(notes[0].Signed) != "9" || string(notes[1].Signed) != "2" {
		t.Errorf("notes %+v, %v", notes, err)
	}
}
