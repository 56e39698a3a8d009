package peers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// upstream is a third-party server, with one call whose result never changes.
type upstream struct {
	name, tool string
	args       args
	direct     func(t testing.TB) rawClient // the same server without toolgate
}

// exposed returns the tool's name on /mcp.
func (u upstream) exposed() string { return u.name + "__" + u.tool }

// stage is a toolgate with five upstreams: three over stdio, and server-everything
// over Streamable HTTP and over the older HTTP+SSE.
type stage struct {
	*gate
	upstreams []upstream
	narrow    string                       // configuration with one stdio server, for toolgate stdio
	tools     map[string][]json.RawMessage // by server, as the server lists them
	results   map[string]json.RawMessage   // by server, the result without toolgate
}

// peersPolicy denies by argument, so that no tool is hidden.
const peersPolicy = `
decision := {"effect": "deny", "rule": "closed-city", "reason": "New York is closed", "remedy": "choose another city"} if {
	input.tool.name == "get-structured-content"
	input.arguments.location == "New York"
} else := {"effect": "allow", "rule": "peers"}`

// longRunning is the tool of server-everything that reports progress.
const longRunning = "trigger-long-running-operation"

// wantSteps is the number of progress notifications that the tests ask for.
const wantSteps = 3

// TestPeers connects third-party clients with third-party servers.
func TestPeers(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	s := newStage(t)
	t.Run("bytes", s.testBytes)
	t.Run("matrix", s.testMatrix)
	t.Run("denials", s.testDenials)
}

func npmServer(t testing.TB, name string) string {
	t.Helper()
	return requirePart(t, "@modelcontextprotocol/"+name+"/dist/index.js")
}

// newStage starts toolgate and the upstreams, and asks each upstream directly
// for its tools and its result.
func newStage(t *testing.T) *stage {
	node := requirePart(t, "node")
	everything, memory, files := npmServer(t, "server-everything"), npmServer(t, "server-memory"), npmServer(t, "server-filesystem")
	dir := t.TempDir()
	folder, graph := filepath.Join(dir, "files"), filepath.Join(dir, "memory.jsonl")
	write(t, filepath.Join(folder, "hello.txt"), "hello, \u00fcber & <all>\n")
	write(t, graph, `{"type":"entity","name":"seed","entityType":"plant","observations":["grows"]}`)
	remote, legacy := listenOn(t, everything, "streamableHttp")+"/mcp", listenOn(t, everything, "sse")+"/sse"
	// No client here has the older transport. The program behind it is the same.
	throughHTTP := func(t testing.TB) rawClient { return openHTTP(t, remote, "") }
	s := &stage{upstreams: []upstream{
		{"everything", "get-structured-content", args{"location": "Chicago"}, func(t testing.TB) rawClient { return openCommand(t, nil, node, everything, "stdio") }},
		{"files", "read_text_file", args{"path": filepath.Join(folder, "hello.txt")}, func(t testing.TB) rawClient { return openCommand(t, nil, node, files, folder) }},
		{"memory", "open_nodes", args{"names": []string{"seed"}}, func(t testing.TB) rawClient {
			return openCommand(t, []string{"MEMORY_FILE_PATH=" + graph}, node, memory)
		}},
		{"remote", "get-structured-content", args{"location": "Los Angeles"}, throughHTTP},
		{"legacy", "get-annotated-message", args{"messageType": "success", "includeImage": true}, throughHTTP},
	}, tools: map[string][]json.RawMessage{}, results: map[string]json.RawMessage{}}
	overHTTP := []server{
		{"remote", map[string]any{"type": "http", "url": remote}, nil},
		{"legacy", map[string]any{"type": "sse", "url": legacy}, nil},
	}
	const limits = `{"default": "100000/1m", "rules": [{"tool": "everything__get-tiny-image", "rate": "1/1h"}]}`
	first := map[string]any{"command": node, "args": []string{everything, "stdio"}}
	s.narrow = filepath.Join(configure(t, setup{policy: peersPolicy, limits: limits, servers: append([]server{{"everything", first, shared()}}, overHTTP...)}), "mcp.json")
	s.gate = serveReady(t, configure(t, setup{policy: peersPolicy, limits: limits, servers: append([]server{
		{"everything", first, nil},
		{"files", map[string]any{"command": node, "args": []string{files, folder}}, nil},
		{"memory", map[string]any{"command": node, "args": []string{memory}, "env": map[string]string{"MEMORY_FILE_PATH": graph}}, shared()},
	}, overHTTP...)}))
	for _, u := range s.upstreams {
		d := u.direct(t)
		s.tools[u.name] = list(t, d)
		s.results[u.name] = mustCall(t, d, u.tool, jsonText(t, u.args))
	}
	return s
}

// listenOn starts server-everything as an HTTP server and returns its base URL.
// The server accepts a port, not an address. If another process takes the port
// first, listenOn tries the next one.
func listenOn(t testing.TB, script, mode string) string {
	t.Helper()
	for range 5 {
		_, port, err := net.SplitHostPort(program.FreeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(requirePart(t, "node"), script, mode)
		cmd.Env = append(os.Environ(), "PORT="+port)
		program.Tether(cmd)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		listening, drained := make(chan bool, 1), make(chan struct{})
		go func() {
			defer close(drained)
			for in := bufio.NewScanner(stderr); in.Scan(); {
				if strings.HasSuffix(in.Text(), "on port "+port) {
					listening <- true
				}
			}
			close(listening)
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have exited
			<-drained
			_ = cmd.Wait()
		})
		select {
		case ok := <-listening:
			if ok {
				return "http://127.0.0.1:" + port
			}
		case <-time.After(timeout):
			t.Fatalf("%s does not listen", mode)
		}
	}
	t.Fatalf("%s found no free port", mode)
	return ""
}

// few returns the servers of the narrow configuration.
func (s *stage) few() []upstream { return append([]upstream{s.upstreams[0]}, s.upstreams[3:]...) }

// count returns the number of tools of servers.
func (s *stage) count(servers []upstream) (n int) {
	for _, u := range servers {
		n += len(s.tools[u.name])
	}
	return n
}

// awaitTools waits until a client lists n tools.
func awaitTools(t testing.TB, d rawClient, n int) {
	t.Helper()
	program.Await(t, "every tool is listed", func() bool { return len(list(t, d)) == n })
}

// testBytes compares lists, results and progress byte for byte, over /mcp and
// over stdio. TestRealDefinitions has more servers, without toolgate's _meta.
func (s *stage) testBytes(t *testing.T) {
	var all []string
	for _, u := range s.upstreams {
		all = append(all, texts(renamed(t, u.name, s.tools[u.name]))...)
		got := list(t, openHTTP(t, s.route(u.name).URL, agentToken))
		if diff := cmp.Diff(texts(s.tools[u.name]), texts(got)); diff != "" {
			t.Errorf("/mcp/%s (-server +toolgate):\n%s", u.name, diff)
		}
	}
	pipe := openStdio(t, s.Dir)
	awaitTools(t, pipe, s.count(s.upstreams))
	for name, d := range map[string]rawClient{"/mcp": openHTTP(t, s.route("").URL, agentToken), "stdio": pipe} {
		if diff := cmp.Diff(all, texts(list(t, d))); diff != "" {
			t.Errorf("%s (-server +toolgate):\n%s", name, diff)
		}
		for _, u := range s.upstreams {
			got := mustCall(t, d, u.exposed(), jsonText(t, u.args))
			if want := string(s.results[u.name]); without(t, got) != want {
				t.Errorf("%s of %s: got %s, want %s and toolgate's _meta", name, u.name, got, want)
			}
		}
		for _, server := range []string{"everything", "remote", "legacy"} {
			if diff := cmp.Diff(wantProgress(), progressOf(t, d, server+"__"+longRunning)); diff != "" {
				t.Errorf("%s, %s: progress (-want +got):\n%s", name, server, diff)
			}
		}
	}
}

func wantProgress() (all []string) {
	for i := range wantSteps {
		all = append(all, fmt.Sprintf("mine %d of %d", i+1, wantSteps))
	}
	return all
}

// progressOf calls a long-running tool with the progress token "mine" and returns
// the notifications that arrive before the answer, in order.
func progressOf(t testing.TB, d rawClient, tool string) (all []string) {
	t.Helper()
	answer := d.exchange(t, []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"_meta":{"progressToken":"mine"},"name":%q,"arguments":{"duration":0.3,"steps":%d}}}`, tool, wantSteps)))
	if result, _ := splitAnswer(answer); result == nil {
		t.Errorf("%s: %s", tool, answer)
	}
	for _, note := range d.notifications() {
		var n struct {
			Method string
			Params struct {
				ProgressToken   string
				Progress, Total int
			}
		}
		if err := json.Unmarshal(note, &n); err != nil {
			t.Fatal(err)
		}
		if n.Method == progressNote {
			all = append(all, fmt.Sprintf("%s %d of %d", n.Params.ProgressToken, n.Params.Progress, n.Params.Total))
		}
	}
	return all
}

func texts(tools []json.RawMessage) []string {
	var out []string
	for _, tool := range tools {
		out = append(out, string(tool))
	}
	return out
}

// renamed returns the tools with the names that agents see.
func renamed(t testing.TB, server string, tools []json.RawMessage) []json.RawMessage {
	t.Helper()
	var out []json.RawMessage
	for _, tool := range tools {
		with, err := jsonrpc.Set(tool, "name", jsonrpc.Quote(server+"__"+toolName(tool)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, with)
	}
	return out
}

// without returns a result without toolgate's own member of _meta.
func without(t testing.TB, result json.RawMessage) string {
	t.Helper()
	meta, ok := jsonrpc.Get(result, "_meta")
	if !ok {
		t.Fatalf("no _meta in %s", result)
	}
	if _, ok := jsonrpc.Get(meta, "io.toolgate/result"); !ok {
		t.Fatalf("no io.toolgate/result in %s", result)
	}
	meta, err := jsonrpc.Delete(meta, "io.toolgate/result")
	if err == nil && string(meta) == "{}" {
		result, err = jsonrpc.Delete(result, "_meta")
	} else if err == nil {
		result, err = jsonrpc.Set(result, "_meta", meta)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(result)
}

// shortPeers are one client per library and major version, and the inspector.
var shortPeers = []peer{inspectorSession, goStateless, typescript1, typescript2Session, mcpGoSession}

// testMatrix lists and calls tools of every server with every client over /mcp,
// and with the inspector over stdio. TestRevisions has the other routes; with
// TOOLGATE_SOAK=1 every client takes them here too.
func (s *stage) testMatrix(t *testing.T) {
	soak := shortOrSoak(0, 1) == 1
	for _, p := range shortPeers {
		inspector := p.name == "inspector"
		run := func(name string, at target, prefix bool, listed, called []upstream) {
			t.Run(p.String()+name, func(t *testing.T) {
				t.Parallel()
				s.visit(t, p, at.bare(), prefix, listed, called)
			})
		}
		called := s.upstreams
		if inspector && !soak { // one process per call
			called = called[:2]
		}
		run("/mcp", s.route(""), true, s.upstreams, called)
		if soak {
			run("/stdio", s.stdio(t, "mcp.json"), true, s.upstreams, s.upstreams)
			for _, u := range s.upstreams {
				run("/mcp/"+u.name, s.route(u.name), false, []upstream{u}, []upstream{u})
			}
		} else if inspector {
			run("/stdio", s.stdio(t, s.narrow), true, s.few(), s.few()[2:])
		}
	}
}

// visit lists the tools of servers and calls one tool of each server in called.
func (s *stage) visit(t *testing.T, p peer, at target, prefix bool, listed, called []upstream) {
	actions, want := []action{listTools(s.count(listed))}, []string(nil)
	nameOf := func(server, tool string) string {
		if prefix {
			return server + "__" + tool
		}
		return tool
	}
	for _, u := range listed {
		want = append(want, names(nameOf(u.name, ""), s.tools[u.name])...)
	}
	for _, u := range called {
		actions = append(actions, callTool(nameOf(u.name, u.tool), u.args))
	}
	got := p.run(t, at, p.revision, actions)
	if diff := cmp.Diff(want, unrooted(got[0].Names)); diff != "" {
		t.Errorf("list (-want +got), %s:\n%s", got[0].Failed, diff)
	}
	for i, u := range called {
		s.check(t, u, got[i+1])
	}
}

// unrooted removes the tool that server-everything offers only to clients with
// roots: the inspector has them.
func unrooted(tools []string) []string {
	return slices.DeleteFunc(tools, func(name string) bool { return strings.HasSuffix(name, "get-roots-list") })
}

func names(prefix string, tools []json.RawMessage) []string {
	var out []string
	for _, tool := range tools {
		out = append(out, prefix+toolName(tool))
	}
	return out
}

// check compares the result that a client shows with the server's own.
func (s *stage) check(t *testing.T, u upstream, got observation) {
	t.Helper()
	var want map[string]any
	if err := json.Unmarshal(s.results[u.name], &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain(want), plain(got.Result)); diff != "" {
		t.Errorf("%s (-server +client):\n%s\n%s", u.name, diff, got.Failed)
	}
	meta, _ := got.Result["_meta"].(map[string]any)
	own, _ := meta["io.toolgate/result"].(map[string]any)
	if own["status"] != "ok" {
		t.Errorf("%s: no io.toolgate/result with status ok in %s", u.name, got.text(t))
	}
}

// denial is a call that toolgate refuses, and its error on /mcp and on
// /mcp/{server}.
type denial struct {
	name, tool      string
	args            args
	code            string // canonical, in data.code
	gateway, server int    // JSON-RPC codes; 0 is a result with isError
}

var denials = []denial{
	{"denied by policy", "get-structured-content", args{"location": "New York"}, "POLICY_DENIED", -32600, 0},
	{"invalid arguments", "get-structured-content", args{"location": "Paris"}, "INVALID_TOOL_INPUT", -32600, 0},
	{"unknown tool", "nothing", nil, "TOOL_NOT_FOUND", -32601, -32602},
	{"uses up the rate limit", "get-tiny-image", nil, "", 0, 0}, // unless another client has done so
	{"beyond the rate limit", "get-tiny-image", nil, "RATE_LIMITED", -32001, -32001},
}

// testDenials checks what the clients show of a refusal, and that their session
// works after it.
func (s *stage) testDenials(t *testing.T) {
	sum := args{"a": 2, "b": 3}
	for _, p := range shortPeers {
		for name, w := range map[string]struct {
			prefix string
			at     target
			want   int
		}{
			"mcp":    {"everything__", s.route(""), s.count(s.upstreams)},
			"server": {"", s.route("everything"), len(s.tools["everything"])},
			"stdio":  {"everything__", s.stdio(t, s.narrow), s.count(s.few())},
		} {
			t.Run(p.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				if p.name == "inspector" { // it looks a tool up before it calls, and has no session after the call
					d := denials[0]
					d.check(t, p, name == "server", p.run(t, w.at.bare(), p.revision, []action{callTool(w.prefix+d.tool, d.args)})[0])
					return
				}
				actions := []action{listTools(w.want)}
				for _, d := range denials {
					actions = append(actions, callTool(w.prefix+d.tool, d.args))
				}
				got := p.run(t, w.at.bare(), p.revision, append(actions, callTool(w.prefix+"get-sum", sum)))
				for i, d := range denials {
					d.check(t, p, name == "server", got[1+i])
				}
				if last := got[len(got)-1].text(t); !strings.Contains(last, "The sum of 2 and 3 is 5.") {
					t.Errorf("after the refusals: %s", last)
				}
			})
		}
	}
}

// check compares a refusal with the expected error, as far as the client shows it.
func (d denial) check(t *testing.T, p peer, server bool, got observation) {
	t.Helper()
	want := d.gateway
	if server {
		want = d.server
	}
	switch {
	case d.code == "":
		return
	case want == 0:
		meta, _ := got.Result["_meta"].(map[string]any)
		own, _ := meta["io.toolgate/error"].(map[string]any)
		if got.Result["isError"] != true || own["code"] != d.code {
			t.Errorf("%s: got %s, want a result with isError and %s", d.name, got.text(t), d.code)
		}
		return
	case got.Failed == "" || got.Result != nil:
		t.Errorf("%s: got %s, want an error", d.name, got.text(t))
		return
	}
	if !p.showsErrors {
		return
	}
	var data struct{ Code string }
	if json.Unmarshal(got.Data, &data) != nil || got.Code != want || data.Code != d.code {
		t.Errorf("%s: got %s, want code %d with %s", d.name, got.text(t), want, d.code)
	}
}
