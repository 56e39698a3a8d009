package keys_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

func TestMain(m *testing.M) { os.Exit(postgres.Run(m)) }

// openServer opens a store as another replica does.
func openServer(t *testing.T, address string) *store.DB {
	t.Helper()
	db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// share opens the keys of a replica in dir.
func share(t *testing.T, address, dir string) (*keys.Dir, error) {
	t.Helper()
	d := open(t, dir)
	return d, d.Share(t.Context(), openServer(t, address))
}

// Replicas that start at the same time have the same secrets, and a signing key each.
func TestReplicasShareSecrets(t *testing.T) {
	address, stores := postgres.Database(t), make([]*store.DB, 4)
	for i := range stores {
		stores[i] = openServer(t, address)
	}
	got := make([]*keys.Dir, len(stores))
	var all sync.WaitGroup
	for i, db := range stores {
		got[i] = open(t, t.TempDir())
		all.Go(func() {
			if err := got[i].Share(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	signers := map[string]bool{}
	for _, name := range []string{keys.Tickets, keys.RequestState, keys.Arguments} {
		first, err := got[0].Secret(name)
		for _, d := range got {
			k, failed := d.Secret(name)
			if err = errors.Join(err, failed); err != nil || k.ID != first.ID || !bytes.Equal(k.Secret, first.Secret) {
				t.Fatalf("key %s: %s and %s, %v", name, k.ID, first.ID, err)
			}
		}
	}
	for _, d := range got {
		s, err := d.Signer(keys.Checkpoints)
		if err != nil {
			t.Fatal(err)
		}
		signers[s.ID] = true
	}
	if len(signers) != len(got) {
		t.Errorf("%d signing keys for %d replicas", len(signers), len(got))
	}
}

// A key that one replica rotates is found by others when they see its ID, and used by
// those that start later.
func TestReplicasShareRotations(t *testing.T) {
	address, dir := postgres.Database(t), t.TempDir()
	theirs, err := share(t, address, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := share(t, address, dir); err != nil {
		t.Fatal(err)
	}
	id, err := keys.At(dir).Rotate(keys.Tickets)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Find(keys.Tickets, id); !errors.Is(err, keys.ErrUnknown) {
		t.Errorf("before the replica started again: %v", err)
	}
	if _, err := share(t, address, dir); err != nil {
		t.Fatal(err)
	}
	if k, err := theirs.Find(keys.Tickets, id); err != nil || k.ID != id {
		t.Errorf("found %s, %v", k.ID, err)
	}
	later, err := share(t, address, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if k, err := later.Secret(keys.Tickets); err != nil || k.ID != id {
		t.Errorf("a later start uses %s, %v; want %s", k.ID, err, id)
	}
}

// The keys of a state that moves to the store go with it. A replica that served alone
// before, with keys of its own, is refused, and changes nothing.
func TestAReplicaWithKeysOfItsOwn(t *testing.T) {
	address, moved, alone := postgres.Database(t), t.TempDir(), t.TempDir()
	var ids []string
	for _, dir := range []string{moved, alone} {
		k, err := open(t, dir).Secret(keys.Tickets)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, k.ID)
	}
	for _, dir := range []string{moved, t.TempDir()} {
		d, err := share(t, address, dir)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := d.Secret(keys.Tickets); err != nil || k.ID != ids[0] {
			t.Errorf("key %s, %v; want %s", k.ID, err, ids[0])
		}
	}
	file := filepath.Join(alone, "tickets-1.key")
	if _, err := share(t, address, alone); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("keys of its own: %v", err)
	}
	if k, err := keys.At(alone).Secret(keys.Tickets); err != nil || k.ID != ids[1] {
		t.Errorf("its key is %s, %v", k.ID, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := share(t, address, alone); err != nil {
		t.Error(err)
	}
}
