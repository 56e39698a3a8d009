package keys_test

import (
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

// agree opens the keys of a replica in dir.
func agree(t *testing.T, address, dir string) error {
	t.Helper()
	db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	return open(t, dir).Agree(t.Context(), db)
}

// copyKeys copies the files of a key directory, but for those of a name.
func copyKeys(t *testing.T, from, but string) (to string) {
	t.Helper()
	to = t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if but != "" {
		if err := os.Remove(filepath.Join(to, but+"-1.key")); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// A replica serves only with the secrets of the others.
func TestReplicasAgreeOnSecrets(t *testing.T) {
	address, first := postgres.Database(t), t.TempDir()
	if err := agree(t, address, first); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ dir, missing string }{
		"the same again":          {first, ""},
		"a copy":                  {copyKeys(t, first, ""), ""},
		"no keys":                 {t.TempDir(), "arguments"},
		"without one of them":     {copyKeys(t, first, keys.RequestState), "request_state"},
		"without that of tickets": {copyKeys(t, first, keys.Tickets), "tickets"},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := os.ReadDir(tc.dir)
			err := agree(t, address, tc.dir)
			if tc.missing == "" && err != nil || tc.missing != "" && (err == nil || !strings.Contains(err.Error(), "hint: copy the files "+tc.missing+"-*.key")) {
				t.Errorf("%v", err)
			}
			if after, _ := os.ReadDir(tc.dir); err != nil && len(after) != len(before) {
				t.Errorf("a refused replica made keys: %v", after)
			}
		})
	}
	other := copyKeys(t, first, keys.Tickets)
	if _, err := open(t, other).Secret(keys.Tickets); err != nil { // of its own
		t.Fatal(err)
	}
	if err := agree(t, address, other); err == nil || !strings.Contains(err.Error(), other+" has no key tickets 1-") {
		t.Errorf("another secret: %v", err)
	}
}

// A rotated secret is that of all before they start again.
func TestReplicasAgreeOnRotations(t *testing.T) {
	address, one := postgres.Database(t), t.TempDir()
	if err := agree(t, address, one); err != nil {
		t.Fatal(err)
	}
	two := copyKeys(t, one, "")
	id, err := open(t, one).Rotate(keys.Tickets)
	if err != nil {
		t.Fatal(err)
	}
	if err := agree(t, address, two); err != nil {
		t.Errorf("before a replica has served with the new one: %v", err)
	}
	if err := agree(t, address, one); err != nil {
		t.Fatal(err)
	}
	if err := agree(t, address, two); err == nil || !strings.Contains(err.Error(), "has no key tickets "+id) {
		t.Errorf("without the new one: %v", err)
	}
	if err := agree(t, address, copyKeys(t, one, "")); err != nil {
		t.Error(err)
	}
}

// Of replicas with keys of their own that start at once, one serves.
func TestOneReplicaBegins(t *testing.T) {
	address := postgres.Database(t)
	served := make(chan bool, 4)
	var all sync.WaitGroup
	for range cap(served) {
		dir := t.TempDir()
		all.Go(func() { served <- agree(t, address, dir) == nil })
	}
	all.Wait()
	close(served)
	n := 0
	for ok := range served {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d replicas serve with keys of their own", n)
	}
}

// The secret of credentials, which replicas of an older version do not have, is made when it is
// first needed, and then is that of all.
func TestCredentialsAreSharedLate(t *testing.T) {
	address, old := postgres.Database(t), t.TempDir()
	if err := agree(t, address, old); err != nil {
		t.Fatal(err)
	}
	db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Write.ExecContext(t.Context(), "DELETE FROM keys WHERE name = ?", keys.Credentials); err != nil {
		t.Fatal(err)
	}
	one, two := copyKeys(t, old, keys.Credentials), copyKeys(t, old, keys.Credentials)
	for _, dir := range []string{one, two} {
		if err := agree(t, address, dir); err != nil || open(t, dir).Has(keys.Credentials) {
			t.Errorf("a replica that upgrades: %v, it has the key: %v", err, open(t, dir).Has(keys.Credentials))
		}
	}
	if err := open(t, one).Share(t.Context(), db, keys.Credentials); err != nil || !open(t, one).Has(keys.Credentials) {
		t.Errorf("the first that needs it: %v", err)
	}
	if err := open(t, two).Share(t.Context(), db, keys.Credentials); err == nil || !strings.Contains(err.Error(), "hint: copy the files credentials-*.key") {
		t.Errorf("the second: %v", err)
	}
	if err := agree(t, address, two); err == nil || !strings.Contains(err.Error(), "hint: copy the files credentials-*.key") {
		t.Errorf("the second at its next start: %v", err)
	}
}
