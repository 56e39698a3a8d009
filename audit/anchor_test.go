package audit_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
)

// TestWebhookAnchor holds that a webhook receives the newest checkpoint, again after it
// failed, although no record follows, and that what it keeps is evidence.
func TestWebhookAnchor(t *testing.T) {
	posts := make(chan []byte, 100)
	var refused atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s with %q", r.Method, r.Header.Get("Content-Type"))
		}
		if refused.Add(1) == 1 {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		posts <- body
	}))
	defer server.Close()
	failures := make(chan error, 100)
	signer, verifier := newKey(t)
	root := filepath.Join(t.TempDir(), "audit")
	l := open(t, root, audit.Options{Instance: "a", OnError: func(_ string, err error) { failures <- err }, Signing: audit.Signing{
		Signer: signer, Anchors: []audit.Anchoring{{Anchor: audit.WebhookAnchor(server.URL + "/hook?token=geheim"), Name: "webhook", Every: time.Millisecond}},
	}})
	if err := <-failures; !strings.Contains(err.Error(), "status 307") || strings.Contains(err.Error(), "geheim") {
		t.Errorf("the failure is %v", err)
	}
	if faults := l.Unanchored(); len(faults) != 1 || !strings.Contains(faults[0].Error(), "webhook: ") {
		t.Errorf("not anchored: %v", faults)
	}
	body := <-posts // without a further record
	if c, err := audit.OpenCheckpoint(body, note.VerifierList(verifier)); err != nil || c.Instance != "a" {
		t.Errorf("posted %+v, %v", c, err)
	}
	if err := l.Write(audit.KindOutcome, sample("x")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if faults := l.Unanchored(); faults != nil {
		t.Errorf("still not anchored: %v", faults)
	}
	for len(posts) > 0 {
		body = <-posts
	}
	file := filepath.Join(t.TempDir(), "1.note")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	rep, err := audit.Evidence{Keys: []note.Verifier{verifier}, Anchors: []string{file}}.Verify(root)
	if err != nil || !rep.OK() || rep.Verdicts.Independence != audit.OK || rep.Chains[0].Seen != rep.Chains[0].Seq {
		t.Errorf("%+v, %v", rep, err)
	}
}

// An authority is an RFC 3161 responder made with openssl.
type authority struct {
	dir   string
	roots *x509.CertPool
	*httptest.Server
}

// newAuthority starts a responder. To a query at /again it gives its last response.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is missing")
		}
		t.Skip("openssl is missing")
	}
	a := &authority{dir: t.TempDir(), roots: x509.NewCertPool()}
	config := "[v3]\nextendedKeyUsage=critical,timeStamping\n[tsa]\ndefault_tsa=t\n[t]\nserial=serial\nsigner_cert=tsa.pem\nsigner_key=tsa.key\ncerts=ca.pem\nsigner_digest=sha256\ndefault_policy=1.2.3.4\ndigests=sha256\n[req]\ndistinguished_name=dn\n[dn]\n"
	for name, text := range map[string]string{"ts.cnf": config, "serial": "01"} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.openssl(t, "req", "-config", "ts.cnf", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE")
	a.openssl(t, "req", "-config", "ts.cnf", "-newkey", "rsa:2048", "-nodes", "-keyout", "tsa.key", "-out", "tsa.csr", "-subj", "/CN=tsa")
	a.openssl(t, "x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "tsa.pem", "-days", "1", "-extfile", "ts.cnf", "-extensions", "v3")
	ca, err := os.ReadFile(filepath.Join(a.dir, "ca.pem"))
	if err != nil || !a.roots.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, err := io.ReadAll(r.Body)
		if err == nil && r.URL.Path != "/again" {
			err = os.WriteFile(filepath.Join(a.dir, "query"), query, 0o600)
		}
		if err != nil || r.Header.Get("Content-Type") != "application/timestamp-query" {
			http.Error(w, "no query", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/timestamp-reply")
		_, _ = w.Write(a.openssl(t, "ts", "-reply", "-config", "ts.cnf", "-queryfile", "query"))
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *authority) openssl(t *testing.T, args ...string) []byte {
	cmd := exec.Command("openssl", args...)
	cmd.Dir = a.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("openssl %v: %v\n%s", args, err, &stderr)
	}
	return stdout.Bytes()
}

// stampedTrail writes a trail whose checkpoints a stamps into dir, and returns the evidence.
func stampedTrail(t *testing.T, a *authority) (root, dir string, e audit.Evidence, signer note.Signer) {
	t.Helper()
	root, dir = filepath.Join(t.TempDir(), "audit"), t.TempDir()
	signer, verifier := newKey(t)
	anchor := audit.TimestampAnchor{DirectoryAnchor: audit.DirectoryAnchor(dir), URL: a.URL, Roots: a.roots}
	s := &signedTrail{root: root, signing: audit.Signing{Signer: signer, Anchors: []audit.Anchoring{{Anchor: anchor, Name: "tsa"}}}}
	s.write(t, "a", 3)
	return root, dir, audit.Evidence{Keys: []note.Verifier{verifier}, Anchors: []string{dir}, Cosigners: []note.Verifier{audit.TimestampVerifier(a.roots)}}, signer
}

// TestTimestampAnchor holds which time-stamps (RFC 3161) count as evidence.
func TestTimestampAnchor(t *testing.T) {
	a := newAuthority(t)
	root, dir, evidence, signer := stampedTrail(t, a)
	rep, err := evidence.Verify(root)
	if err != nil || !rep.OK() || rep.Verdicts.Independence != audit.OK {
		t.Fatalf("%+v, %v", rep, err)
	}
	path := filepath.Join(dir, ".a.note")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, lines, _ := strings.Cut(string(whole), "\n\n")
	signatures := strings.SplitAfter(lines, "\n")
	resign := func(from, to string) []byte { // by somebody who has the key, next to the old time-stamp
		signed, err := note.Sign(&note.Note{Text: strings.Replace(text, from, to, 1) + "\n"}, signer)
		if err != nil {
			t.Fatal(err)
		}
		return append(signed, signatures[1]...)
	}
	at := text[strings.LastIndex(text, "time ")+5:]
	month, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		note  []byte
		roots *x509.CertPool
	}{
		"no time-stamp":      {[]byte(text + "\n\n" + signatures[0]), a.roots},
		"another authority":  {whole, x509.NewCertPool()},
		"of another record":  {resign("\n5\n", "\n4\n"), a.roots},
		"one byte":           {bytes.Replace(whole, []byte(signatures[1][100:104]), []byte("AAAA"), 1), a.roots},
		"of the next second": {resign(at, month.Add(time.Second).Format(time.RFC3339Nano)), a.roots},
		"of another instant": {resign(at, month.AddDate(0, -1, 0).Format(time.RFC3339Nano)), a.roots},
	} {
		if err := os.WriteFile(path, tt.note, 0o600); err != nil {
			t.Fatal(err)
		}
		evidence.Cosigners = []note.Verifier{audit.TimestampVerifier(tt.roots)}
		if rep, err := evidence.Verify(root); err != nil || rep.OK() || rep.Verdicts.Independence != audit.Broken {
			t.Errorf("%s: %+v, %v", name, rep.Verdicts, err)
		}
	}
}

// TestTimestampRefused holds that a checkpoint that names another time, and one that gets
// the response to another query or of another authority, is not kept.
func TestTimestampRefused(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	for _, tt := range []struct {
		name  string
		at    time.Time
		url   string
		roots *x509.CertPool
		good  bool
	}{
		{"now", time.Now(), a.URL, a.roots, true},
		{"without certificates", time.Now(), a.URL, nil, true},
		{"the response to another", time.Now(), a.URL + "/again", a.roots, false},
		{"two hours ago", time.Now().Add(-2 * time.Hour), a.URL, a.roots, false},
		{"in two hours", time.Now().Add(2 * time.Hour), a.URL, a.roots, false},
		{"a certificate from elsewhere", time.Now(), a.URL, other.roots, false},
	} {
		dir := t.TempDir()
		anchor := audit.TimestampAnchor{DirectoryAnchor: audit.DirectoryAnchor(dir), URL: tt.url, Roots: tt.roots}
		c := audit.Checkpoint{Trail: "t", Instance: "a", Seq: 1, Hash: strings.Repeat("0a", 32), Time: tt.at}
		err := anchor.Publish(context.Background(), c, []byte("the signed note\n\n"))
		kept, _ := filepath.Glob(dir + "/*")
		if (err == nil) != tt.good || (len(kept) == 1) != tt.good {
			t.Errorf("%s: %v, %d notes", tt.name, err, len(kept))
		}
	}
}
