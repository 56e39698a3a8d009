package peers_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// timeout is the time limit of every wait in these tests.
const timeout = program.Timeout

func TestMain(m *testing.M) {
	// toolgate starts the recorders, so this binary never is a child of package
	// upstream.
	recorder.Main(func([]string) bool { return false }, nil)
	if os.Getenv(crowdServerVar) != "" {
		runCrowdServer()
	}
	if os.Getenv(eraServerVar) != "" {
		runEraServer()
	}
	if os.Getenv(restartServerVar) != "" {
		runRestartServer()
	}
	if os.Getenv(tracedVar) != "" {
		runTracer()
	}
	allowParallel()
	os.Exit(program.Run(m))
}

// allowParallel runs more tests at the same time than there are processors: most of
// their time they wait for processes and for notifications.
func allowParallel() {
	flag.Parse()
	if runtime.GOMAXPROCS(0) < 8 {
		_ = flag.Set("test.parallel", "3") // it is a flag of every test binary
	}
}

// requirePart returns the absolute path of a third-party part: a path below
// node_modules, or the name of a program.
func requirePart(t testing.TB, path string) string {
	t.Helper()
	if !strings.Contains(path, "/") {
		return parts.Need(t, path)
	}
	return npm.File(t, path)
}

// The bearer tokens of the principals agent, carol and dave. carol and dave are
// approvers.
const (
	agentToken    = "agent-token"
	approverToken = "approver-token"
	daveToken     = "dave-token"
)

// server is an entry of mcpServers with its settings under toolgate.servers.
type server struct {
	name            string
	entry, settings map[string]any
}

// setup describes a configuration.
type setup struct {
	servers []server
	policy  string // Rego after the package clause, "" allows everything
	limits  string // JSON, "" for a limit that no test reaches
	results string // mode, "" for compact
	agents  int    // number of further agents, each with its own token
	hold    string // hold time, "" for 0s, holdByClient for the default
	ttl     string // time to live of a ticket, "" for 15m
}

// holdByClient leaves the hold time to the client's name: none for toolgate-cli, the
// longest for an unknown client.
const holdByClient = "by client"

const allowAll = `decision := {"effect": "allow", "rule": "peers"}`

// configure writes a configuration into a new directory and returns the directory.
func configure(t testing.TB, s setup) string {
	t.Helper()
	dir := t.TempDir()
	var servers, settings []string
	for _, one := range s.servers {
		servers = append(servers, jsonText(t, one.name)+": "+jsonText(t, one.entry))
		if one.settings != nil {
			settings = append(settings, jsonText(t, one.name)+": "+jsonText(t, one.settings))
		}
	}
	if s.limits == "" {
		s.limits = `{"default": "100000/1m"}`
	}
	if s.policy == "" {
		s.policy = allowAll
	}
	if s.results == "" {
		s.results = "compact"
	}
	hold := ""
	if s.hold != holdByClient {
		hold = `, "hold": "` + cmp.Or(s.hold, "0s") + `"`
	}
	token := func(subject, role, secret string) string {
		return fmt.Sprintf(`{"subject": %q, "roles": [%q], "sha256": "%x"}`, subject, role, sha256.Sum256([]byte(secret)))
	}
	tokens := []string{token("agent", "agent", agentToken), token("carol", "approver", approverToken), token("dave", "approver", daveToken)}
	for n := range s.agents {
		tokens = append(tokens, token(fmt.Sprint("agent-", n), "agent", tokenOf(n)))
	}
	write(t, filepath.Join(dir, "policy", "p.rego"), "package toolgate\n\nimport rego.v2\n\n"+s.policy+"\n")
	write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{
  "mcpServers": {%s},
  "toolgate": {
    "state": "state", "keys": "keys", "policy": {"path": "policy", "timeout": "10s"}, "results": %q, "limits": %s,
    "approvals": {"ttl": %q%s},
    "identity": {"tokens": [%s]},
    "servers": {%s}
  }
}`, strings.Join(servers, ",\n    "), s.results, s.limits, cmp.Or(s.ttl, "15m"), hold, strings.Join(tokens, ", "),
		strings.Join(settings, ",\n    ")))
	return dir
}

// tokenOf returns the token of the n-th further agent.
func tokenOf(n int) string { return fmt.Sprint(agentToken, "-", n) }

func jsonText(t testing.TB, v any) string {
	t.Helper()
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stdioOf and httpOf return a server entry for a recorder.
func stdioOf(name string, rec *recorder.Recorder, settings map[string]any) server {
	return server{name, map[string]any{"command": rec.Command, "args": rec.Args, "env": rec.Env}, settings}
}

func httpOf(name string, rec *recorder.Recorder, settings map[string]any) server {
	return server{name, map[string]any{"type": "http", "url": rec.URL}, settings}
}

// shared returns settings with one connection for all sessions, so that a test can
// count what reaches the server.
func shared() map[string]any { return map[string]any{"isolation": "shared"} }

// gate is a running toolgate serve.
type gate struct{ *program.Gate }

func serve(t testing.TB, dir string) *gate {
	t.Helper()
	return &gate{program.Serve(t, dir)}
}

func serveReady(t testing.TB, dir string) *gate {
	t.Helper()
	return &gate{program.ServeReady(t, dir)}
}

// route is a target on the agents' listener: /mcp, or /mcp/{server} with a name.
func (g *gate) route(server string) target {
	return target{URL: strings.TrimSuffix(g.Agents+"/mcp/"+server, "/"), Token: agentToken}
}

// stdio is a toolgate stdio that the client starts, with a configuration file.
func (g *gate) stdio(t testing.TB, config string) target {
	t.Helper()
	return target{Command: program.Toolgate(t), Dir: g.Dir, Args: []string{"stdio", "--config", config, "--token", agentToken}}
}

// runCommand runs a toolgate command and returns its output and exit code.
func runCommand(t testing.TB, dir string, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	cmd := exec.CommandContext(ctx, program.Toolgate(t), append(args, "--config", "mcp.json")...)
	cmd.Dir = dir
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		t.Fatalf("toolgate %s: %v", strings.Join(args, " "), err)
	}
	if log.Len() > 0 {
		t.Logf("toolgate %s: %s", strings.Join(args, " "), log.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// report is the output of audit verify.
type report struct {
	OK     bool
	Chains []struct {
		Records    int
		Closed     bool
		Unfinished []struct{ Server, Tool string }
	}
}

// verifyTrail runs audit verify on the trail of dir and requires an intact trail.
func verifyTrail(t testing.TB, dir string) report {
	t.Helper()
	out, code := runCommand(t, dir, "audit", "verify", "-o", "json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("reading the report: %v: %s", err, out)
	}
	if code != 0 || !r.OK || len(r.Chains) == 0 {
		t.Errorf("audit verify: exit %d: %s", code, out)
	}
	return r
}

// approve has carol approve a ticket.
func (g *gate) approve(t testing.TB, ticket string) {
	t.Helper()
	if out, code := runCommand(t, g.Dir, "approval", "approve", ticket, "--token", approverToken, "--addr", g.Admin); code != 0 {
		t.Fatalf("approving %s: exit %d: %s", ticket, code, out)
	}
}

// tickets returns the state of every ticket by ID.
func (g *gate) tickets(t testing.TB) map[string]string {
	t.Helper()
	out, code := runCommand(t, g.Dir, "approval", "list", "-o", "json", "--token", approverToken, "--addr", g.Admin)
	var found struct{ Approvals []struct{ ID, State string } }
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != 0 {
		t.Fatalf("listing tickets: exit %d, %v: %s", code, err, out)
	}
	states := make(map[string]string)
	for _, a := range found.Approvals {
		states[a.ID] = a.State
	}
	return states
}
