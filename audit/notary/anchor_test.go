package notary_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
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
	l := openSigned(t, root, audit.Options{Instance: "a", OnError: func(_ string, err error) { failures <- err }}, notary.Signing{
		Signer: signer, Anchors: []notary.Anchoring{{Anchor: notary.WebhookAnchor(server.URL + "/hook?token=geheim"), Kind: "webhook", Name: "webhook", Every: time.Millisecond}},
	})
	if err := <-failures; !strings.Contains(err.Error(), "status 307") || strings.Contains(err.Error(), "geheim") {
		t.Errorf("the failure is %v", err)
	}
	if now := l.Anchors(); len(now) != 1 || now[0].Name != "webhook" || now[0].Fault == "" && now[0].Seq == 0 {
		t.Errorf("not anchored: %+v", now)
	}
	body := <-posts // without a further record
	if c, err := notary.OpenCheckpoint(body, note.VerifierList(verifier)); err != nil || c.Instance != "a" {
		t.Errorf("posted %+v, %v", c, err)
	}
	if err := l.Write(audit.KindOutcome, sample("x")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if now := l.Anchors(); now[0].Fault != "" || now[0].Seq < 2 || now[0].Last.IsZero() {
		t.Errorf("still not anchored: %+v", now)
	}
	for len(posts) > 0 {
		body = <-posts
	}
	file := filepath.Join(t.TempDir(), "1.note")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	rep, err := notary.Evidence{Keys: []note.Verifier{verifier}, Anchors: []string{file}}.Verify(root)
	if err != nil || !rep.OK() || rep.Verdicts.Independence != notary.OK || rep.Chains[0].Seen != rep.Chains[0].Seq {
		t.Errorf("%+v, %v", rep, err)
	}
}
