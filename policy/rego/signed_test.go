package rego_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/policy/rego"
)

// signer signs with OPA's own signer.
type signer struct {
	id, algorithm, private string
	key                    rego.Key
}

func rsaSigner(t *testing.T, id, algorithm string) signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair(t, id, algorithm, private, key.Public())
}

func ecSigner(t *testing.T, id, algorithm string) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair(t, id, algorithm, private, key.Public())
}

func pair(t *testing.T, id, algorithm string, private []byte, public any) signer {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return signer{id, algorithm, text("PRIVATE KEY", private), rego.Key{Algorithm: algorithm, Key: text("PUBLIC KEY", der)}}
}

func secretSigner(id string) signer {
	return signer{id, "HS256", "a secret that nobody guesses", rego.Key{Algorithm: "HS256", Key: "a secret that nobody guesses"}}
}

// sign gives the .signatures.json of files, for a scope.
func (s signer) sign(t testing.TB, scope string, files map[string]string) string {
	t.Helper()
	hash, err := bundle.NewSignatureHasher("SHA-256")
	if err != nil {
		t.Fatal(err)
	}
	var list []bundle.FileInfo
	for name, content := range files {
		var value any = []byte(content)
		if bundle.IsStructuredDoc(name) {
			if err := util.Unmarshal([]byte(content), &value); err != nil {
				t.Fatal(err)
			}
		}
		sum, err := hash.HashFile(value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, bundle.NewFile(name, hex.EncodeToString(sum), "SHA-256"))
	}
	claims := filepath.Join(t.TempDir(), "claims.json")
	if err := os.WriteFile(claims, []byte(`{"scope":"`+scope+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := bundle.GenerateSignedToken(list, bundle.NewSigningConfig(s.private, s.algorithm, claims), s.id)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(bundle.SignaturesConfig{Signatures: []string{token}})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// flat lists a map of files for writeFiles and archive.
func flat(files map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		out = append(out, name, files[name])
	}
	return out
}

// both writes files as a directory and as an archive.
func both(t *testing.T, files map[string]string) map[string]string {
	t.Helper()
	packed := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := os.WriteFile(packed, archive(t, flat(files)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"directory": writeFiles(t, flat(files)...), "archive": packed}
}

// policyFiles is a policy with everything that a signature may have to cover.
func policyFiles() map[string]string {
	return map[string]string{
		"toolgate/p.rego": module(`decision := {"effect": "allow"}`), "data.json": `{ "b": 1, "a": 2.50 }`, "more/data.yaml": "x: [1]\n",
		".manifest": `{"revision": "7", "roots": ["toolgate", "a", "b", "more"]}`, "p_test.rego": "package p_test\n", "LICENSE": "words",
	}
}

// TestSigned holds that a policy which one of the keys signed is loaded, with
// the revision that it has without signature, and by every kind of key.
func TestSigned(t *testing.T) {
	plain := load(t, flat(policyFiles())...).Revision()
	for _, s := range []signer{rsaSigner(t, "k", "RS256"), rsaSigner(t, "k", "PS512"), ecSigner(t, "k", "ES256"), secretSigner("k")} {
		files := policyFiles()
		files[".signatures.json"] = s.sign(t, "", files)
		files["README.md"] = "not signed, and not read"
		for how, where := range both(t, files) {
			e, err := rego.Load(t.Context(), rego.Options{Path: where, Keys: map[string]rego.Key{"k": s.key}})
			if err != nil {
				t.Errorf("%s, %s: %v", s.algorithm, how, err)
				continue
			}
			if e.Revision() != plain {
				t.Errorf("%s, %s: the signature changed the revision", s.algorithm, how)
			}
			if w := strings.Join(e.Warnings(), "\n"); strings.Contains(w, "signed") {
				t.Errorf("%s, %s: %s", s.algorithm, how, w)
			}
		}
	}
}

// TestSignedByOPA holds that what opa build signs and writes is loaded.
func TestSignedByOPA(t *testing.T) {
	s := rsaSigner(t, "k", "RS256")
	files := policyFiles()
	delete(files, "p_test.rego") // outside of the roots
	dir := writeFiles(t, flat(files)...)
	b, err := bundle.NewCustomReader(bundle.NewDirectoryLoader(dir)).WithSkipBundleVerification(true).Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.GenerateSignature(bundle.NewSigningConfig(s.private, s.algorithm, ""), "k", false); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := bundle.NewWriter(&out).DisableFormat(true).Write(b); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := os.WriteFile(packed, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rego.Load(t.Context(), rego.Options{Path: packed, Keys: map[string]rego.Key{"k": s.key}}); err != nil {
		t.Error(err)
	}
}

// TestRoots holds that a bundle stays within the roots of its manifest, in both
// forms that a manifest has; the data beside it is not its own.
func TestRoots(t *testing.T) {
	rule := module(`decision := {"effect": "allow"}`)
	binary := new(bytes.Buffer)
	b := bundle.Bundle{Manifest: bundle.Manifest{Roots: &[]string{"elsewhere"}}, Data: map[string]any{}}
	b.SetManifestProto(true)
	if err := bundle.NewWriter(binary).Write(b); err != nil {
		t.Fatal(err)
	}
	proto := unpacked(t, binary.Bytes())[".manifest.pb"]
	if proto == "" {
		t.Fatal("OPA wrote no .manifest.pb")
	}
	for name, content := range map[string]string{".manifest": `{"roots": ["elsewhere"]}`, ".manifest.pb": proto} {
		if _, err := tryLoad(t, "p.rego", rule, name, content); err == nil || !strings.Contains(err.Error(), "roots") {
			t.Errorf("%s: %v, want the roots", name, err)
		}
	}
	if _, err := over(t, `{"beside": 1}`, "p.rego", rule, ".manifest", `{"roots": ["toolgate"]}`); err != nil {
		t.Errorf("data beside the roots: %v", err)
	}
}

// unpacked gives the files of an archive.
func unpacked(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "/")] = string(content)
	}
}

// TestNotSigned holds that nothing is loaded that the keys do not vouch for
// whole, and that a signature which nobody checks is said.
func TestNotSigned(t *testing.T) {
	s, other := rsaSigner(t, "k", "RS256"), rsaSigner(t, "k", "RS256")
	scoped := s.key
	scoped.Scope = "production"
	confused := rego.Key{Algorithm: "HS256", Key: s.key.Key}
	for _, c := range []struct {
		name   string
		change func(files map[string]string)
		o      rego.Options
		want   string
	}{
		{"no signature", func(f map[string]string) { delete(f, ".signatures.json") }, rego.Options{}, "only signed policies"},
		{"rego changed", func(f map[string]string) { f["toolgate/p.rego"] += "\n" }, rego.Options{}, "toolgate/p.rego: digest mismatch"},
		{"data changed", func(f map[string]string) { f["data.json"] = `{ "b": 1, "a": 2.5001 }` }, rego.Options{}, "data.json: digest mismatch"},
		{"yaml changed", func(f map[string]string) { f["more/data.yaml"] = "x: [2]\n" }, rego.Options{}, "more/data.yaml: digest mismatch"},
		{"manifest changed", func(f map[string]string) { f[".manifest"] = `{"revision": "7", "roots": [""]}` }, rego.Options{}, ".manifest: digest mismatch"},
		{"manifest read twice", func(f map[string]string) {
			f[".manifest"] = `{"revision": "8", "roots": [""], "revision": "7", "roots": ["toolgate", "a", "b", "more"]}`
		}, rego.Options{}, "duplicate"},
		{"rego added", func(f map[string]string) { f["q.rego"] = "package q\n" }, rego.Options{}, "q.rego not included"},
		{"manifest added", func(f map[string]string) { f["toolgate/.manifest.pb"] = "" }, rego.Options{}, "toolgate/.manifest.pb not included"},
		{"data added", func(f map[string]string) { f["roles/data.json"] = "{}" }, rego.Options{}, "roles/data.json not included"},
		{"delta added", func(f map[string]string) { f["patch.json"] = `{"data": []}` }, rego.Options{}, "patch.json not included"},
		{"rego removed", func(f map[string]string) { delete(f, "toolgate/p.rego") }, rego.Options{}, "toolgate/p.rego, which are not there"},
		{"test removed", func(f map[string]string) { delete(f, "p_test.rego") }, rego.Options{}, "p_test.rego, which are not there"},
		{"test changed", func(f map[string]string) { f["p_test.rego"] += "\n" }, rego.Options{}, "p_test.rego: digest mismatch"},
		{"another's key", nil, rego.Options{Keys: map[string]rego.Key{"k": other.key}}, "failed to verify"},
		{"unknown key", nil, rego.Options{Keys: map[string]rego.Key{"l": s.key}}, "ID k not found"},
		{"another key asked for", nil, rego.Options{Keys: map[string]rego.Key{"k": s.key, "l": other.key}, KeyID: "l"}, "failed to verify"},
		{"public key as a secret", nil, rego.Options{Keys: map[string]rego.Key{"k": confused}}, "failed to verify"},
		{"scope of the key", nil, rego.Options{Keys: map[string]rego.Key{"k": scoped}}, "scope mismatch"},
		{"scope asked for", nil, rego.Options{Keys: map[string]rego.Key{"k": s.key}, Scope: "production"}, "scope mismatch"},
		{"no JSON", func(f map[string]string) { f[".signatures.json"] = "x" }, rego.Options{}, "parsing .signatures.json"},
		{"no token", func(f map[string]string) { f[".signatures.json"] = `{"signatures": []}` }, rego.Options{}, "missing JWT"},
		{"another verifier", func(f map[string]string) {
			f[".signatures.json"] = strings.Replace(f[".signatures.json"], "{", `{"plugin": "none",`, 1)
		}, rego.Options{}, "no verifier"},
	} {
		files := policyFiles()
		files[".signatures.json"] = s.sign(t, "test", files)
		if c.o.Keys == nil {
			c.o.Keys = map[string]rego.Key{"k": s.key}
		}
		if c.o.Scope == "" && !strings.Contains(c.name, "scope") {
			c.o.Scope = "test"
		}
		sound := c.change == nil
		if !sound {
			c.change(files)
		}
		for how, where := range both(t, files) {
			c.o.Path = where
			if e, err := rego.Load(t.Context(), c.o); e != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %q", c.name, how, err, c.want)
			}
			if !sound {
				continue
			}
			e, err := rego.Load(t.Context(), rego.Options{Path: where})
			if err != nil || !strings.Contains(strings.Join(e.Warnings(), "\n"), "no key is configured") {
				t.Errorf("%s, %s, without keys: %v, want a warning", c.name, how, err)
			}
		}
	}
	if _, err := rego.Load(t.Context(), rego.Options{Keys: map[string]rego.Key{"k": s.key}}); err == nil || !strings.Contains(err.Error(), "only signed") {
		t.Errorf("the embedded policy with keys: %v", err)
	}
}

// TestTooManyFiles holds that an archive of many entries is refused, whatever
// they are.
func TestTooManyFiles(t *testing.T) {
	parts := []string{"p.rego", module(`decision := {"effect": "allow"}`)}
	for i := range 10_000 {
		parts = append(parts, "n"+strconv.Itoa(i), "")
	}
	packed := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := os.WriteFile(packed, archive(t, parts...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rego.Load(t.Context(), rego.Options{Path: packed}); err == nil || !strings.Contains(err.Error(), "more than 10000") {
		t.Errorf("got %v", err)
	}
}

// FuzzSigned holds that whatever is done to a signed archive, it is refused or
// it is the same policy.
func FuzzSigned(f *testing.F) {
	s := secretSigner("k")
	policy := policyFiles()
	policy[".signatures.json"] = s.sign(f, "", policy)
	packed := filepath.Join(f.TempDir(), "b.tar.gz")
	o := rego.Options{Path: packed, Keys: map[string]rego.Key{"k": s.key}}
	put := func(t testing.TB, content []byte) {
		if err := os.WriteFile(packed, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(f, archive(f, flat(policy)...))
	want, err := rego.RevisionOf(o)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(".manifest", []byte(`{"roots":[""]}`))
	f.Add("data.json", []byte(policy["data.json"]+" "))
	f.Add(".signatures.json", []byte(`{"signatures":["a.b.c"]}`))
	f.Add("/toolgate/../toolgate/p.rego", []byte("package toolgate"))
	f.Add("toolgate/.manifest", []byte(policy[".manifest"]))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if strings.ContainsRune(name, 0) || len(name) > 90 {
			t.Skip("no name for a file of this archive form")
		}
		changed := maps.Clone(policy)
		changed[name] = string(content)
		put(t, archive(t, flat(changed)...))
		e, err := rego.LoadUntried(t.Context(), o)
		if err == nil && e.Revision() != want && !sameMeaning(policy, changed, name) {
			t.Errorf("%q was taken as %q", content, name)
		}
	})
}

// sameMeaning reports whether a document was only spelled in another way: its
// signature is about what it says.
func sameMeaning(before, after map[string]string, name string) bool {
	var a, b any
	return bundle.IsStructuredDoc(name) && util.Unmarshal([]byte(before[name]), &a) == nil &&
		util.Unmarshal([]byte(after[name]), &b) == nil && reflect.DeepEqual(a, b)
}
