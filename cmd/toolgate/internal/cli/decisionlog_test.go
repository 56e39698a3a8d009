package cli

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// collected is a collector of decisions that refuses everything while it is closed.
type collected struct {
	*httptest.Server
	t testing.TB

	mu     sync.Mutex // protects the fields below
	closed bool
	tries  int
	events []decisionlog.Event
}

func newCollected(t testing.TB) *collected {
	c := &collected{t: t, closed: true}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	if c.closed {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Header.Get("Authorization") != "Bearer planted-token" || r.URL.Path != "/planted-path/logs" {
		c.t.Errorf("%s with %q", r.URL.Path, r.Header.Get("Authorization"))
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		c.t.Error(err)
		return
	}
	var events []decisionlog.Event
	if err := json.NewDecoder(z).Decode(&events); err != nil {
		c.t.Error(err)
	}
	c.events = append(c.events, events...)
}

func (c *collected) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = false
}

// ids are those of what was taken, sorted, without repeats.
func (c *collected) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ids(c.events)
}

func (c *collected) tried() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tries > 0
}

func ids(events []decisionlog.Event) (found []string) {
	for _, e := range events {
		found = append(found, e.DecisionID)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

const tellingPolicy = `package toolgate

import rego.v2

# METADATA
# title: Everybody may count
# labels:
#   rule: all
decision := {"effect": "allow", "rule": "all"} if input.tool.name
`

const tellingMask = `package system.log

import rego.v2

mask contains "/input/arguments/secret"

mask contains {"op": "upsert", "path": "/input/principal/subject", "value": "somebody"}
`

// Decisions are told to a file and to a collector that was away, masked, over kill
// -9 and a reload, each of them; and what configures the collector is in nothing
// that toolgate says or keeps.
func TestDecisionLog(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	desk := newCollected(t)
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	files := doorFiles()
	files["policy/p.rego"], files["policy/log.rego"] = tellingPolicy, tellingMask
	files["up.json"] = `{"Tools": [{"Name": "echo"}]}`
	config := files["mcp.json"]
	telling := func(file string) string {
		return strings.Replace(config, `"path": "policy"`, fmt.Sprintf(`"path": "policy", "log": {"file": %q, "url": %q, "token": "planted-token", "max_lag": "1s"}`,
			file, desk.URL+"/planted-path/logs"), 1)
	}
	files["mcp.json"] = telling("first.jsonl")
	write(t, dir, files)
	serve := func() *process {
		p := start(t, dir, "serve", "--listen", agents, "--admin", admin, "--log-level", "trace")
		ready(t, admin)
		return p
	}
	n := 0
	call := func(times int) {
		t.Helper()
		if !t.Run("calls", func(t *testing.T) { // an agent that is left open asks for its session after the kill, which has a record
			through := throughHTTP(t, agents)
			for range times {
				n++
				if got := through(t, doorCase{tool: "up__echo", args: fmt.Sprintf(`{"n":%d,"secret":"planted-secret"}`, n)}); got != "" {
					t.Fatal(got)
				}
			}
		}) {
			t.FailNow()
		}
	}

	p := serve()
	call(20)
	program.Await(t, "readiness says that the collector is away", func() bool {
		_, body, err := visit("http://"+admin+"/readyz?verbose", "")
		return err == nil && desk.tried() && strings.Contains(body, "toolgate.policy.log.url: decisions: not told, the trail is ") && strings.Contains(body, "it answered with status 503")
	})
	call(20)
	_ = p.cmd.Process.Kill()
	<-p.done
	desk.open()
	q := serve()
	call(20)
	write(t, dir, map[string]string{"mcp.json": telling("second.jsonl")})
	q.says("reloaded: ")
	call(20)

	// The trail says which decisions there are.
	var want []string
	for _, r := range outcomes(t, dir) {
		want = append(want, r.DecisionID)
	}
	slices.Sort(want)
	if len(want) != n {
		for _, r := range outcomes(t, dir) {
			t.Logf("%s %d: %s %s of %s, %s %s", r.Instance, r.Seq, r.Kind, r.DecisionID, r.CallID, r.Outcome, r.Arguments)
		}
		t.Fatalf("%d decisions of %d calls", len(want), n)
	}
	program.Await(t, "the collector has everything", func() bool { return len(desk.ids()) == n })
	if diff := gocmp.Diff(want, desk.ids()); diff != "" {
		t.Errorf("the collector (-want +got):\n%s", diff)
	}
	first, second := filepath.Join(dir, "first.jsonl"), filepath.Join(dir, "second.jsonl")
	program.Await(t, "the files have everything", func() bool {
		return len(ids(append(awaitEvents(t, first, 1), awaitEvents(t, second, 1)...))) == n
	})
	for _, e := range append(awaitEvents(t, first, 1), desk.events...) {
		checkTold(t, e)
	}
	program.Await(t, "the lag is nothing", func() bool {
		_, body, err := visit("http://"+admin+"/metrics", "")
		return err == nil && strings.Contains(body, `toolgate_decision_log_lag_records{sink="http"} 0`) && strings.Contains(body, `toolgate_decision_log_shipped_total{sink="file"}`)
	})
	for _, log := range []*process{p, q} {
		log.mu.Lock()
		if strings.Contains(log.out.String(), "planted-token") || strings.Contains(log.out.String(), "planted-path") {
			t.Error("the log tells a secret")
		}
		log.mu.Unlock()
	}
}

// checkTold checks what one event tells, and what it does not.
func checkTold(t *testing.T, e decisionlog.Event) {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.Contains(string(text), "planted"), e.RequestedBy != "somebody", !strings.Contains(string(e.Input), `"n":`),
		!slices.Equal(e.Erased, []string{"/input/arguments/secret"}), !slices.Equal(e.Masked, []string{"/input/principal/subject"}),
		e.Path != "toolgate/decision", !strings.HasPrefix(e.Bundles["toolgate"].Revision, "sha256:"), e.Labels["app"] != "toolgate",
		!slices.EqualFunc(e.RuleLabels, []map[string]string{{"rule": "all"}}, maps.Equal[map[string]string]):
		t.Fatalf("told %s", text)
	}
}

// What was decided in the last moments of a short run is told before it ends.
func TestDecisionLogOfAShortRun(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	dir := t.TempDir()
	files := doorFiles()
	files["policy/p.rego"] = tellingPolicy
	files["up.json"] = `{"Tools": [{"Name": "echo"}]}`
	files["mcp.json"] = strings.Replace(files["mcp.json"], `"path": "policy"`, `"path": "policy", "log": {"file": "decisions.jsonl"}`, 1)
	write(t, dir, files)
	t.Run("stdio", func(t *testing.T) {
		if got := throughStdio(t, dir)(t, doorCase{tool: "up__echo", args: `{"n":1}`}); got != "" {
			t.Fatal(got)
		}
	})
	text, err := os.ReadFile(filepath.Join(dir, "decisions.jsonl"))
	if err != nil || strings.Count(string(text), "\n") != 1 {
		t.Errorf("%s, %v", text, err)
	}
}
