package identity_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	list, _ := openRevocations(t, t.TempDir())
	hash := identity.HashToken("x")
	for text, ok := range map[string]bool{hash: true, hash + "zz": false, hash + "00": false, hash[2:]: false, "zz" + hash[2:]: false, "": false} {
		if err := list.Add(t.Context(), identity.Revocation{SHA256: text}); (err == nil) != ok {
			t.Errorf("revoking %q: %v", text, err)
		}
	}
	if _, found := list.Find(strings.ToUpper(hash)); !found {
		t.Error("it was not revoked")
	}
}

// revoking returns a Config.Revoked with the tokens that have some hashes.
func revoking(hashes ...string) func([sha256.Size]byte) error {
	return func(hash [sha256.Size]byte) error {
		if slices.Contains(hashes, hex.EncodeToString(hash[:])) {
			return &identity.Refusal{Kind: identity.Revoked}
		}
		return nil
	}
}

// replica is a list with a directory of its own, which is followed.
func replica(t *testing.T, address string) *identity.Revocations {
	t.Helper()
	db, err := store.OpenPostgres(t.Context(), address, store.PostgresMigrations())
	if err != nil {
		t.Fatal(err)
	}
	list, err := identity.OpenRevocations(t.Context(), db, filepath.Join(t.TempDir(), identity.RevokedFile))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { list.Follow(ctx) })
	t.Cleanup(func() {
		stop()
		following.Wait()
		_ = db.Close()
	})
	return list
}

// wantCheck waits until a token is refused for a reason, "" = it is not.
func wantCheck(t *testing.T, list *identity.Revocations, token string, want identity.Kind) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for began := time.Now(); ; <-look.C {
		err := list.Check(sha256.Sum256([]byte(token)))
		if identity.KindOf(err) == want {
			return
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("token %s: %v, want %q", token, err, want)
		}
	}
}

// A revocation at one replica binds the others, each of which has it in its own file
// afterwards. While a replica cannot know, no token is good.
func TestRevokedAtAnotherReplica(t *testing.T) {
	s := postgres.Started(t)
	address, err := s.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := replica(t, address), replica(t, address)
	for _, token := range []string{"a", "b"} {
		wantCheck(t, ours, token, "")
		if err := theirs.Add(t.Context(), identity.Revocation{SHA256: identity.HashToken(token)}); err != nil {
			t.Fatal(err)
		}
		wantCheck(t, ours, token, identity.Revoked)
	}
	wantCheck(t, ours, "good", "")
	ours.SetUnread(3 * time.Second) // it is read every 2 s
	s.Kill()
	wantCheck(t, ours, "good", identity.Unread)
	wantCheck(t, ours, "a", identity.Revoked)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	wantCheck(t, ours, "good", "")
}
