package identity_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy/identity"
)

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func openRevocations(t *testing.T, dir string) (*identity.Revocations, *store.DB) {
	t.Helper()
	db, err := postgres.State(t.Context(), filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	list, err := identity.OpenRevocations(t.Context(), db, filepath.Join(dir, identity.RevokedFile))
	if err != nil {
		t.Fatal(err)
	}
	return list, db
}

// Only a SHA-256 can be revoked: with another text no token would be refused.
func TestRevokingNoHash(t *testing.T) {
	list, db := openRevocations(t, t.TempDir())
	hash := identity.HashToken("x")
	for text, ok := range map[string]bool{hash: true, hash + "zz": false, hash + "00": false, hash[2:]: false, "zz" + hash[2:]: false, "": false} {
		if err := list.Add(t.Context(), db, identity.Revocation{SHA256: text}); (err == nil) != ok {
			t.Errorf("revoking %q: %v", text, err)
		}
	}
	if _, found := list.Find(strings.ToUpper(hash)); !found {
		t.Error("it was not revoked")
	}
}
