package peers_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/recorder"
)

// patience is how long anything in these tests may take.
const patience = 60 * time.Second

// workDir is where the binary is built; it goes with the test run.
var workDir string

func TestMain(m *testing.M) {
	// A recorder is this binary again; toolgate supervises it, so no child of
	// the kind that package upstream starts is ever this binary.
	recorder.Main(func([]string) bool { return false }, nil)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolgate-peers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	workDir = dir
	return m.Run()
}

// build makes the toolgate under test. TOOLGATE_BINARY names one that is made
// already: a release, or what an operator has installed.
var build = sync.OnceValues(func() (string, error) {
	if made := os.Getenv("TOOLGATE_BINARY"); made != "" {
		return made, nil
	}
	path := filepath.Join(workDir, "toolgate")
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/toolgate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building toolgate: %w\n%s", err, out)
	}
	return path, nil
})

// binary gives the path of the toolgate under test.
func binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
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

// await polls until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// The two people of these tests and their bearer tokens.
const (
	agentToken    = "agent-token"
	approverToken = "approver-token"
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
}

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
	token := func(subject, role, secret string) string {
		return fmt.Sprintf(`{"subject": %q, "roles": [%q], "sha256": "%x"}`, subject, role, sha256.Sum256([]byte(secret)))
	}
	write(t, filepath.Join(filepath.Dir(path), "policy", "p.rego"), "package toolgate\n\nimport rego.v2\n\n"+s.policy+"\n")
	write(t, path, fmt.Sprintf(`{
  "mcpServers": {%s},
  "toolgate": {
    "state": "state", "policy": {"path": "policy"}, "results": %q, "limits": %s,
    "identity": {"tokens": [%s, %s]},
    "servers": {%s}
  }
}`, strings.Join(servers, ",\n    "), s.results, s.limits, token("agent", "agent", agentToken), token("carol", "approver", approverToken),
		strings.Join(settings, ",\n    ")))
}

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

// process is a toolgate that runs.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it is gone and waited for
	err    error         // how it ended, read after exited
	log    *lines        // its stderr
}

// lines gathers what is written to it.
type lines struct {
	mu   sync.Mutex // protects the fields below
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String gives all that was written so far.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// launch starts toolgate with its streams as given. It ends with the test, by TERM
// and if that does not help by KILL.
func launch(t testing.TB, dir string, in io.Reader, out, log io.Writer, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary(t), args...), exited: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = dir, in, out, log
	// A program that is killed leaves its pipes to its children for a while.
	p.cmd.WaitDelay = 5 * time.Second
	tether(p.cmd)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
		select {
		case <-p.exited:
		case <-time.After(15 * time.Second):
			t.Errorf("toolgate %s did not end 15 s after TERM", strings.Join(args, " "))
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
		if t.Failed() {
			t.Logf("stderr of toolgate %s:\n%s", args[0], p.log)
		}
	})
	return p
}

// kill ends the process as a crash would, and waits until it is gone.
func (p *process) kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
}

// wait waits until the process is gone.
func (p *process) wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatalf("toolgate did not end:\n%s", p.log)
	}
}

// gate is a running toolgate serve.
type gate struct {
	*process
	dir           string
	agents, admin string // base URLs
}

var (
	agentsLine = regexp.MustCompile(`agents connect\s+(http://\S+)/mcp`)
	adminLine  = regexp.MustCompile(`people look\s+(http://\S+)/console/`)
)

// serve starts toolgate serve on free ports and waits for its listeners, not
// for its upstreams.
func serve(t testing.TB, dir string) *gate {
	t.Helper()
	out, log := &lines{}, &lines{}
	p := launch(t, dir, nil, out, log, "serve", "--config", "mcp.json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	p.log = log
	g := &gate{process: p, dir: dir}
	await(t, "serve says where it listens", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("serve ended: %v\n%s", p.err, p.log)
		default:
		}
		a, b := agentsLine.FindStringSubmatch(out.String()), adminLine.FindStringSubmatch(out.String())
		if a == nil || b == nil {
			return false
		}
		g.agents, g.admin = a[1], b[1]
		return true
	})
	return g
}

// serveReady starts toolgate serve and waits for /readyz and for every server
// to be in the state wanted.
func serveReady(t testing.TB, dir string) *gate {
	t.Helper()
	g := serve(t, dir)
	await(t, "every server is ready", func() bool {
		for _, u := range g.status(t).Upstreams {
			if u.State != "ready" {
				return false
			}
		}
		return g.ready(t)
	})
	return g
}

// ready reports whether /readyz is 200.
func (g *gate) ready(t testing.TB) bool {
	t.Helper()
	res := get(t, g.admin+"/readyz", "")
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// status is what /readyz says as JSON.
type status struct {
	Ready     bool
	Upstreams []struct {
		Name, State, Error string
		Tools              int
		Warnings           []string
	}
}

func (g *gate) status(t testing.TB) status {
	t.Helper()
	res := get(t, g.admin+"/readyz?verbose", "application/json")
	defer res.Body.Close()
	var s status
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		t.Fatalf("reading /readyz: %v", err)
	}
	return s
}

// state gives one server's state.
func (g *gate) state(t testing.TB, name string) string {
	t.Helper()
	for _, u := range g.status(t).Upstreams {
		if u.Name == name {
			return u.State
		}
	}
	return ""
}

func get(t testing.TB, url, accept string) *http.Response {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// command runs one toolgate command to its end and gives its output and exit
// code.
func command(t testing.TB, dir string, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, binary(t), append(args, "--config", "mcp.json")...)
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
	if out, code := command(t, g.dir, "approval", "approve", ticket, "--token", approverToken, "--addr", g.admin); code != 0 {
		t.Fatalf("approving %s: exit %d: %s", ticket, code, out)
	}
}

// tickets gives the state of every ticket by its id.
func (g *gate) tickets(t testing.TB) map[string]string {
	t.Helper()
	out, code := command(t, g.dir, "approval", "list", "-o", "json", "--token", approverToken, "--addr", g.admin)
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
