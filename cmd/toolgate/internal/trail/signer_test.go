package trail

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/registry/config"
)

// TestSigner holds that checkpoints are signed by the key or the command of audit.signer,
// that the key directory then has the public half alone, that a bad one fails at the start
// without quoting the key, and that one that fails later stops no record.
func TestSigner(t *testing.T) {
	parts.Need(t, "openssl")
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, _ := x509.MarshalPKCS8PrivateKey(private)
	half, _ := x509.MarshalPKIXPublicKey(public)
	whole := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	write(t, filepath.Join(dir, "key.pem"), whole)
	write(t, filepath.Join(dir, "pub.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: half})))
	write(t, filepath.Join(dir, "sign"), "cd "+dir+" && test -z \"$SECRET\" && cat >text && openssl pkeyutl -sign -rawin -inkey key.pem -in text\n")
	t.Setenv("SECRET", "of toolgate")
	shell := func(script string) config.Signer {
		return config.Signer{Command: []string{"sh", "-c", script}, PublicKey: filepath.Join(dir, "pub.pem")}
	}
	start := func(t *testing.T, s config.Signer) (*config.Config, *keys.Dir, *notary.Log, error) {
		cfg := &config.Config{State: t.TempDir(), Audit: config.Audit{Durability: "sync", Signer: &s}}
		k, err := keys.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		trail, err := Open(cfg, k, nil, audit.Options{})
		return cfg, k, trail, err
	}
	for name, s := range map[string]config.Signer{
		"PEM": {Key: whole}, "base64": {Key: base64.StdEncoding.EncodeToString(der)}, "seed": {Key: base64.StdEncoding.EncodeToString(private.Seed())},
		"command": shell("sh " + filepath.Join(dir, "sign")),
	} {
		cfg, k, trail, err := start(t, s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := errors.Join(trail.Write(audit.KindEvent, &audit.Record{Event: &audit.Event{Name: "x"}}), trail.Close()); err != nil {
			t.Fatal(err)
		}
		publics, err := k.Publics(keys.External)
		if err != nil || len(publics) != 1 || !publics[0].Equal(public) || k.Has(keys.External) || k.Has(keys.Checkpoints) {
			t.Fatalf("%s: the key directory has %v, %v", name, publics, err)
		}
		verifier, _ := notary.NewVerifier(publics[0])
		if rep, err := (notary.Evidence{Keys: []note.Verifier{verifier}}).Verify(Dir(cfg.State)); err != nil || !rep.OK() || rep.Verdicts.Content != notary.OK {
			t.Errorf("%s: %+v, %v", name, rep, err)
		}
	}
	for name, s := range map[string]config.Signer{
		"no key": {Key: "c2VjcmV0"}, "a short signature": shell("echo signed"), "another signature": shell("head -c 64 /dev/zero"), "a failing command": shell("exit 1"),
		"no program": {Command: []string{filepath.Join(dir, "none")}, PublicKey: filepath.Join(dir, "pub.pem")}, "no public key": {Command: []string{"true"}, PublicKey: filepath.Join(dir, "key.pem")},
	} {
		if _, _, trail, err := start(t, s); err == nil || strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: %v", name, err)
			_ = trail.Close()
		}
	}
	_, _, trail, err := start(t, shell("sh "+filepath.Join(dir, "sign")))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "key.pem")); err != nil {
		t.Fatal(err)
	}
	program.Await(t, "a checkpoint that is not signed", func() bool {
		if err := trail.Write(audit.KindEvent, &audit.Record{Event: &audit.Event{Name: "x"}}); err != nil {
			t.Fatalf("the record needs the signer: %v", err)
		}
		return trail.Unsigned() != nil
	})
	_ = trail.Close()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
