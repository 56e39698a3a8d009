package identity_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy/identity"
)

// TestEndOf holds which tokens say themselves when they end.
func TestEndOf(t *testing.T) {
	jwt := func(claims string) string {
		encode := base64.RawURLEncoding.EncodeToString
		return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + ".c2ln"
	}
	at := time.Unix(1_800_000_000, 0).UTC()
	for token, want := range map[string]time.Time{
		jwt(`{"exp":1800000000}`):   at,
		jwt(`{"exp":1800000000.9}`): at,
		jwt(`{"sub":"ann"}`):        {},
		jwt(`{"exp":"1800000000"}`): {},
		jwt(`{"exp":-1}`):           {},
		jwt(`{"exp":1e300}`):        {},
		jwt(`[]`):                   {},
		"tg_opaque":                 {},
		"a.b.c":                     {},
		"":                          {},
	} {
		if got := identity.EndOf(token); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", token, got, want)
		}
	}
}

// TestEndedTokensAreForgotten holds that opening the list removes tokens that ended long ago from
// the store and the file, and no others.
func TestEndedTokensAreForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list, _ := openRevocations(t, dir)
	day := 24 * time.Hour
	for token, until := range map[string]time.Time{
		"for ever": {}, "valid": time.Now().Add(day), "ended": time.Now().Add(-29 * day), "ended long ago": time.Now().Add(-31 * day),
	} {
		if err := list.Add(t.Context(), identity.Revocation{SHA256: identity.HashToken(token), Reason: token, Until: until}); err != nil {
			t.Fatal(err)
		}
		if _, found := list.Find(identity.HashToken(token)); !found {
			t.Errorf("%s: not revoked", token)
		}
	}
	for _, source := range []string{"the store and the file", "the store alone"} {
		list, db := openRevocations(t, dir)
		for token, want := range map[string]bool{"for ever": true, "valid": true, "ended": true, "ended long ago": false} {
			var rows int
			err := db.Read.QueryRowContext(t.Context(), "SELECT count(*) FROM revoked_tokens WHERE sha256 = ?", identity.HashToken(token)).Scan(&rows)
			if _, found := list.Find(identity.HashToken(token)); err != nil || found != want || rows == 1 != want {
				t.Errorf("%s, %s: found %v, %d rows, %v", source, token, found, rows, err)
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, identity.RevokedFile))
		if err != nil || strings.Count(string(text), "\n") != 3 || strings.Contains(string(text), "ended long ago") {
			t.Errorf("%s: the file has\n%s%v", source, text, err)
		}
		if err := os.Remove(filepath.Join(dir, identity.RevokedFile)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRevokedWhileEndedTokensGo holds that no revocation is lost from the file while another
// process rewrites it.
func TestRevokedWhileEndedTokensGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list, db := openRevocations(t, dir)
	var opening sync.WaitGroup
	var names []string
	for i := range 30 {
		names = append(names, strings.Repeat("x", i+1))
		ended := identity.Revocation{SHA256: identity.HashToken("ended " + names[i]), Until: time.Unix(1, 0)}
		if err := list.Add(t.Context(), ended); err != nil {
			t.Fatal(err)
		}
		opening.Go(func() {
			if _, err := identity.OpenRevocations(t.Context(), db, filepath.Join(dir, identity.RevokedFile)); err != nil {
				t.Error(err)
			}
		})
		if err := list.Add(t.Context(), identity.Revocation{SHA256: identity.HashToken(names[i])}); err != nil {
			t.Fatal(err)
		}
	}
	opening.Wait()
	text, err := os.ReadFile(filepath.Join(dir, identity.RevokedFile))
	for _, name := range names {
		if err != nil || !strings.Contains(string(text), identity.HashToken(name)) {
			t.Errorf("the file lacks %s, %v", name, err)
		}
	}
}
