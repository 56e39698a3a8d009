package peers_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// pythonKit returns the parts of one requirements file of testdata/python. mcp1 has what
// needs major version 1 of the official SDK, tasks FastMCP with its tasks, mcp2 the rest.
func pythonKit(name string) *parts.Kit {
	venv := filepath.Join("venv", name)
	return &parts.Kit{
		Dir: "python", Lock: name + ".txt", Stamp: filepath.Join(venv, ".installed"), Target: "python",
		Commands: [][]string{
			{"python3", "-m", "venv", venv},
			{filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", name + ".txt"},
		},
	}
}

// python returns the interpreter of a kit, once everything in it is installed.
func python(t testing.TB, kit string) string {
	t.Helper()
	parts.Need(t, "python3")
	k := pythonKit(kit)
	k.File(t, k.Stamp)
	return k.File(t, filepath.Join("venv", kit, "bin", "python"))
}

// act is one act of a client in another language. Its result has the name Named.
type act struct {
	Named string `json:"named"`
	Do    string `json:"do"`
	Name  string `json:"name,omitempty"`
	Args  args   `json:"args"`
}

// featureActs are the acts on testdata/python/features.py.
var featureActs = []act{
	{"tools", "list_tools", "", nil},
	{"a call", "call", "echo", args{"text": "a", "times": 2}},
	{"a structured result", "call", "weather", args{"city": "Bonn"}},
	{"an error of the tool", "call", "fails", args{"reason": "x"}},
	{"an image", "call", "picture", args{}},
	{"progress", "call", "counts", args{"to": 3}},
	{"a log message", "call", "logs", args{"line": "l"}},
	{"elicitation", "call", "elicits", args{}},
	{"sampling", "call", "asks", args{}},
	{"resources", "list_resources", "", nil},
	{"templates", "list_resource_templates", "", nil},
	{"a resource", "read", "note://today", nil},
	{"a templated resource", "read", "note://monday/list", nil},
	{"no resource", "read", "nothing://", nil},
	{"prompts", "list_prompts", "", nil},
	{"a prompt", "prompt", "plan", args{"goal": "rest"}},
	{"a completion", "complete", "plan", args{"name": "goal", "value": "grow"}},
	{"cancellation", "cancel", "sleeps", args{}},
	{"bad arguments", "call", "echo", args{"text": 1}},
	{"no such tool", "call", "nothing", args{}},
}

// runActs performs acts with a program that reads a job from stdin and prints an object
// with one value for each act.
func runActs(t testing.TB, stdin any, command string, arguments ...string) map[string]any {
	t.Helper()
	stdout, stderr := run(t, []byte(jsonText(t, stdin)), command, arguments...)
	var out map[string]any
	if err := json.Unmarshal(stdout, &out); err != nil {
		t.Fatalf("%s printed %q: %v\n%s", filepath.Base(command), stdout, err, stderr)
	}
	for name, value := range out {
		out[name] = withoutOurs(value)
	}
	return out
}

// withoutOurs returns v without the members of _meta that toolgate adds.
func withoutOurs(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range []string{"_meta", "meta"} { // the second is what frameworks make of it
			meta, ok := v[name].(map[string]any)
			maps.DeleteFunc(meta, func(key string, _ any) bool { return strings.HasPrefix(key, "io.toolgate/") })
			delete(meta, "io.modelcontextprotocol/serverInfo") // it is toolgate that answers
			if ok && len(meta) == 0 {
				delete(v, name)
			}
		}
		for key, value := range v {
			v[key] = withoutOurs(value)
		}
	case []any:
		for i := range v {
			v[i] = withoutOurs(v[i])
		}
	}
	return v
}

// differences are the acts that come out otherwise through toolgate, and why.
type differences map[string]string

// wantActs compares what came of acts directly and through toolgate.
func wantActs(t *testing.T, direct, through map[string]any, known differences) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(direct)) {
		diff := cmp.Diff(direct[name], through[name])
		switch why, named := known[name]; {
		case diff != "" && !named:
			t.Errorf("%s (-directly +through toolgate):\n%s", name, diff)
		case diff == "" && named:
			t.Errorf("%s is the same through toolgate; the table says: %s", name, why)
		}
	}
	if len(through) != len(direct) || len(direct) == 0 {
		t.Errorf("%d acts through toolgate, %d directly", len(through), len(direct))
	}
}

// pythonScript returns the path of a script in testdata/python.
func pythonScript(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../testdata/python", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// features starts testdata/python/features.py and returns its URL.
func features(t testing.TB) string {
	t.Helper()
	address := program.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python(t, "mcp2"), pythonScript(t, "features.py"), port)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "FASTMCP_CHECK_FOR_UPDATES=off")
	program.Tether(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	program.Await(t, "features.py listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return "http://" + address + "/mcp"
}

// pythonServers are servers of the Python world over stdio, with a call that has a result
// and one that the tool answers with an error.
func pythonServers(t testing.TB) []pythonServer {
	t.Helper()
	two, one, dir := python(t, "mcp2"), python(t, "mcp1"), t.TempDir()
	repo := filepath.Join(dir, "repo")
	for _, arguments := range [][]string{{"init", "-q", repo}, {"-C", repo, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty", "-m", "first"}} {
		if out, err := exec.Command(parts.Need(t, "git"), arguments...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", arguments, err, out)
		}
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html><body><article><h1>Tomatoes</h1><p>They grow in the sun.</p></article></body></html>")) // the test sees what is missing
	}))
	t.Cleanup(page.Close)
	return []pythonServer{
		{"time", two, []string{"-m", "mcp_server_time", "--local-timezone", "UTC"}, []act{
			{"a call", "call", "convert_time", args{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}},
			{"an error", "call", "convert_time", args{"source_timezone": "Mars/Base", "time": "12:00", "target_timezone": "UTC"}},
		}},
		{"git", two, []string{"-m", "mcp_server_git", "--repository", repo}, []act{
			{"a call", "call", "git_status", args{"repo_path": repo}},
			{"an error", "call", "git_show", args{"repo_path": repo, "revision": "nothing"}},
		}},
		{"fetch", two, []string{"-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"}, []act{
			{"a call", "call", "fetch", args{"url": page.URL + "/"}},
			{"an error", "call", "fetch", args{"url": page.URL + "/missing"}},
			{"prompts", "list_prompts", "", nil},
		}},
		{"sqlite", filepath.Join(filepath.Dir(one), "mcp-server-sqlite"), []string{"--db-path", filepath.Join(dir, "a.db")}, []act{
			{"a call", "call", "read_query", args{"query": "SELECT 6*7 AS answer"}},
			{"an error", "call", "read_query", args{"query": "SELECT nothing"}},
			{"resources", "list_resources", "", nil},
			{"prompts", "list_prompts", "", nil},
		}},
	}
}

type pythonServer struct {
	name, command string
	args          []string
	acts          []act
}

// pythonModels are frameworks with the kit and the script that says what their model reads.
var pythonModels = []struct{ name, kit string }{
	{"openai-agents", "mcp2"}, {"pydantic-ai", "mcp2"}, {"langchain-mcp", "mcp1"}, {"google-adk", "mcp1"}, {"strands-agents", "mcp1"},
}

// pythonCalls are calls of models.
var pythonCalls = []modelCall{
	{"answered", "", "echo", args{"text": "hello"}}, {"structured", "", "weather", args{"city": "Bonn"}},
	{"failed, says the tool", "", "fails", args{"reason": "no sun"}}, {"an image", "", "picture", args{}},
}

// TestPython holds that clients, servers and frameworks of the Python world work through
// toolgate as they do without it.
func TestPython(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	servers, at := pythonServers(t), features(t)
	configured := []server{
		{"features", map[string]any{"type": "http", "url": at}, nil},
	}
	for _, s := range servers {
		configured = append(configured, server{s.name, map[string]any{"command": s.command, "args": s.args}, nil})
	}
	g := serveReady(t, configure(t, setup{servers: configured, policy: `
decision := {"effect": "deny", "rule": "no-gold", "reason": "gold is not for sale", "remedy": "ask for silver"} if {
	input.arguments.text == "gold"
} else := {"effect": "allow", "rule": "peers"}`}))
	t.Run("all", func(t *testing.T) { // the subtests end before the servers do
		for _, c := range []struct{ name, script, mode, server string }{
			{"sdk, session", "sdk.py", "legacy", "features"}, {"sdk, stateless", "sdk.py", "auto", "features"}, {"fastmcp", "fastmcp-client.py", "", "features"},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				perform := func(to target) map[string]any {
					job := map[string]any{"url": to.URL, "token": to.Token, "mode": c.mode, "acts": featureActs}
					return runActs(t, job, python(t, "mcp2"), pythonScript(t, "clients/"+c.script))
				}
				wantActs(t, perform(target{URL: at}), perform(g.route(c.server)), pythonDifferences[c.name])
			})
		}
		for _, s := range servers {
			t.Run("server "+s.name, func(t *testing.T) {
				t.Parallel()
				job := map[string]any{"mode": "auto", "acts": append([]act{{"tools", "list_tools", "", nil}}, s.acts...)}
				perform := func() map[string]any {
					return runActs(t, job, python(t, "mcp2"), pythonScript(t, "clients/sdk.py"))
				}
				job["command"], job["args"] = s.command, s.args
				direct := perform()
				delete(job, "command")
				job["url"], job["token"] = g.route(s.name).URL, agentToken
				wantActs(t, direct, perform(), pythonDifferences[s.name])
			})
		}
		for _, m := range pythonModels {
			t.Run("model of "+m.name, func(t *testing.T) {
				t.Parallel()
				to := g.route("features")
				testPythonModel(t, m.name, m.kit, target{URL: at}, to)
			})
		}
	})
}

// testPythonModel compares the definitions and the results that a framework gives its
// model, and keeps them in testdata/models, with the words of a denial.
func testPythonModel(t *testing.T, name, kit string, direct, through target) {
	ask := func(to target, calls []modelCall) (all []any) {
		job := map[string]any{"url": to.URL, "token": to.Token, "calls": calls}
		stdout, stderr := run(t, []byte(jsonText(t, job)), python(t, kit), pythonScript(t, "models/"+name+".py"))
		if err := json.Unmarshal(stdout, &all); err != nil || calls != nil && len(all) != len(calls) {
			t.Fatalf("%s printed %q: %v\n%s", name, stdout, err, stderr)
		}
		return all
	}
	definitions := ask(through, nil)
	if diff := cmp.Diff(ask(direct, nil), definitions); diff != "" || len(definitions) == 0 {
		t.Errorf("definitions (-directly +through toolgate):\n%s", diff)
	}
	denied := modelCall{"denied", "gold is not for sale", "echo", args{"text": "gold"}}
	read := ask(through, append(slices.Clone(pythonCalls), denied))
	if diff := cmp.Diff(ask(direct, pythonCalls), withoutOurs(slices.Clone(read[:len(pythonCalls)]))); diff != "" {
		t.Errorf("results (-directly +through toolgate):\n%s", diff)
	}
	if last := readable(t, read[len(pythonCalls)]); !strings.Contains(last, denied.says) {
		t.Errorf("the model reads %q of a denial, without %q", last, denied.says)
	}
	golden := &txtar.Archive{Comment: fmt.Appendf(nil, "What the model of %s (Python) is given: see internal/peers/python_test.go.\n\n", name)}
	for _, d := range definitions {
		text, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden.Files = append(golden.Files, txtar.File{Name: "a tool", Data: append(text, "\n\n"...)})
	}
	for i, c := range append(slices.Clone(pythonCalls), denied) {
		golden.Files = append(golden.Files, txtar.File{Name: c.outcome, Data: []byte(steady(readable(t, withoutOurs(read[i]))) + "\n\n")})
	}
	wantGolden(t, "python-"+name, golden)
}

// refusals are what toolgate answers itself, in its own words and before the server is asked.
var refusals = differences{
	"bad arguments": "toolgate compares arguments with the tool's schema first",
	"no such tool":  "toolgate answers a name that it does not offer",
}

// pythonDifferences has, by client or server, what is not the same through toolgate.
var pythonDifferences = map[string]differences{
	"sdk, session": refusals, "sdk, stateless": refusals, "fastmcp": refusals,
	"sqlite": {"revision": "toolgate speaks the newest revision that the client has, whatever the server's"},
}
