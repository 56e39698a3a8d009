package fleet_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// A replica that serves something else for more than a minute is a warning, which names
// the replica and what differs.
func TestReplicasThatDiffer(t *testing.T) {
	address, err := postgres.Started(t).Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	instances, began := db.Instances(""), time.Now()
	serve := func(id, revision string) store.Replica {
		r := store.Replica{ID: id, Who: store.Who(), Version: "v1", Policy: revision, Configuration: "c", Started: time.Unix(1, 0).UTC()}
		if err := instances.Report(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	var r fleet.Peers
	look := func(self store.Replica, after time.Duration, same, other float64, warned bool) {
		t.Helper()
		if err := r.Look(t.Context(), db, self, began.Add(after)); err != nil {
			t.Fatal(err)
		}
		if n := r.Count(); n["same"] != same || n["other"] != other {
			t.Errorf("after %s: %v, want %v and %v", after, n, same, other)
		}
		if lines := r.Warnings(began.Add(after)); len(lines) > 0 != warned || warned && !strings.Contains(lines[0], store.Who()+" has had policy two instead of one") {
			t.Errorf("after %s: %q", after, lines)
		}
	}
	for _, id := range []string{"ins_1", "ins_2", "ins_command"} {
		held, err := instances.Hold(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
	}
	self := serve("ins_1", "one")
	look(self, 0, 1, 0, false)
	serve("ins_2", "two")
	serve("ins_gone", "three")
	look(self, time.Second, 1, 1, false)
	look(self, time.Minute, 1, 1, false)
	look(self, time.Minute+time.Second, 1, 1, true)
	serve("ins_2", "one")
	look(self, 2*time.Minute, 2, 0, false)
	for what, changed := range map[string]store.Replica{
		"policy two instead of one": {Policy: "two"}, "configuration d instead of c": {Configuration: "d"}, "version v2 instead of v1": {Version: "v2"},
	} {
		other := self
		other.ID, other.Policy, other.Configuration, other.Version = "ins_2", cmp.Or(changed.Policy, "one"), cmp.Or(changed.Configuration, "c"), cmp.Or(changed.Version, "v1")
		if err := instances.Report(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		var r fleet.Peers
		at := time.Now()
		err := errors.Join(r.Look(t.Context(), db, self, at), r.Look(t.Context(), db, self, at.Add(time.Hour)))
		if found := r.Warnings(at.Add(time.Hour)); err != nil || len(found) != 1 || !strings.Contains(found[0], " has had "+what+" for ") {
			t.Errorf("differences %q, %v, want %q", found, err, what)
		}
	}
	if all, err := instances.Replicas(t.Context()); err != nil || !slices.ContainsFunc(all, func(o store.Replica) bool { return o == self }) {
		t.Errorf("replicas %+v, %v", all, err)
	}
}
