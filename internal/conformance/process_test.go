package conformance_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

func TestMain(m *testing.M) { os.Exit(program.Run(m)) }

// The third-party server and client. go.mod pins their version.
var (
	everything = program.Built("github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	client     = program.Built("github.com/modelcontextprotocol/go-sdk/conformance/everything-client")
)

// startServer starts the everything-server and returns its URL.
func startServer(t testing.TB, args ...string) string {
	t.Helper()
	_, addr := program.LaunchAt(t, func(addr string) *exec.Cmd {
		return exec.Command(everything(t), append([]string{"-http", addr}, args...)...)
	})
	return "http://" + addr
}

// transparent is a configuration with toolgate's defaults and a policy that allows everything.
const transparent = `{
  "mcpServers": {"everything": %s},
  "toolgate": {%s "state": "state", "policy": {"path": "policy"}}
}`

const allowAll = `package toolgate

import rego.v2

decision := {"effect": "allow", "rule": "conformance"}
`

// startToolgate starts toolgate serve in front of a server, which is as mcp.json
// describes it, with further settings, and returns the URL of /mcp/{server}.
func startToolgate(t testing.TB, server, settings string) string {
	t.Helper()
	return startGate(t, server, settings).Agents + "/mcp/everything"
}

// startGate is startToolgate for those who need both listeners.
func startGate(t testing.TB, server, settings string) *program.Gate {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "policy"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"mcp.json": fmt.Sprintf(transparent, server, settings), "policy/p.rego": allowAll} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return program.ServeReady(t, dir)
}

// Environment variables of TestClientThroughToolgate: the third-party client, and
// the scenarios that are left out.
const (
	clientVar = "TOOLGATE_CONFORMANCE_CLIENT"
	apartVar  = "TOOLGATE_CONFORMANCE_APART"
)

// TestClientThroughToolgate runs in place of a client when the suite starts this
// binary. It starts toolgate in front of the suite's server, whose URL is its
// argument, and runs the third-party client.
func TestClientThroughToolgate(t *testing.T) {
	real := os.Getenv(clientVar)
	if real == "" {
		t.Skip("the suite runs this test")
	}
	if apart(strings.Fields(os.Getenv(apartVar)), os.Getenv("MCP_CONFORMANCE_SCENARIO")) {
		return
	}
	cmd := exec.Command(real, startToolgate(t, fmt.Sprintf(`{"type": "http", "url": %q}`, flag.Arg(0)), ""))
	program.Tether(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// runServerSuite runs the suite against the server at url.
func runServerSuite(t testing.TB, s suite, url string) results {
	t.Helper()
	return runSuite(t, nil, s, "server", "--url", url)
}

// runClientSuite runs the suite with the client, directly or through a toolgate in
// front of each of the suite's servers.
func runClientSuite(t testing.TB, s suite, through bool) results {
	t.Helper()
	command, env := client(t), []string(nil)
	if through {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		env = []string{clientVar + "=" + command, apartVar + "=" + strings.Join(s.apart, " "), program.BinaryVar + "=" + program.Toolgate(t)}
		command = self + " -test.run=^TestClientThroughToolgate$ -test.timeout=5m"
	}
	return runSuite(t, env, s, "client", "--timeout", "120000", "--command", command)
}

// runSuite runs the suite in one of its modes and returns its results.
func runSuite(t testing.TB, env []string, s suite, mode ...string) results {
	t.Helper()
	dir := t.TempDir()
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	defer stop()
	args := append([]string{installed(t, s.script)}, mode...)
	cmd := exec.CommandContext(ctx, node(t), append(append(args, "-o", dir), s.args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	program.Tether(cmd)
	out, err := cmd.CombinedOutput()
	// It exits with 1 when checks fail; the results say which.
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("running the suite: %v\n%s", err, out)
	}
	return readResults(t, dir, s)
}

// pinned is the suite, with a Node of its own.
var pinned = parts.Kit{
	Dir: "conformance", Lock: "package-lock.json", Stamp: "node_modules/.package-lock.json", Target: "npm",
	Commands: [][]string{{"npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"}},
}

// installed returns the path of an installed file below node_modules.
func installed(t testing.TB, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(pinned.File(t, "node_modules"), pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("the suite has no %s: %v", pattern, err)
	}
	return found[0]
}

// node returns the path of the Node that was installed with the suite, which needs
// version 22.
func node(t testing.TB) string {
	t.Helper()
	full, err := filepath.Abs(installed(t, "node-*/bin/node"))
	if err != nil {
		t.Fatal(err)
	}
	return full
}
