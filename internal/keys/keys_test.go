package keys_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/keys"
)

func open(t *testing.T, dir string) *keys.Dir {
	t.Helper()
	d, err := keys.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Everybody who shares a directory gets the same secret, which nobody else can read,
// and which the next start finds.
func TestSecret(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "keys")
	got := make([]keys.Key, 16)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			d, err := keys.Open(dir)
			if err == nil {
				got[i], err = d.Secret(keys.Tickets)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, key := range got {
		if key.ID != got[0].ID || !bytes.Equal(key.Secret, got[0].Secret) || len(key.Secret) != keys.SecretBytes {
			t.Fatalf("keys %s and %s", got[0].ID, key.ID)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "tickets-1.key" {
		t.Errorf("in the directory: %v, %v", files, err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "tickets-1.key"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
	if other, err := open(t, t.TempDir()).Secret(keys.Tickets); err != nil || other.ID == got[0].ID {
		t.Errorf("another directory has the same key: %v", err)
	}
}

// After a rotation the new version is used, and the old one is found by its ID.
func TestRotate(t *testing.T) {
	d := open(t, t.TempDir())
	if _, err := d.Rotate(keys.Tickets); !errors.Is(err, keys.ErrUnknown) {
		t.Errorf("rotating a key that does not exist: %v", err)
	}
	first, err := d.Secret(keys.Tickets)
	if err != nil {
		t.Fatal(err)
	}
	id, err := d.Rotate(keys.Tickets)
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Secret(keys.Tickets)
	if err != nil || second.ID != id || bytes.Equal(first.Secret, second.Secret) {
		t.Errorf("after the rotation: %s, want %s, %v", second.ID, id, err)
	}
	for _, want := range []keys.Key{first, second} {
		if got, err := d.Find(keys.Tickets, want.ID); err != nil || !bytes.Equal(got.Secret, want.Secret) {
			t.Errorf("version %s: %v", want.ID, err)
		}
	}
	for _, id := range []string{"", "0-", "3-000000000000", "1-000000000000", second.ID[:1], "../1", "1"} {
		if _, err := d.Find(keys.Tickets, id); !errors.Is(err, keys.ErrUnknown) {
			t.Errorf("version %q: %v", id, err)
		}
	}
}

// A signer's public half is in a file of its own, and verifies what each version signed.
func TestSigner(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	first, err := d.Signer(keys.Checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := open(t, dir).Signer(keys.Checkpoints); err != nil || !again.Key.Equal(first.Key) || again.ID != first.ID {
		t.Errorf("a second opening has another key: %v", err)
	}
	if _, err := d.Rotate(keys.Checkpoints); err != nil {
		t.Fatal(err)
	}
	second, err := d.Signer(keys.Checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	publics, err := keys.At(dir).Publics(keys.Checkpoints)
	if err != nil || len(publics) != 2 {
		t.Fatalf("%d public keys, %v", len(publics), err)
	}
	for i, s := range []keys.Signer{first, second} {
		if !ed25519.Verify(publics[i], []byte("x"), ed25519.Sign(s.Key, []byte("x"))) {
			t.Errorf("public key %d does not verify the signature of %s", i+1, s.ID)
		}
	}
	alone, err := keys.ReadPublic(filepath.Join(dir, "checkpoints-2.pub"))
	if err != nil || !alone.Equal(publics[1]) {
		t.Errorf("the file alone: %v", err)
	}
}

// A directory that cannot be written to, and a key that is cut short, are errors with a
// hint; the text of a key is in none of them.
func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(dir, "ro")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"": "no configuration directory", file: "not a directory", filepath.Join(file, "below"): "not a directory"}
	if os.Geteuid() != 0 {
		paths[readOnly] = "permission denied"
	}
	for path, want := range paths {
		if _, err := keys.Open(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("opening %q: %v", path, err)
		}
	}
	if _, err := keys.At(file).Publics(keys.Checkpoints); err == nil {
		t.Error("a directory that cannot be read has no keys")
	}
	if err := os.WriteFile(filepath.Join(dir, "tickets-1.key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir).Secret(keys.Tickets); err == nil || !strings.Contains(err.Error(), "hint:") || strings.Contains(err.Error(), "short") {
		t.Errorf("a short key: %v", err)
	}
	if _, err := open(t, dir).Signer(keys.Tickets); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("a short key pair: %v", err)
	}
}

// A file that holds another kind of key is refused.
func TestOtherKeys(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, private, public string }{
		{"text", "-----BEGIN", "-----BEGIN"},
		{"damaged", pemOf("PRIVATE KEY", secret[:9]), pemOf("PUBLIC KEY", public[:9])},
		{"of another algorithm", pemOf("PRIVATE KEY", secret), pemOf("PUBLIC KEY", public)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for ending, text := range map[string]string{".key": tc.private, ".pub": tc.public} {
				if err := os.WriteFile(filepath.Join(dir, "checkpoints-1"+ending), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if s, err := open(t, dir).Signer(keys.Checkpoints); err == nil {
				t.Errorf("signer %s", s.ID)
			}
			if all, err := keys.At(dir).Publics(keys.Checkpoints); err == nil {
				t.Errorf("public keys %v", all)
			}
		})
	}
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// A count never falls. A count that is not a number is an error for every reader.
func TestCount(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	for _, n := range []int64{7, 3, 7} {
		if err := d.RaiseCount("trail", n); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Count("trail"); got != 7 || err != nil {
			t.Errorf("after %d: %d, %v", n, got, err)
		}
	}
	for _, text := range []string{"seven", "-7", "7 8", "99999999999999999999"} {
		if err := os.WriteFile(filepath.Join(dir, "trail.count"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := d.Count("trail"); err == nil {
			t.Errorf("%q is the count %d", text, n)
		}
		if err := d.RaiseCount("trail", 8); err == nil {
			t.Errorf("%q was raised", text)
		}
	}
}

// Versions names every version of every key, and has no secret.
func TestVersions(t *testing.T) {
	d := open(t, t.TempDir())
	if found, err := d.Versions(); err != nil || found != nil {
		t.Fatalf("%v, %v", found, err)
	}
	secret, err := d.Secret(keys.Tickets)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := d.Signer(keys.Checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Rotate(keys.Tickets)
	if err != nil {
		t.Fatal(err)
	}
	found, err := d.Versions()
	if err != nil || len(found) != 3 {
		t.Fatalf("%v, %v", found, err)
	}
	for i, want := range []keys.Version{{Name: keys.Checkpoints, ID: pair.ID, Newest: true}, {Name: keys.Tickets, ID: secret.ID}, {Name: keys.Tickets, ID: second, Newest: true}} {
		got := found[i]
		if got.Name != want.Name || got.ID != want.ID || got.Newest != want.Newest || got.Created.IsZero() || (got.Public != "") != (got.Name == keys.Checkpoints) {
			t.Errorf("%+v, want %+v", got, want)
		}
		if strings.Contains(got.Public, "PRIVATE") {
			t.Error("the private key is shown")
		}
	}
}
