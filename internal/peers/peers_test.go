package peers_test

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// upstream is a server that nobody here wrote, with one call whose result is
// always the same.
type upstream struct {
	name       string
	tool, args string
	direct     func(t testing.TB) door // the same server without toolgate
}

// exposed is the tool's name on /mcp.
func (u upstream) exposed() string { return u.name + "__" + u.tool }

// stage is a toolgate before every upstream: three over stdio, server-everything
// also over Streamable HTTP and over the older HTTP+SSE.
type stage struct {
	*gate
	upstreams []upstream
	narrow    string                       // a configuration for toolgate stdio that starts one process only
	beside    string                       // another that shares the state of serve and has memory alone
	tools     map[string][]json.RawMessage // by server, as it lists them itself
	results   map[string]json.RawMessage   // by server, the call's result without toolgate
}

// peersPolicy denies and holds by arguments, so that no tool is hidden.
const peersPolicy = `
decision := {"effect": "deny", "rule": "closed-city", "reason": "New York is closed", "remedy": "choose another city"} if {
	input.tool.name == "get-structured-content"
	input.arguments.location == "New York"
} else := {"effect": "hold", "rule": "held-entity", "reason": "a person looks at these", "approval": {"roles": ["approver"]}} if {
	input.tool.name == "create_entities"
	some entity in input.arguments.entities
	entity.entityType == "held"
} else := {"effect": "allow", "rule": "peers"}`

// longRunning is the tool of server-everything that reports progress.
const longRunning = "trigger-long-running-operation"

// wantSteps is how many steps of progress are asked for.
const wantSteps = 3

// TestPeers puts real clients and real servers together.
func TestPeers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	t.Run("lists", s.testLists)
	t.Run("results", s.testResults)
	t.Run("matrix", s.testMatrix)
	t.Run("denials", s.testDenials)
	t.Run("progress", s.testProgress)
	t.Run("cancel", s.testCancel)
	t.Run("held", s.testHeld)
}

func npmServer(t testing.TB, name string) string {
	t.Helper()
	return needs(t, "@modelcontextprotocol/"+name+"/dist/index.js")
}

// newStage starts everything.
func newStage(t *testing.T) *stage {
	node := needs(t, "node")
	everything, memory, files := npmServer(t, "server-everything"), npmServer(t, "server-memory"), npmServer(t, "server-filesystem")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "files", "hello.txt"), "hello, \u00fcber & <all>\n")
	graph := filepath.Join(dir, "memory.jsonl")
	write(t, graph, `{"type":"entity","name":"seed","entityType":"plant","observations":["grows"]}`)
	remote, legacy := listenOn(t, everything, "streamableHttp")+"/mcp", listenOn(t, everything, "sse")+"/sse"
	folder := filepath.Join(dir, "files")
	memoryEnv := map[string]string{"MEMORY_FILE_PATH": graph}
	command := func(env map[string]string, args ...string) map[string]any {
		entry := map[string]any{"command": node, "args": args}
		if env != nil {
			entry["env"] = env
		}
		return entry
	}
	s := &stage{upstreams: []upstream{
		{"everything", "get-structured-content", `{"location":"Chicago"}`, func(t testing.TB) door { return openCommand(t, nil, node, everything, "stdio") }},
		{"files", "read_text_file", jsonText(t, map[string]string{"path": filepath.Join(folder, "hello.txt")}), func(t testing.TB) door { return openCommand(t, nil, node, files, folder) }},
		{"memory", "open_nodes", `{"names":["seed"]}`, func(t testing.TB) door {
			return openCommand(t, []string{"MEMORY_FILE_PATH=" + graph}, node, memory)
		}},
		{"remote", "get-structured-content", `{"location":"Los Angeles"}`, func(t testing.TB) door { return openHTTP(t, remote, "") }},
		{"legacy", "get-annotated-message", `{"messageType":"success","includeImage":true}`, nil},
	}}
	overHTTP := []server{
		{"remote", map[string]any{"type": "http", "url": remote}, nil},
		{"legacy", map[string]any{"type": "sse", "url": legacy}, nil},
	}
	const limits = `{"default": "100000/1m", "rules": [{"tool": "everything__get-tiny-image", "rate": "1/1h"}]}`
	s.narrow = filepath.Join(configure(t, setup{policy: peersPolicy, limits: limits, servers: append([]server{
		{"everything", command(nil, everything, "stdio"), shared()},
	}, overHTTP...)}), "mcp.json")
	graphed := server{"memory", command(memoryEnv, memory), shared()}
	dir = configure(t, setup{policy: peersPolicy, limits: limits, servers: append([]server{
		{"everything", command(nil, everything, "stdio"), nil},
		{"files", command(nil, files, folder), nil},
		graphed,
	}, overHTTP...)})
	s.beside = filepath.Join(dir, "beside.json")
	configureAt(t, s.beside, setup{policy: peersPolicy, servers: []server{graphed}})
	s.gate = serveReady(t, dir)
	s.learn(t)
	return s
}

// learn asks each server itself what it offers and answers.
func (s *stage) learn(t testing.TB) {
	t.Helper()
	s.tools, s.results = map[string][]json.RawMessage{}, map[string]json.RawMessage{}
	for _, u := range s.upstreams {
		if u.direct == nil {
			continue
		}
		d := u.direct(t)
		s.tools[u.name] = list(t, d)
		s.results[u.name] = mustCall(t, d, u.tool, u.args)
	}
	// No client here speaks to the older transport by itself; the program
	// behind it is the same.
	s.tools["legacy"] = s.tools["remote"]
	s.results["legacy"] = mustCall(t, s.upstreams[3].direct(t), "get-annotated-message", s.upstreams[4].args)
}

// listenOn starts server-everything as an HTTP server and gives its base URL.
// The server takes a port and no address; another process may take the port
// first, so it is tried again.
func listenOn(t testing.TB, script, mode string) string {
	t.Helper()
	for range 5 {
		port := freePort(t)
		cmd := exec.Command(needs(t, "node"), script, mode)
		cmd.Env = append(os.Environ(), "PORT="+port)
		program.Tether(cmd)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said, drained := make(chan bool, 1), make(chan struct{})
		go func() {
			defer close(drained)
			for in := bufio.NewScanner(stderr); in.Scan(); {
				if strings.HasSuffix(in.Text(), "on port "+port) {
					said <- true
				}
			}
			close(said)
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended already
			<-drained
			_ = cmd.Wait()
		})
		select {
		case listens := <-said:
			if listens {
				return "http://127.0.0.1:" + port
			}
		case <-time.After(patience):
			t.Fatalf("%s does not listen", mode)
		}
	}
	t.Fatalf("%s found no free port", mode)
	return ""
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// all, one and pipe are the three ways through the gate.
func (s *stage) all() way { return way{URL: s.Agents + "/mcp", Token: agentToken} }

func (s *stage) one(name string) way {
	return way{URL: s.Agents + "/mcp/" + name, Token: agentToken}
}

func (s *stage) pipe(t testing.TB, config string) way {
	return way{Command: program.Toolgate(t), Dir: filepath.Dir(config), Args: []string{"stdio", "--config", config, "--token", agentToken}}
}

// wide is the configuration of serve.
func (s *stage) wide() string { return filepath.Join(s.Dir, "mcp.json") }

// few are the servers of the narrow configuration.
func (s *stage) few() []upstream { return append([]upstream{s.upstreams[0]}, s.upstreams[3:]...) }

// count tells how many tools servers have together.
func (s *stage) count(servers []upstream) (n int) {
	for _, u := range servers {
		n += len(s.tools[u.name])
	}
	return n
}

// counted is a way with the number of tools at its end.
type counted struct {
	way  way
	want int
}

// both are the two transports, with server-everything behind each transport.
func (s *stage) both(t testing.TB) map[string]counted {
	return map[string]counted{"mcp": {s.all(), s.count(s.upstreams)}, "stdio": {s.pipe(t, s.narrow), s.count(s.few())}}
}

// awaitTools waits until every server behind a door has answered.
func awaitTools(t testing.TB, d door, n int) {
	t.Helper()
	program.Await(t, "every tool is listed", func() bool { return len(list(t, d)) == n })
}

// testLists: a tool reaches agents byte for byte as its server lists it, but
// for its name on /mcp and stdio.
func (s *stage) testLists(t *testing.T) {
	var all []string
	for _, u := range s.upstreams {
		all = append(all, texts(renamed(t, u.name, s.tools[u.name]))...)
		got := list(t, openHTTP(t, s.one(u.name).URL, agentToken))
		if diff := cmp.Diff(texts(s.tools[u.name]), texts(got)); diff != "" {
			t.Errorf("/mcp/%s (-server +toolgate):\n%s", u.name, diff)
		}
	}
	pipe := openStdio(t, s.Dir)
	awaitTools(t, pipe, s.count(s.upstreams))
	for name, d := range map[string]door{"/mcp": openHTTP(t, s.all().URL, agentToken), "stdio": pipe} {
		if diff := cmp.Diff(all, texts(list(t, d))); diff != "" {
			t.Errorf("%s (-server +toolgate):\n%s", name, diff)
		}
	}
}

func texts(tools []json.RawMessage) []string {
	var out []string
	for _, tool := range tools {
		out = append(out, string(tool))
	}
	return out
}

// renamed gives the tools with the names that agents see.
func renamed(t testing.TB, server string, tools []json.RawMessage) []json.RawMessage {
	t.Helper()
	var out []json.RawMessage
	for _, tool := range tools {
		with, err := jsonrpc.Set(tool, "name", jsonrpc.Quote(server+"__"+nameOf(tool)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, with)
	}
	return out
}

// testResults: without our own member of _meta a result is the server's, byte
// for byte, over both doors.
func (s *stage) testResults(t *testing.T) {
	pipe := openStdio(t, s.Dir)
	awaitTools(t, pipe, s.count(s.upstreams))
	for name, d := range map[string]door{"/mcp": openHTTP(t, s.all().URL, agentToken), "stdio": pipe} {
		for _, u := range s.upstreams {
			got := mustCall(t, d, u.exposed(), u.args)
			if want := string(s.results[u.name]); without(t, got) != want {
				t.Errorf("%s of %s: got %s, want %s and our _meta", name, u.name, got, want)
			}
		}
	}
}

// without takes our own member out of a result.
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

// testMatrix: every client lists and calls tools of every server in every way.
// The inspector starts anew for each step, so it goes to each server once.
func (s *stage) testMatrix(t *testing.T) {
	for _, p := range peers {
		everywhere := p.name != "inspector" || os.Getenv("TOOLGATE_SOAK") != ""
		mcp, one, pipe, config := s.upstreams[:2], s.upstreams[2:4], s.few()[2:], s.narrow
		if everywhere {
			mcp, one, pipe, config = s.upstreams, s.upstreams, s.upstreams, s.wide()
		}
		listed := s.upstreams
		if config == s.narrow {
			listed = s.few()
		}
		t.Run(p.name+"/mcp", func(t *testing.T) {
			t.Parallel()
			s.visit(t, p, s.all(), s.upstreams, mcp)
		})
		t.Run(p.name+"/stdio", func(t *testing.T) {
			t.Parallel()
			s.visit(t, p, s.pipe(t, config), listed, pipe)
		})
		for _, u := range one {
			t.Run(p.name+"/mcp/"+u.name, func(t *testing.T) {
				t.Parallel()
				got := p.run(t, s.one(u.name), listing(len(s.tools[u.name])), calling(u.tool, u.args))
				if diff := cmp.Diff(names("", s.tools[u.name]), unrooted(got[0].Tools)); diff != "" {
					t.Errorf("list (-want +got), %s:\n%s", got[0].Failed, diff)
				}
				s.check(t, u, got[1])
			})
		}
	}
}

// visit lists the tools of all servers and calls one of each that is named.
func (s *stage) visit(t *testing.T, p peer, w way, all, called []upstream) {
	steps, want := []step{listing(s.count(all))}, []string(nil)
	for _, u := range all {
		want = append(want, names(u.name+"__", s.tools[u.name])...)
	}
	for _, u := range called {
		steps = append(steps, calling(u.exposed(), u.args))
	}
	got := p.run(t, w, steps...)
	if diff := cmp.Diff(want, unrooted(got[0].Tools)); diff != "" {
		t.Errorf("list (-want +got), %s:\n%s", got[0].Failed, diff)
	}
	for i, u := range called {
		s.check(t, u, got[i+1])
	}
}

// unrooted leaves out the tool that server-everything offers to clients with
// roots alone: some clients here have them.
func unrooted(tools []string) []string {
	return slices.DeleteFunc(tools, func(name string) bool { return strings.HasSuffix(name, "get-roots-list") })
}

func names(prefix string, tools []json.RawMessage) []string {
	var out []string
	for _, tool := range tools {
		out = append(out, prefix+nameOf(tool))
	}
	return out
}

// payload is what of a result must come through every client.
type payload struct {
	Content           []map[string]any
	StructuredContent any
	IsError           bool
}

// check compares what a client saw with what the server answers directly.
func (s *stage) check(t *testing.T, u upstream, got seen) {
	t.Helper()
	if got.Result == nil {
		t.Errorf("%s: %s (%d)", u.name, got.Failed, got.Code)
		return
	}
	var want, have payload
	var meta struct {
		Meta map[string]struct{ Status string } `json:"_meta"`
	}
	for _, err := range []error{
		json.Unmarshal(s.results[u.name], &want), json.Unmarshal(got.Result, &have), json.Unmarshal(got.Result, &meta),
	} {
		if err != nil {
			t.Fatalf("%s: %v: %s", u.name, err, got.Result)
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s (-server +client):\n%s", u.name, diff)
	}
	if meta.Meta["io.toolgate/result"].Status != "ok" {
		t.Errorf("%s: no io.toolgate/result with status ok in %s", u.name, got.Result)
	}
}
