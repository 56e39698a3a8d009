package notice_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/policy/approval"
)

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// The example of the specification, Standard Webhooks 1.0.
func TestSignatureOfTheSpecification(t *testing.T) {
	signer, err := notice.Sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got, err := signer.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

// TestChangedDefinition holds that a changed definition is told, signed and once, on each
// channel that is not for some roles, and that no notice is left afterwards.
func TestChangedDefinition(t *testing.T) {
	w, all, some := newWorld(t), newReceiver(t, nil), newReceiver(t, nil)
	approvers := some.channel()
	approvers.Roles = []string{"approver"}
	s := w.sender(all.channel(), approvers)
	d := notice.Definition{Server: "bank", Tool: "pay", Count: 3, Reason: strings.Repeat("x", 600), URL: "https://gate.example/console/"}
	if err := s.EnqueueDefinition(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Type notice.Event
		Data notice.Definition
	}
	p := all.wait(t, 1)[0]
	if err := json.Unmarshal(p.body, &got); err != nil {
		t.Fatal(err)
	}
	d.Reason = d.Reason[:500] + "…"
	if got.Type != notice.Changed || got.Data != d || p.header.Get("webhook-signature") == "" {
		t.Errorf("%v: %s", p.header, p.body)
	}
	w.settle(s, some)
	if got := some.got(); len(got) > 0 {
		t.Errorf("approvers were told: %s", got[0].body)
	}
	until(t, "the outbox is empty", func() bool { return w.rows("dead = 0") == 0 })
}

// Both forms of a secret, verified by whoever knows it: with the library that
// receivers use, and by hand.
func TestSignedWebhook(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	for form, secret := range map[string]string{"base64": secret, "raw": string(key)} {
		t.Run(form, func(t *testing.T) {
			w, r := newWorld(t), newReceiver(t, nil)
			c := r.channel()
			c.Secret = secret
			w.change(w.sender(c), w.held(`{"amount":500}`, nil), asked)
			p := r.wait(t, 1)[0]
			verifier, err := standardwebhooks.NewWebhookRaw(key)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(p.body, p.header); err != nil {
				t.Error(err)
			}
			if err := verifier.Verify(append(p.body, ' '), p.header); err == nil {
				t.Error("a changed body is verified")
			}
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(p.id() + "." + p.header.Get("webhook-timestamp") + "." + string(p.body)))
			if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); p.header.Get("webhook-signature") != want {
				t.Errorf("signature %s, want %s", p.header.Get("webhook-signature"), want)
			}
			if !strings.HasPrefix(p.id(), "ntc_") || p.header.Get("Content-Type") != "application/json" || p.path != "/hook" {
				t.Errorf("%s %v", p.path, p.header)
			}
		})
	}
}

func TestUnsignedWebhook(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, nil)
	w.change(w.sender(notice.Channel{Webhook: r.URL}), w.held(`{}`, nil), asked)
	if p := r.wait(t, 1)[0]; p.header.Get("webhook-signature") != "" || p.id() == "" {
		t.Errorf("%v", p.header)
	}
}

// What is told, and that arguments and what upstreams say are not.
func TestBody(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, nil)
	s := w.sender(r.channel())
	ann := approval.Account{ID: "crd_1", Type: "oauth", Account: "ann@web"}
	k := w.held(`{"password":"hunter2"}`, func(h *approval.Held) { h.Approval.Quorum = 2; h.Principal.Tenant, h.RunsAs = "acme", &ann })
	want := notice.Data{
		Ticket: k.ID, State: approval.StateProposed, URL: "https://gate.example/console/approvals/" + k.ID,
		Requester: "agent-7", Tenant: "acme", Server: "standard", Tool: "manage_wallet", Rule: "threshold", Reason: "amount above 100",
		Roles: []string{"approver"}, Quorum: 2, Created: noon, Expires: noon.Add(15 * time.Minute), RunsAs: &ann,
	}
	reconciled := approval.Change{Who: "ann", From: approval.StateUnknown, To: approval.StateFailed, Reason: "the bank has no such transfer"}
	for i, step := range []struct {
		change      approval.Change
		event       notice.Event
		by, because string
	}{
		{asked, notice.Requested, "", ""},
		{denied, notice.Decided, "ann", "not today"},
		{done, notice.Ended, "toolgate", ""},
		{reconciled, notice.Ended, "ann", "the bank has no such transfer"},
	} {
		k.Note = approval.ToolError + ": hunter2"
		w.change(s, k, step.change)
		p := r.wait(t, i+1)[i]
		want.ToolError = step.change.To == approval.StateDone
		want.State, want.By, want.Because = step.change.To, step.by, step.because
		if diff := cmp.Diff(notice.Body{Type: step.event, Timestamp: noon, Data: want}, p.decode(t)); diff != "" {
			t.Errorf("%s:\n%s", step.change.To, diff)
		}
		if strings.Contains(string(p.body), "hunter2") {
			t.Errorf("the arguments or the answer are told: %s", p.body)
		}
	}
}

// Every change of a ticket's state is an event or, for a reason, none.
func TestEvents(t *testing.T) {
	want := map[approval.State]notice.Event{
		approval.StateApproved: notice.Decided, approval.StateDenied: notice.Decided, approval.StateExpired: notice.Decided,
		approval.StateSuperseded: notice.Decided, approval.StateDone: notice.Ended, approval.StateFailed: notice.Ended,
		approval.StateUnknown: notice.Ended, approval.StateDispatching: "", approval.StateNeedsConnection: "",
	}
	for _, from := range approval.States() {
		for _, to := range approval.States()[1:] { // the first is proposed, see below
			event := want[to]
			if from != approval.StateProposed && to == approval.StateApproved {
				event = "" // the grant is there again
			}
			if got := notice.EventOf(approval.Change{From: from, To: to}); got != event {
				t.Errorf("%s to %s: %q, want %q", from, to, got, event)
			}
		}
	}
	if got := notice.EventOf(approval.Change{To: approval.StateProposed}); got != notice.Requested {
		t.Errorf("a new ticket: %q", got)
	}
	if got := notice.EventOf(approval.Change{From: approval.StateProposed, To: approval.StateProposed}); got != "" {
		t.Errorf("a vote: %q", got)
	}
}

// A redirect is a failure, and nobody goes where it points.
func TestRedirect(t *testing.T) {
	w, elsewhere := newWorld(t), newReceiver(t, nil)
	r := newReceiver(t, func(_ int, rw http.ResponseWriter, req *http.Request) {
		http.Redirect(rw, req, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	s := w.sender(r.channel())
	w.change(s, w.held(`{}`, nil), asked)
	until(t, "a failed try", func() bool { return w.count("json:127.0.0.1 failed") == 1 })
	if n := len(elsewhere.got()); n != 0 {
		t.Errorf("%d posts went where a redirect pointed", n)
	}
	if found := w.troubles(s); len(found) != 1 || !strings.Contains(found[0].Fault, "status 307: redirects are not followed") {
		t.Errorf("%+v", found)
	}
}

// An endless answer is not read to its end.
func TestEndlessAnswer(t *testing.T) {
	w := newWorld(t)
	r := newReceiver(t, func(_ int, rw http.ResponseWriter, req *http.Request) {
		rw.WriteHeader(http.StatusOK)
		for req.Context().Err() == nil {
			if _, err := rw.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	w.change(w.sender(r.channel()), w.held(`{}`, nil), asked)
	until(t, "delivery", func() bool { return w.count("json:127.0.0.1 sent") == 1 })
}

func TestBadChannels(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]notice.Channel{
		"nothing":         {},
		"no web address":  {Webhook: "ftp://planted"},
		"no host":         {Webhook: "https:///planted"},
		"no URL":          {Webhook: "https://planted\x00"},
		"secret":          {Webhook: "https://x", Secret: "whsec_planted!"},
		"format":          {Webhook: "https://x", Format: "xml"},
		"no server":       {Email: []string{"a@x"}, From: "b@x"},
		"no mail server":  {Email: []string{"a@x"}, From: "b@x", SMTP: "https://planted"},
		"port":            {Email: []string{"a@x"}, From: "b@x", SMTP: "smtp://planted:0"},
		"sender":          {Email: []string{"a@x"}, From: "planted", SMTP: "smtp://x"},
		"recipient":       {Email: []string{"planted"}, From: "b@x", SMTP: "smtp://x"},
		"other recipient": {Email: []string{"a@x", "planted"}, From: "b@x", SMTP: "smtp://x"},
	} {
		_, err := notice.New(w.options(w.db), []notice.Channel{c})
		if err == nil {
			t.Errorf("%s: taken", name)
		} else if strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: the error tells the secret: %v", name, err)
		}
	}
}

// A webhook is believed by its certificate only.
func TestWebhookOverTLS(t *testing.T) {
	secure, roots := certificate(t)
	for name, c := range map[string]struct {
		roots   *x509.CertPool
		outcome string
	}{"trusted": {roots, "sent"}, "not trusted": {x509.NewCertPool(), "failed"}} {
		t.Run(name, func(t *testing.T) {
			w, r := newWorld(t), newReceiver(t, nil)
			srv := httptest.NewUnstartedServer(r)
			srv.TLS, srv.Config.ErrorLog = secure, log.New(io.Discard, "", 0)
			srv.StartTLS()
			defer srv.Close()
			opts := w.options(w.db)
			opts.Roots = c.roots
			s, err := notice.New(opts, []notice.Channel{{Webhook: srv.URL, Secret: secret}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.Start()
			w.change(s, w.held(`{}`, nil), asked)
			until(t, "a try", func() bool { return w.count("json:127.0.0.1 "+c.outcome) == 1 })
			if c.outcome == "failed" && (len(r.got()) != 0 || w.troubles(s)[0].Fault != "its certificate is not trusted") {
				t.Errorf("%d posts, %+v", len(r.got()), w.troubles(s))
			}
		})
	}
}
