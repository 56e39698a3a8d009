package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/policy/identity"
)

// replica is one of several toolgates on one database.
type replica struct {
	*process
	agents, admin string
}

func startReplica(t *testing.T, dir, state string, args ...string) *replica {
	r := &replica{agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
	r.process = start(t, dir, append([]string{"serve", "--state", state, "--keys", "keys", "--listen", r.agents, "--admin", r.admin}, args...)...)
	ready(t, r.admin)
	return r
}

func replicaFiles(store string) map[string]string {
	return map[string]string{
		"mcp.json": fmt.Sprintf(`{"mcpServers": {"up": {"command": "recorder", "args": ["server.json", "called"]}}, "toolgate": {
			"store": %q, "policy": {"path": "policy", "timeout": "10s"}, "approvals": {"hold": "0s", "max_live": 1000},
			"limits": {"default": "off", "refused": "off"}, "identity": {"tokens": [
			{"subject": "agent", "roles": ["agent"], "sha256": %q}, {"subject": "boss", "roles": ["boss"], "sha256": %q}]}}}`,
			store, identity.HashToken("agent"), identity.HashToken("boss")),
		"policy/p.rego": "package toolgate\n\nimport rego.v2\n\nvisible := true\n\n" +
			`hold contains {"rule": "EACH", "reason": "each call", "approval": {"roles": ["boss"], "quorum": 1}} if input.tool.name` + "\n",
		"server.json": `{"Tools": [{"Name": "say"}]}`,
	}
}

// send posts JSON and returns the status and the body; 0 and the error when nothing answered.
func send(ctx context.Context, url, token, body string) (int, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// say calls the tool once, and returns how the call ended: done, pending, unknown, or the
// code of its refusal.
func (r *replica) say(ctx context.Context, n int) (ended, answer string) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"up__say","arguments":{"text":"call-%d."}}}`, n)
	_, answer = send(ctx, "http://"+r.agents+"/v1/rpc", "agent", body)
	var m struct {
		Result struct{ IsError bool }
		Error  struct{ Data struct{ Code, Reason string } }
	}
	switch err := json.Unmarshal([]byte(answer), &m); {
	case err != nil:
		return "nothing", answer
	case strings.Contains(answer, `"status":"pending"`), strings.Contains(answer, `"status":"running"`):
		return "pending", answer
	case m.Error.Data.Code != "":
		return m.Error.Data.Code, answer
	}
	return "done", answer
}

// approveAll approves what waits, as r shows it, once. It returns false where r could not.
func (r *replica) approveAll(ctx context.Context) bool {
	status, body, err := visit("http://"+r.admin+"/v1/approvals?state=proposed&limit=100", "boss")
	var list struct {
		Approvals []struct{ ID, Digest string }
	}
	if err != nil || status != http.StatusOK || json.Unmarshal([]byte(body), &list) != nil {
		return false
	}
	all := true
	for _, k := range list.Approvals {
		status, _ := send(ctx, "http://"+r.admin+"/v1/approvals/"+k.ID+"/approve", "boss", fmt.Sprintf(`{"digest": %q}`, k.Digest))
		all = all && status == http.StatusOK
	}
	return all
}

// Two replicas share a database whose server is killed under load, and comes back. What is
// held at one is approved at the other. Every call runs at most once, and one that was
// answered ran. While the server is away, calls are refused and may be sent again; both
// replicas serve again without a restart. Then one of them is killed, and the other runs
// what was approved for it, once.
func TestReplicas(t *testing.T) {
	t.Parallel()
	server := postgres.Started(t)
	store, err := server.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, replicaFiles(store))
	one, two := startReplica(t, dir, "one"), startReplica(t, dir, "two")
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()

	loading, enough := context.WithCancel(ctx)
	var load sync.WaitGroup
	load.Go(func() {
		for loading.Err() == nil {
			two.approveAll(ctx)
		}
	})
	var next, done atomic.Int64
	ended := make([]string, 10_000)
	for range 4 {
		load.Go(func() {
			for n := next.Add(1); loading.Err() == nil; n = next.Add(1) {
				for loading.Err() == nil {
					ended[n], _ = []*replica{one, two}[n%2].say(ctx, int(n))
					if ended[n] == "done" {
						done.Add(1)
						break
					}
					if ended[n] != "pending" && ended[n] != "STORE_UNAVAILABLE" {
						break
					}
				}
			}
		})
	}
	reach := func(n int64) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for done.Load() < n {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%d calls done, want %d", done.Load(), n)
			}
		}
	}
	for range 2 {
		reach(done.Load() + 10)
		server.Kill()
		if how, answer := one.say(ctx, 9_999); how != "STORE_UNAVAILABLE" || !strings.Contains(answer, `"retry_eligible":true`) {
			t.Errorf("while the server is away: %s", answer)
		}
		program.Await(t, "toolgate is degraded while the server is away", func() bool {
			status, text, err := visit("http://"+two.admin+"/readyz", "")
			return err == nil && status == http.StatusOK && text == "degraded\n"
		})
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		reach(done.Load() + 10)
	}
	enough()
	load.Wait()

	const last = 9_000
	if how, answer := one.say(ctx, last); how != "pending" {
		t.Fatalf("%s: %s", how, answer)
	}
	two.approveAll(ctx)
	one.signal(syscall.SIGKILL)
	<-one.done
	for range 2 {
		if how, answer := two.say(ctx, last); how != "done" {
			t.Errorf("%s: %s", how, answer)
		}
	}
	ended[last] = "done"
	called, err := os.ReadFile(filepath.Join(dir, "called"))
	if err != nil {
		t.Fatal(err)
	}
	for n, how := range ended {
		ran := strings.Count(string(called), fmt.Sprintf(`"call-%d."`, n))
		if ran > 1 || how == "done" && ran != 1 {
			t.Errorf("call %d ended as %q and ran %d times", n, how, ran)
		}
	}
	t.Logf("%d calls, %d done", next.Load(), done.Load())
}
