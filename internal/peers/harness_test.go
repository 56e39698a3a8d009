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

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// patience is how long anything in these tests may take.
const patience = program.Patience

func TestMain(m *testing.M) {
	// A recorder is this binary again; toolgate supervises it, so no child of
	// the kind that package upstream starts is ever this binary.
	recorder.Main(func([]string) bool { return false }, nil)
	if os.Getenv(confidingVar) != "" {
		confide()
	}
	if os.Getenv(steadyVar) != "" {
		beSteady()
	}
	if os.Getenv(steppedVar) != "" {
		beStepped()
	}
	abreast()
	os.Exit(program.Run(m))
}

// abreast lets more tests run at the same time than there are processors: these
// wait for processes, and for servers that tell something now and then.
func abreast() {
	flag.Parse()
	if runtime.GOMAXPROCS(0) < 8 {
		_ = flag.Set("test.parallel", "3") // it is a flag of every test binary
	}
}

// needs skips the test when a third-party part is missing; in CI it fails. It
// gives the part's absolute path. The path is one of node_modules, or with no
// slash in it a program.
func needs(t testing.TB, path string) string {
	t.Helper()
	missing := t.Skipf
	if os.Getenv("CI") == "true" {
		missing = t.Fatalf
	}
	if !strings.Contains(path, "/") {
		found, err := exec.LookPath(path)
		if err != nil {
			missing("%s is not installed: %v", path, err)
		}
		return found
	}
	full, err := filepath.Abs(filepath.Join("../../testdata/npm/node_modules", path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(full); err != nil {
		missing("%s is not installed (make npm): %v", path, err)
	}
	return full
}

// The people of these tests and their bearer tokens: an agent, carol, and dave,
// who approves too.
const (
	agentToken    = "agent-token"
	approverToken = "approver-token"
	daveToken     = "dave-token"
)

// server is one entry of mcpServers with its settings under toolgate.servers.
type server struct {
	name            string
	entry, settings map[string]any
}

// setup is what a configuration is made of.
type setup struct {
	servers []server
	policy  string // Rego after the package clause, "" allows everything
	limits  string // JSON, "" limits nothing that a test could reach
	results string // mode, "" is compact
	agents  int    // how many more agents there are, each with a token of its own
	hold    string // how long a call waits for a person, "" answers at once, byClient as its client bears
	ttl     string // how long its ticket lives, "" is 15 minutes
}

// byClient leaves it to the client's name how long a call waits: toolgate-cli
// does not at all, one that nobody knows as long as any.
const byClient = "by client"

const allowAll = `decision := {"effect": "allow", "rule": "peers"}`

// configure writes a configuration into a directory of its own and gives that
// directory.
func configure(t testing.TB, s setup) string {
	t.Helper()
	dir := t.TempDir()
	configureAt(t, filepath.Join(dir, "mcp.json"), s)
	return dir
}

// configureAt writes a configuration to path and its policy beside it.
func configureAt(t testing.TB, path string, s setup) {
	t.Helper()
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
	if s.hold != byClient {
		hold = `, "hold": "` + cmp.Or(s.hold, "0s") + `"`
	}
	token := func(subject, role, secret string) string {
		return fmt.Sprintf(`{"subject": %q, "roles": [%q], "sha256": "%x"}`, subject, role, sha256.Sum256([]byte(secret)))
	}
	tokens := []string{token("agent", "agent", agentToken), token("carol", "approver", approverToken), token("dave", "approver", daveToken)}
	for n := range s.agents {
		tokens = append(tokens, token(fmt.Sprint("agent-", n), "agent", tokenOf(n)))
	}
	write(t, filepath.Join(filepath.Dir(path), "policy", "p.rego"), "package toolgate\n\nimport rego.v2\n\n"+s.policy+"\n")
	write(t, path, fmt.Sprintf(`{
  "mcpServers": {%s},
  "toolgate": {
    "state": "state", "policy": {"path": "policy", "timeout": "10s"}, "results": %q, "limits": %s,
    "approvals": {"ttl": %q%s},
    "identity": {"tokens": [%s]},
    "servers": {%s}
  }
}`, strings.Join(servers, ",\n    "), s.results, s.limits, cmp.Or(s.ttl, "15m"), hold, strings.Join(tokens, ", "),
		strings.Join(settings, ",\n    ")))
}

// tokenOf is the token of the n-th of the agents that setup adds.
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

// stdioOf and httpOf are servers that a recorder plays.
func stdioOf(name string, rec *recorder.Recorder, settings map[string]any) server {
	return server{name, map[string]any{"command": rec.Command, "args": rec.Args, "env": rec.Env}, settings}
}

func httpOf(name string, rec *recorder.Recorder, settings map[string]any) server {
	return server{name, map[string]any{"type": "http", "url": rec.URL}, settings}
}

// shared is for servers whose one connection all sessions use, so that a test
// can count what reaches them.
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

// command runs one toolgate command to its end and gives its output and exit
// code.
func command(t testing.TB, dir string, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
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

// report is what audit verify says.
type report struct {
	OK     bool
	Chains []struct {
		Records    int
		Closed     bool
		Unfinished []struct{ Server, Tool string }
	}
}

// verify runs audit verify over the trail of dir and wants it whole.
func verify(t testing.TB, dir string) report {
	t.Helper()
	out, code := command(t, dir, "audit", "verify", "-o", "json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("reading the report: %v: %s", err, out)
	}
	if code != 0 || !r.OK || len(r.Chains) == 0 {
		t.Errorf("audit verify: exit %d: %s", code, out)
	}
	return r
}

// approve lets carol approve a ticket.
func (g *gate) approve(t testing.TB, ticket string) {
	t.Helper()
	if out, code := command(t, g.Dir, "approval", "approve", ticket, "--token", approverToken, "--addr", g.Admin); code != 0 {
		t.Fatalf("approving %s: exit %d: %s", ticket, code, out)
	}
}

// tickets gives the state of every ticket by its id.
func (g *gate) tickets(t testing.TB) map[string]string {
	t.Helper()
	out, code := command(t, g.Dir, "approval", "list", "-o", "json", "--token", approverToken, "--addr", g.Admin)
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
