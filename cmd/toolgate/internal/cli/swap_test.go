package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/publisher"
	"github.com/toolgate/toolgate/policy/rego"
)

// swapped is a policy of two that are swapped: a verdict that depends on the
// arguments and is the same for all calls of the test.
func swapped(effect, name string) map[string]string {
	files := rule(effect, name)
	files["p.rego"] = strings.Replace(files["p.rego"], "if input.tool.name", "if { is_number(input.arguments.n); input.arguments.n >= 0 }", 1)
	return files
}

// TestSwapUnderLoad makes 10,000 calls at the built binary while the policy is
// exchanged, good, bad and good again, in a directory and on a server that is
// polled: every call has one revision in all of its records, the verdict of that
// revision, an answer that fits it, and none fails.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	parts.Long(t, "makes 20,000 calls")
	one, two := swapped("allow", "one"), swapped("deny", "two")
	bad := map[string]string{"p.rego": "package toolgate\n\ndecision := {", "data.json": one["data.json"]}
	t.Run("directory", func(t *testing.T) {
		dir := swapDirectory(t, `"policy"`)
		write(t, dir, map[string]string{"policy/p.rego": one["p.rego"], "policy/data.json": one["data.json"]})
		underLoad(t, dir, one, two, bad, func(files map[string]string) { replace(t, filepath.Join(dir, "policy", "p.rego"), files["p.rego"]) })
	})
	t.Run("server", func(t *testing.T) {
		p := publisher.New(t)
		p.Publish(publisher.Pack(t, one))
		dir := swapDirectory(t, `"`+p.URL+`", "poll": {"min": "1s", "max": "1s", "long": "20s"}`)
		underLoad(t, dir, one, two, bad, func(files map[string]string) { p.Publish(publisher.Pack(t, files)) })
	})
}

// swapDirectory has an upstream that answers from memory.
func swapDirectory(t *testing.T, policy string) string {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(bare))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	write(t, dir, map[string]string{"mcp.json": fmt.Sprintf(`{"mcpServers": {"up": {"type": "http", "url": %q}}, "toolgate": {"policy": {"path": %s, "timeout": "10s"},
		"limits": {"default": "off", "refused": "off"}, "audit": {"durability": "os"}, "servers": {"up": {"isolation": "shared"}}}}`, upstream.URL, policy)})
	return dir
}

// replace puts a file in the place of another at once, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

const (
	swapCalls   = 10_000
	swapLeast   = 4 // exchanges
	swapCallers = 4
)

func underLoad(t *testing.T, dir string, one, two, bad map[string]string, publish func(map[string]string)) {
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	var next, done atomic.Int64
	var over atomic.Bool
	var mu sync.Mutex // protects answers
	answers := map[int]string{}
	var callers sync.WaitGroup
	for range swapCallers {
		callers.Go(func() {
			for !over.Load() {
				n := int(next.Add(1) - 1)
				answer := callOnce(agents, n)
				mu.Lock()
				answers[n] = answer
				mu.Unlock()
				done.Add(1)
			}
		})
	}
	swaps := 0
	for done.Load() < swapCalls || swaps < swapLeast {
		publish(bad)
		shown(t, admin, "/readyz?verbose", "decision := {")
		publish(two)
		shown(t, admin, "/readyz?verbose", revisionOf(t, two))
		publish(bad)
		shown(t, admin, "/readyz?verbose", "decision := {")
		publish(one)
		shown(t, admin, "/readyz?verbose", revisionOf(t, one))
		swaps += 2
	}
	over.Store(true)
	callers.Wait()
	t.Logf("%d calls, %d exchanges", len(answers), swaps)
	checkSwapped(t, dir, answers, map[string]audit.Policy{
		revisionOf(t, one): {Effect: "allow", Rule: "one"}, revisionOf(t, two): {Effect: "deny", Rule: "two"},
	})
}

// callOnce makes one call and gives allowed, the canonical code of a refusal, or
// what else was answered.
func callOnce(agents string, n int) string {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"call-%d","method":"tools/call","params":{"name":"up__echo","arguments":{"text":"hello","n":%d}}}`, n, n)
	req, err := http.NewRequest(http.MethodPost, "http://"+agents+"/v1/rpc", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	var m struct {
		Result json.RawMessage
		Error  struct{ Data struct{ Code string } }
	}
	if err != nil || json.Unmarshal(text, &m) != nil || (m.Result == nil) == (m.Error.Data.Code == "") {
		return fmt.Sprintf("%s (%v)", text, err)
	}
	if m.Result != nil {
		return "allow"
	}
	return m.Error.Data.Code
}

// checkSwapped holds the records of every call against each other, against what
// its revision says, and against what the caller was answered.
func checkSwapped(t *testing.T, dir string, answers map[int]string, verdicts map[string]audit.Policy) {
	t.Helper()
	revisions, outcomes, calls := map[int]string{}, map[int]int{}, map[string]int{}
	late := map[int]bool{}
	numbers := map[string]int{} // :: call id ⇒ n; an outcome leaves the arguments to its decision
	for r, err := range audit.Read(t.Context(), filepath.Join(dir, ".toolgate", "audit"), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind != audit.KindDecision && r.Kind != audit.KindOutcome {
			continue
		}
		if r.Arguments != nil {
			var arguments struct{ N int }
			decode(t, r.Arguments, &arguments)
			numbers[r.CallID] = arguments.N
		}
		n, found := numbers[r.CallID]
		p := r.Policy
		want, known := verdicts[p.Revision]
		if p.Rule == rego.RuleError && p.Effect == "deny" { // a decision that a busy machine makes too late
			late[n], want = true, p
		}
		if !found || !known || p.Effect != want.Effect || p.Rule != want.Rule {
			t.Fatalf("call %d: the record says %+v", n, r)
		}
		if first, ok := revisions[n]; ok && first != p.Revision {
			t.Fatalf("call %d has two revisions", n)
		}
		revisions[n] = p.Revision
		if r.Kind == audit.KindOutcome {
			outcomes[n]++
			calls[p.Revision]++
		}
	}
	for n, answer := range answers {
		want := map[string]string{"allow": "allow", "deny": "POLICY_DENIED"}[verdicts[revisions[n]].Effect]
		if late[n] {
			want = "POLICY_DENIED"
		}
		if outcomes[n] != 1 || answer != want {
			t.Fatalf("call %d: %d outcomes under %q, answered %q", n, outcomes[n], revisions[n], answer)
		}
	}
	for revision, v := range verdicts {
		if calls[revision] < len(answers)/100 {
			t.Errorf("%s judged %d calls only", v.Rule, calls[revision])
		}
	}
	if len(late) > len(answers)/10 {
		t.Errorf("%d of %d decisions came too late", len(late), len(answers))
	}
	t.Logf("calls by revision: %v, too late: %d", calls, len(late))
}
