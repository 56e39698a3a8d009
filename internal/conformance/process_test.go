package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
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
)

// patience is how long anything but the suite itself may take to start or to
// end.
const patience = 60 * time.Second

// workDir is where binaries are built; it goes with the test run.
var workDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolgate-conformance-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	workDir = dir
	return m.Run()
}

// The program under test and the server behind it. The module pins both.
var (
	toolgate   = built("github.com/toolgate/toolgate/cmd/toolgate")
	everything = built("github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
)

// built gives a function that builds a program once and gives its path.
func built(pkg string) func(t testing.TB) string {
	build := sync.OnceValues(func() (string, error) {
		file := filepath.Join(workDir, filepath.Base(pkg))
		out, err := exec.Command("go", "build", "-o", file, pkg).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
		return file, nil
	})
	return func(t testing.TB) string {
		t.Helper()
		file, err := build()
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
}

// lines gathers what a process writes.
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

// process is a program that runs.
type process struct {
	cmd      *exec.Cmd
	out, log lines         // its stdout and stderr
	exited   chan struct{} // closed when it is gone and waited for
}

// launch starts a program. It ends with the test, by TERM and if that does not
// help by KILL.
func launch(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.log
	cmd.WaitDelay = 5 * time.Second
	tether(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // what it ends with does not matter: it is stopped
		close(p.exited)
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Errorf("%s did not end %v after TERM", p.cmd.Path, patience)
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if t.Failed() {
		t.Logf("stderr of %s:\n%s", p.cmd.Path, p.log.String())
	}
}

// await polls until a condition holds, and reports whether it did before the
// process ended.
func (p *process) await(t testing.TB, what string, holds func() bool) bool {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-p.exited:
			return false
		case <-deadline:
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
	return true
}

// startServer starts the everything-server and gives its URL. It cannot say
// which port it got, so it is given one that was free a moment ago.
func startServer(t testing.TB, args ...string) string {
	t.Helper()
	for range 5 {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := free.Addr().String()
		free.Close()
		p := launch(t, exec.Command(everything(t), append([]string{"-http", addr}, args...)...))
		if p.await(t, "the everything-server listens", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err == nil
		}) {
			return "http://" + addr
		}
	}
	t.Fatal("the everything-server does not start")
	return ""
}

// transparent is a toolgate that allows everything and adds nothing.
const transparent = `{
  "mcpServers": {"everything": {"type": "http", "url": %q}},
  "toolgate": {
    "state": "state", "policy": {"path": "policy"}, "results": "off", "limits": {"default": "off"},
    "servers": {"everything": {"isolation": "session", "pin": false}}
  }
}`

const allowAll = `package toolgate

import rego.v2

decision := {"effect": "allow", "rule": "conformance"}
`

var (
	agentsLine = regexp.MustCompile(`agents connect\s+(http://\S+)/mcp`)
	adminLine  = regexp.MustCompile(`people look\s+(http://\S+)/console/`)
)

// startToolgate starts toolgate serve before the server at url and gives the
// URL of the transparent route to it.
func startToolgate(t testing.TB, url string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "policy"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"mcp.json": fmt.Sprintf(transparent, url), "policy/p.rego": allowAll} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(toolgate(t), "serve", "--config", "mcp.json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Dir = dir
	p := launch(t, cmd)
	var agents, admin []string
	if !p.await(t, "toolgate is ready", func() bool {
		agents, admin = agentsLine.FindStringSubmatch(p.out.String()), adminLine.FindStringSubmatch(p.out.String())
		return agents != nil && admin != nil && ready(t, admin[1])
	}) {
		t.Fatalf("toolgate ended:\n%s", p.log.String())
	}
	return agents[1] + "/mcp/everything"
}

// ready reports whether the one server of a toolgate serves.
func ready(t testing.TB, admin string) bool {
	t.Helper()
	res, err := http.Get(admin + "/readyz?verbose")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return strings.Contains(text.String(), "upstream everything ready,")
}

// runSuite runs the suite against a URL and gives its results.
func runSuite(t testing.TB, s suite, url string) results {
	t.Helper()
	dir := t.TempDir()
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	defer stop()
	args := append([]string{installed(t, s.script), "server", "--url", url, "-o", dir}, s.args...)
	cmd := exec.CommandContext(ctx, node(t), args...)
	cmd.WaitDelay = 5 * time.Second
	tether(cmd)
	out, err := cmd.CombinedOutput()
	// It exits with 1 when checks fail, which the results tell better.
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("running the suite: %v\n%s", err, out)
	}
	return readResults(t, dir)
}

const modules = "../../testdata/conformance/node_modules"

// installed gives the path of a file below node_modules, which has to be there.
func installed(t testing.TB, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(modules, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s is not installed (make test-conformance): %v", pattern, err)
	}
	return found[0]
}

// node gives the path of the Node that came with the suite: it needs 22.
func node(t testing.TB) string {
	t.Helper()
	full, err := filepath.Abs(installed(t, "node-*/bin/node"))
	if err != nil {
		t.Fatal(err)
	}
	return full
}
