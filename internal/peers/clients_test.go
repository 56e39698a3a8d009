package peers_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// target is where a client connects: a URL, or a command that the client starts.
type target struct {
	URL     string   `json:"url,omitempty"`
	Token   string   `json:"token,omitempty"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	// Bare makes the client declare no capabilities.
	Bare    bool `json:"bare,omitempty"`
	lingers bool // the command does not exit when its stdin ends
	tools   int  // number of tools once every server is ready; 0 is not checked
}

// bare returns the target for a client without capabilities.
func (at target) bare() target {
	at.Bare = true
	return at
}

// peer is a third-party client at one protocol revision. run performs the
// actions in one session and returns one observation per action.
type peer struct {
	name, revision string
	run            func(t *testing.T, at target, revision string, actions []action) []observation
	showsErrors    bool // shows code and data of a JSON-RPC error
	acceptsTasks   bool // accepts a task in place of a result, and waits for its result
}

var (
	inspectorSession     = peer{name: "inspector", revision: sessionRevision, run: runInspector}
	inspectorStateless   = peer{name: "inspector", revision: statelessRevision, run: runInspector, acceptsTasks: true}
	goSession            = peer{name: "go-sdk", revision: sessionRevision, run: runGo, showsErrors: true}
	goStateless          = peer{name: "go-sdk", revision: statelessRevision, run: runGo, showsErrors: true}
	mcpGoSession         = peer{name: "mcp-go", revision: sessionRevision, run: runMCPGo}
	mcpGoStateless       = peer{name: "mcp-go", revision: statelessRevision, run: runMCPGo}
	typescript1          = peer{name: "typescript 1", revision: sessionRevision, run: runTypeScript(1), showsErrors: true}
	typescript2Session   = peer{name: "typescript 2", revision: sessionRevision, run: runTypeScript(2), showsErrors: true}
	typescript2Stateless = peer{name: "typescript 2", revision: statelessRevision, run: runTypeScript(2), showsErrors: true}

	// libraries are the clients that keep one session for several actions.
	libraries = []peer{goSession, goStateless, mcpGoSession, mcpGoStateless, typescript1, typescript2Session, typescript2Stateless}
)

func (p peer) String() string { return p.name + " " + p.revision }

func listTools(want int) action { return action{Named: "tools", Op: "tools", Want: want} }

func callTool(name string, args args) action {
	return action{Named: name, Op: "call", Name: name, Args: args}
}

// runInspector runs the CLI of the MCP inspector, one process per action.
func runInspector(t *testing.T, at target, revision string, actions []action) (all []observation) {
	t.Helper()
	args := []string{requirePart(t, "@modelcontextprotocol/inspector/clients/launcher/build/index.js"), "--cli"}
	if at.URL == "" {
		session := filepath.Join(t.TempDir(), "session.json")
		entry := map[string]any{"type": "stdio", "command": at.Command, "args": at.Args}
		if at.Dir != "" {
			entry["cwd"] = at.Dir
		}
		write(t, session, jsonText(t, map[string]any{"mcpServers": map[string]any{"gate": entry}}))
		args = append(args, "--config", session, "--server", "gate")
	} else {
		args = append(args, at.URL, "--transport", "http")
	}
	if at.Token != "" {
		args = append(args, "--header", "Authorization: Bearer "+at.Token)
	}
	revisions := map[string]string{sessionRevision: "legacy", statelessRevision: "modern"}
	args = append(args, "--protocol-era", revisions[revision], "--format", "json", "-q")
	for _, a := range actions {
		one := append(slices.Clone(args), a.inspectorArgs(t)...)
		all = append(all, inspect(t, one))
	}
	return all
}

// inspectorArgs returns the flags of the inspector for an action.
func (a action) inspectorArgs(t testing.TB) []string {
	t.Helper()
	switch a.Op {
	case "tools":
		return []string{"--method", "tools/list"}
	case "call":
		return []string{"--method", "tools/call", "--tool-name", a.Name, "--tool-args-json", jsonText(t, a.arguments())}
	case "read":
		return []string{"--method", "resources/read", "--uri", a.URI}
	case "prompt":
		args := []string{"--method", "prompts/get", "--prompt-name", a.Name, "--prompt-args"}
		for _, name := range slices.Sorted(maps.Keys(a.Args)) {
			args = append(args, fmt.Sprint(name, "=", a.Args[name]))
		}
		return args
	}
	t.Fatalf("the inspector has no action %s", a.Op)
	return nil
}

// inspect runs one inspector.
func inspect(t *testing.T, args []string) observation {
	t.Helper()
	stdout, stderr := node(t, nil, args...)
	var got struct{ Result map[string]any }
	if err := json.Unmarshal(bytes.TrimSpace(stdout), &got); err != nil || got.Result == nil {
		return observation{Failed: cmp.Or(strings.TrimSpace(string(stderr)), "no output")}
	}
	tools, ok := got.Result["tools"].([]any)
	if !ok {
		return observation{Result: got.Result}
	}
	o := observation{Names: []string{}}
	for _, tool := range tools {
		tool, _ := tool.(map[string]any)
		name, _ := tool["name"].(string)
		o.Names = append(o.Names, name)
	}
	return o
}

// runTypeScript runs the client of the TypeScript SDK of a major version.
func runTypeScript(major int) func(t *testing.T, at target, revision string, actions []action) []observation {
	return func(t *testing.T, at target, revision string, actions []action) []observation {
		t.Helper()
		requirePart(t, "@modelcontextprotocol/client/package.json")
		script, err := filepath.Abs("../../testdata/npm/client.mjs")
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr := node(t, []byte(jsonText(t, map[string]any{
			"target": at, "revision": revision, "major": major, "actions": actions, "rootURI": rootURI, "model": answeredModel,
		})), script)
		var all []observation
		if err := json.Unmarshal(stdout, &all); err != nil || len(all) != len(actions) {
			t.Fatalf("the client printed %q: %v\n%s", stdout, err, stderr)
		}
		return all
	}
}

// node runs a script until it exits, with any exit code, in its own home
// directory.
func node(t *testing.T, stdin []byte, args ...string) (stdout, stderr []byte) {
	t.Helper()
	return run(t, stdin, requirePart(t, "node"), args...)
}

// run runs a program as node does.
func run(t testing.TB, stdin []byte, command string, args ...string) (stdout, stderr []byte) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 4*timeout) // a client may wait for two approvals
	defer stop()
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdin = bytes.NewReader(stdin)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.WaitDelay = 5 * time.Second
	program.Tether(cmd)
	var x *exec.ExitError
	if err := cmd.Run(); err != nil && (!errors.As(err, &x) || ctx.Err() != nil) {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(command), strings.Join(args, " "), err, log.Bytes())
	}
	return out.Bytes(), log.Bytes()
}

// bearer adds a token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}
