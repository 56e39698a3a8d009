package audit_test

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
	l := open(t, root, audit.Options{Instance: "a", OnError: func(_ string, err error) { failures <- err }, Signing: audit.Signing{
		Signer: signer, Anchors: []audit.Anchoring{{Anchor: notary.WebhookAnchor(server.URL + "/hook?token=geheim"), Name: "webhook", Every: time.Millisecond}},
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
