package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

const noticeSecret = "whsec_cGxhbnRlZHBsYW50ZWRwbGFudGVkcGxhbnRlZA=="

// told is a webhook that gathers what it is told, and takes nothing while it is
// closed.
type told struct {
	*httptest.Server
	t testing.TB

	mu     sync.Mutex // protects the fields below
	closed bool
	taken  []notice.Body
	ids    []string // of all posts, those that were refused too
}

func newTold(t testing.TB) *told {
	w := &told{t: t, closed: true}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

func (w *told) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	verifier, err := standardwebhooks.NewWebhook(noticeSecret)
	if err == nil {
		err = verifier.Verify(body, r.Header)
	}
	if err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids = append(w.ids, r.Header.Get("webhook-id"))
	if w.closed {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var b notice.Body
	decode(w.t, body, &b)
	w.taken = append(w.taken, b)
}

func (w *told) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = false
}

// wait gives the ids of all posts and what was taken, once good says so.
func (w *told) wait(what string, good func(ids []string, taken []notice.Body) bool) ([]string, []notice.Body) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		w.mu.Lock()
		ids, taken := w.ids[:len(w.ids):len(w.ids)], w.taken[:len(w.taken):len(w.taken)]
		w.mu.Unlock()
		if good(ids, taken) {
			return ids, taken
		}
	}
	w.t.Fatalf("never: %s", what)
	return nil, nil
}

// From the question to the outcome, people are told by a signed webhook, in
// order, and no notice is lost to a webhook that is down or to kill -9. What
// configures the webhook is in nothing that toolgate says or keeps.
func TestNotices(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	hook := newTold(t)
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	config, err := os.ReadFile(filepath.Join(repository(t), "mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{
		"mcp.json": string(config),
		"overlay.json": `{"console": {"url": "https://gate.example"}, "approvals": {"hold": "0s", "notify": [
			{"webhook": "` + hook.URL + `/planted-path", "secret": "` + noticeSecret + `", "roles": ["approver"]},
			{"webhook": "` + hook.URL + `/another", "secret": "` + noticeSecret + `", "roles": ["nobody"]},
			{"email": ["ann@example.org"], "smtp": "smtp://user:planted-password@127.0.0.1:1", "from": "gate@example.org"}]}}`,
	})
	serve := func() *process {
		p := start(t, dir, "serve", "--overlay", "overlay.json", "--listen", agents, "--admin", admin, "--log-level", "trace")
		ready(t, admin)
		return p
	}
	transfer := func(want int) {
		t.Helper()
		if code, out := toolgate(t, dir, "tool", "call", "manage_wallet", "--args", `{"action":"transfer","asset":"USD","amount":500,"destination":"acme"}`,
			"--token", "demo-treasurer", "--addr", "http://"+agents); code != want {
			t.Fatalf("exit %d: %s", code, out)
		}
	}

	p := serve()
	transfer(command.ExitApproval)
	ids, _ := hook.wait("a try", func(ids []string, _ []notice.Body) bool { return len(ids) > 0 })
	p.says("notice not delivered, it is tried again: channel=json")
	hook.wait("the mail that nobody takes", func([]string, []notice.Body) bool {
		_, body, err := visit("http://"+admin+"/readyz?verbose", "")
		return err == nil && strings.Contains(body, "email:127.0.0.1: notices: 1 not delivered yet")
	})
	_ = p.cmd.Process.Kill()
	<-p.done
	hook.open()
	q := serve()
	_, taken := hook.wait("the notice", func(_ []string, taken []notice.Body) bool { return len(taken) == 1 })
	asked := taken[0]
	if asked.Type != notice.Requested || asked.Data.Requester != "demo-treasurer" || asked.Data.URL != "https://gate.example/console/approvals/"+asked.Data.Ticket {
		t.Errorf("%+v", asked)
	}
	if code, out := toolgate(t, dir, "approval", "approve", asked.Data.Ticket, "--token", "demo-approver", "--addr", "http://"+admin); code != command.ExitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
	transfer(command.ExitOK)
	all, taken := hook.wait("the end", func(_ []string, taken []notice.Body) bool { return len(taken) == 3 })
	if all[len(all)-3] != ids[0] {
		t.Errorf("the notice of before the kill came again as another: %v", all)
	}
	if taken[1].Type != notice.Decided || taken[1].Data.State != "approved" || taken[1].Data.By != "demo-approver" || taken[2].Data.State != "done" {
		t.Errorf("%+v", taken[1:])
	}
	nothingPlanted(t, hook, dir, admin)
	for _, log := range []*process{p, q} {
		log.says("toolgate.notices: notice")
		log.mu.Lock()
		if strings.Contains(log.out.String(), "planted") {
			t.Error("the log tells a secret")
		}
		log.mu.Unlock()
	}
}

func nothingPlanted(t *testing.T, hook *told, dir, admin string) {
	t.Helper()
	for path, want := range map[string]string{
		"/readyz?verbose": "toolgate.approvals.notify: email:127.0.0.1: notices: 1 not delivered yet; the latest, of ticket apr_",
		"/metrics":        `toolgate_notices_total{channel="json:127.0.0.1",outcome="sent"} 3`,
	} {
		var body string
		hook.wait(path+" says "+want, func([]string, []notice.Body) bool { // the last try ends after it was answered
			_, text, err := visit("http://"+admin+path, "")
			body = text
			return err == nil && strings.Contains(text, want)
		})
		if strings.Contains(body, "planted") {
			t.Errorf("%s tells a secret:\n%s", path, body)
		}
	}
	err := filepath.WalkDir(filepath.Join(dir, ".toolgate"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), "planted") {
			t.Errorf("%s holds a secret", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
