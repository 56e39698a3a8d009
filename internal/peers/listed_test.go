package peers_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// listedServer is a server with its number of tools, so that no comparison is empty.
type listedServer struct {
	server
	tools int
}

// realQuarantine has the tools of real servers that are quarantined, "server tool",
// with the reason. The schema guards accept all of them.
var realQuarantine = map[string]string{}

// TestRealDefinitions: /mcp/{server} lists the tools of real servers byte for byte
// and in order; /mcp does so except for the names. With results off, results are
// equal byte for byte too.
func TestRealDefinitions(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}})
	folder, record := t.TempDir(), filepath.Join(t.TempDir(), "offline")
	servers := realServers(t, folder, record)
	t.Cleanup(func() { wantOffline(t, record, 2*len(servers)) }) // after every server has exited
	c := newComparison(t, append(servers, listedServer{stdioOf("recorder", rec, shared()), 1}), rec)
	t.Run("lists", func(t *testing.T) { c.compareLists(t, realQuarantine) })
	missing := jsonText(t, map[string]string{"path": filepath.Join(folder, "missing")})
	for _, tc := range []struct{ server, tool, args string }{
		{"everything", "get-sum", `{"a":1e2,"b":0.1}`},
		{"everything", "get-structured-content", `{"location":"Chicago"}`},
		{"everything", "get-annotated-message", `{"messageType":"error","includeImage":true}`},
		{"memory", "read_graph", `{}`},
		{"memory", "open_nodes", `{"names":["seed"]}`},
		{"filesystem", "read_text_file", missing}, // a result with isError
		{"fastmcp", "add", `{"a":0.1,"b":0.2}`},
		{"fastmcp", "mixed", `{}`},
		{"fastmcp", "refuse", `{"why":"<&>"}`}, // a result with isError
	} {
		t.Run(tc.server+" "+tc.tool, func(t *testing.T) { c.compareResult(t, tc.server, tc.tool, tc.args) })
	}
	if os.Getenv("TOOLGATE_SOAK") != "" {
		t.Run("desktop read_file", func(t *testing.T) { c.compareResult(t, "desktop", "read_file", missing) })
	}
	for _, tc := range []struct{ method, params, holds string }{
		{"resources/list", `{}`, `"uri"`},
		{"resources/templates/list", `{}`, `"uriTemplate"`},
		{"resources/read", `{"uri":"demo://resource/static/document/features.md"}`, `"contents"`},
		{"prompts/list", `{}`, `"args-prompt"`},
		{"prompts/get", `{"name":"args-prompt","arguments":{"city":"Ñandú","state":"<&>"}}`, `"messages"`},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"completable-prompt"},"argument":{"name":"department","value":"E"}}`, `"values"`},
	} {
		t.Run("everything "+tc.method, func(t *testing.T) { c.compareRelayed(t, "everything", tc.method, tc.params, tc.holds) })
	}
	for _, tc := range []struct{ method, params, holds string }{
		{"resources/read", `{"uri":"note://one"}`, `"contents"`},
		{"prompts/get", `{"name":"greet","arguments":{"who":"Ada"}}`, `"messages"`},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"who","value":"Al"}}`, `"Alan"`},
	} {
		t.Run("fastmcp "+tc.method, func(t *testing.T) { c.compareRelayed(t, "fastmcp", tc.method, tc.params, tc.holds) })
	}
	c.stop(t)
}

// realServers are third-party servers, configured as an operator would, without
// access to the network. folder is their directory, record the file that offline.cjs
// writes.
func realServers(t testing.TB, folder, record string) (out []listedServer) {
	t.Helper()
	node := requirePart(t, "node")
	requirePart(t, "fastmcp/package.json")
	cut, err := filepath.Abs("../../testdata/npm/offline.cjs")
	if err != nil {
		t.Fatal(err)
	}
	graph := filepath.Join(folder, "memory.jsonl")
	write(t, graph, `{"type":"entity","name":"seed","entityType":"plant","observations":["grows <& über> \u2028 😀"]}`)
	env := map[string]string{
		"HOME": folder, "NODE_OPTIONS": `--require "` + cut + `"`, "OFFLINE_RECORD": record, "MEMORY_FILE_PATH": graph,
		"NOTION_TOKEN": "none",
		// Without these, servers check for updates, report their use and fetch settings.
		"CHROME_DEVTOOLS_MCP_NO_UPDATE_CHECKS": "1", "CHROME_DEVTOOLS_MCP_NO_USAGE_STATISTICS": "1",
		"MDB_MCP_TELEMETRY": "disabled", "DESKTOP_COMMANDER_DISABLE_TELEMETRY": "1", "DC_FLAG_URL": "data:application/json,{}",
	}
	for _, s := range []struct {
		name  string
		tools int
		args  []string // the first is the script
	}{
		{"everything", 13, []string{"@modelcontextprotocol/server-everything/dist/index.js", "stdio"}},
		{"filesystem", 14, []string{"@modelcontextprotocol/server-filesystem/dist/index.js", folder}},
		{"memory", 9, []string{"@modelcontextprotocol/server-memory/dist/index.js"}},
		{"thinking", 1, []string{"@modelcontextprotocol/server-sequential-thinking/dist/index.js"}},
		{"playwright", 25, []string{"@playwright/mcp/cli.js"}},
		{"devtools", 32, []string{"chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js"}},
		{"notion", 24, []string{"@notionhq/notion-mcp-server/bin/cli.mjs"}},
		{"chart", 27, []string{"@antv/mcp-server-chart/build/index.js"}},
		{"eslint", 1, []string{"@eslint/mcp/src/mcp-cli.js"}},
		{"fastmcp", 3, []string{"../servers/fastmcp.mjs"}},
	} {
		s.args[0] = requirePart(t, s.args[0])
		entry := map[string]any{"command": node, "args": s.args, "env": env}
		out = append(out, listedServer{server{s.name, entry, shared()}, s.tools})
	}
	return append(out, largeServers(t, node, env)...)
}

// largeServers are those of real servers that only soak runs have.
func largeServers(t testing.TB, node string, env map[string]string) (out []listedServer) {
	t.Helper()
	if os.Getenv("TOOLGATE_SOAK") == "" {
		return nil
	}
	for _, s := range []struct {
		name   string
		tools  int
		script string
	}{
		{"mongodb", 27, "mongodb-mcp-server/dist/esm/index.js"},
		{"desktop", 26, "@wonderwhy-er/desktop-commander/dist/index.js"},
		{"context7", 2, "@upstash/context7-mcp/dist/index.js"},
	} {
		entry := map[string]any{"command": node, "args": []string{npm.SoakFile(t, s.script)}, "env": env}
		out = append(out, listedServer{server{s.name, entry, shared()}, s.tools})
	}
	return out
}

// wantOffline checks that every server ran without network access and that none
// tried to use it.
func wantOffline(t testing.TB, record string, servers int) {
	t.Helper()
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "loaded in ") {
			loaded++
		} else {
			t.Errorf("a server used the network: %s", line)
		}
	}
	if loaded < servers {
		t.Errorf("%d processes ran without network, want at least %d", loaded, servers)
	}
}

// comparison is a toolgate with its servers, and a second process of each server
// without toolgate.
type comparison struct {
	gate    *gate
	servers []listedServer
	direct  map[string]rawClient
	tools   map[string][]json.RawMessage // the tools as each server lists them
}

// newComparison starts them. It initializes the direct servers with the parameters
// that toolgate sends, read from the recorder rec: some servers offer other tools to
// other clients.
func newComparison(t testing.TB, servers []listedServer, rec *recorder.Recorder) *comparison {
	t.Helper()
	s := setup{results: "off"}
	for _, one := range servers {
		s.servers = append(s.servers, one.server)
	}
	c := &comparison{servers: servers, direct: map[string]rawClient{}, tools: map[string][]json.RawMessage{}}
	c.gate = serveReady(t, configure(t, s))
	first := slices.Index(rec.Methods(), "initialize")
	if first < 0 {
		t.Fatalf("the recorder was not initialized: %s", rec.Bytes())
	}
	params, _ := jsonrpc.Get(rec.Messages()[first], "params")
	if version, _ := jsonrpc.Get(params, "protocolVersion"); string(version) != `"2025-11-25"` {
		t.Fatalf("the recorder was initialized with %s", params)
	}
	for _, one := range servers {
		c.direct[one.name] = startDirect(t, one.server, params)
		c.tools[one.name] = listRaw(t, c.direct[one.name])
		if n := len(c.tools[one.name]); n != one.tools {
			t.Errorf("%s lists %d tools, want %d", one.name, n, one.tools)
		}
	}
	return c
}

// startDirect connects to a server as toolgate does. A child process gets the same
// environment, and has to exit with its descendants when its stdin ends.
func startDirect(t testing.TB, s server, params json.RawMessage) rawClient {
	t.Helper()
	if url, ok := s.entry["url"].(string); ok {
		return openHTTP(t, url, "")
	}
	cmd := exec.Command(s.entry["command"].(string), s.entry["args"].([]string)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range s.entry["env"].(map[string]string) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	d := spawn(t, cmd)
	t.Cleanup(func() {
		gone := trackDescendants(t, cmd.Process.Pid)
		d.in.Close()
		late := time.AfterFunc(timeout, func() {
			t.Errorf("%s did not exit at the end of its stdin", s.name)
			_ = cmd.Process.Kill()
		})
		defer late.Stop()
		for range d.out { // until the server closes its stdout
		}
		_ = cmd.Wait() // any exit code
		gone()
	})
	if answer := d.exchange(t, jsonrpc.NewRequest([]byte(`"open"`), "initialize", params)); !bytes.Contains(answer, []byte(`"result"`)) {
		t.Fatalf("initializing %s: %s", s.name, answer)
	}
	d.send(t, jsonrpc.NewNotification("notifications/initialized", nil))
	return d
}

// listRaw returns every tool on every page as it was received, in order. It decodes
// the answers with the standard library, which is not under test.
func listRaw(t testing.TB, d rawClient) (tools []json.RawMessage) {
	t.Helper()
	params := json.RawMessage(nil)
	for {
		text := d.exchange(t, jsonrpc.NewRequest([]byte(`"list"`), "tools/list", params))
		var answer struct {
			Result struct {
				Tools      []json.RawMessage
				NextCursor *string
			}
		}
		if err := json.Unmarshal(text, &answer); err != nil || answer.Result.Tools == nil {
			t.Fatalf("listing: %v: %s", err, clip(text))
		}
		tools = append(tools, answer.Result.Tools...)
		if answer.Result.NextCursor == nil {
			return tools
		}
		params = json.RawMessage(`{"cursor":` + jsonText(t, *answer.Result.NextCursor) + `}`)
	}
}

// compareLists compares the lists of both routes with the servers' own. Only
// quarantined tools are missing. A tool without a readable name is quarantined by
// its position.
func (c *comparison) compareLists(t *testing.T, quarantine map[string]string) {
	if diff := cmp.Diff(quarantine, c.quarantine(t)); diff != "" {
		t.Fatalf("in quarantine (-want +got):\n%s", diff)
	}
	var all []json.RawMessage // the expected tools of /mcp, except for the names
	var exposed []string
	for _, one := range c.servers {
		var want []json.RawMessage
		for i, tool := range c.tools[one.name] {
			_, known := quarantine[one.name+" "+toolName(tool)]
			_, nameless := quarantine[one.name+" #"+strconv.Itoa(i)]
			if !known && !nameless {
				want = append(want, served(tool))
			}
		}
		wantSame(t, "/mcp/"+one.name, want, listRaw(t, openHTTP(t, c.gate.Agents+"/mcp/"+one.name, agentToken)))
		all, exposed = append(all, want...), append(exposed, names(one.name+"__", want)...)
	}
	got := listRaw(t, openHTTP(t, c.gate.Agents+"/mcp", agentToken))
	if diff := cmp.Diff(exposed, names("", got)); diff != "" {
		t.Fatalf("/mcp (-want +got):\n%s", diff)
	}
	wantSame(t, "/mcp", all, withNames(t, all, got))
}

// quarantine returns the quarantined tools with their reasons.
func (c *comparison) quarantine(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, u := range c.gate.Status(t).Upstreams {
		for _, warning := range u.Warnings {
			if name, reason, ok := strings.Cut(strings.TrimPrefix(warning, "tool "), " is quarantined: "); ok {
				out[u.Name+" "+name] = reason
			}
		}
	}
	return out
}

// served returns a definition as it is listed: on one line, and without an
// outputSchema that is no schema.
func served(tool json.RawMessage) json.RawMessage {
	return bytes.Replace(oneLine(tool), []byte(`,"outputSchema":null`), nil, 1)
}

// oneLine returns a definition with spaces in place of the line ends between tokens.
// Strings contain no line ends (RFC 8259 section 7).
func oneLine(text json.RawMessage) json.RawMessage {
	return []byte(strings.NewReplacer("\r", " ", "\n", " ").Replace(string(text)))
}

// withNames returns tools with the names of the originals, in the same spelling.
func withNames(t testing.TB, originals, tools []json.RawMessage) (out []json.RawMessage) {
	t.Helper()
	for i, tool := range tools {
		name, _ := jsonrpc.Get(originals[i], "name")
		back, err := jsonrpc.Set(tool, "name", name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, back)
	}
	return out
}

// wantSame compares two lists byte for byte.
func wantSame(t testing.TB, where string, want, got []json.RawMessage) {
	t.Helper()
	if diff := cmp.Diff(names("", want), names("", got)); diff != "" {
		t.Errorf("%s (-server +toolgate):\n%s", where, diff)
		return
	}
	for i := range want {
		if !bytes.Equal(want[i], got[i]) {
			t.Errorf("%s lists\n%s\nwant\n%s", where, got[i], want[i])
		}
	}
}

// compareResult compares a result on /mcp/{server} with the server's own.
func (c *comparison) compareResult(t *testing.T, name, tool, args string) {
	own := callRaw(t, c.direct[name], tool, args)
	got := callRaw(t, openHTTP(t, c.gate.Agents+"/mcp/"+name, agentToken), tool, args)
	if want := oneLine(own); !bytes.Equal(want, got) {
		t.Errorf("the result is\n%s\nwant\n%s", got, want)
	}
}

// compareRelayed compares the answer to a request that calls no tool, on
// /mcp/{server}.
func (c *comparison) compareRelayed(t *testing.T, name, method, params, holds string) {
	message := []byte(`{"jsonrpc":"2.0","id":"r","method":"` + method + `","params":` + params + `}`)
	want, failure := splitAnswer(c.direct[name].exchange(t, message))
	if want == nil || !strings.Contains(string(want), holds) {
		t.Fatalf("directly: %s %s", want, failure)
	}
	got, failure := splitAnswer(openHTTP(t, c.gate.Agents+"/mcp/"+name, agentToken).exchange(t, message))
	if string(oneLine(got)) != string(oneLine(want)) {
		t.Errorf("through toolgate %s %s\nwant             %s", got, failure, want)
	}
}

// callRaw calls a tool and decodes the result with the standard library.
func callRaw(t testing.TB, d rawClient, tool, args string) json.RawMessage {
	t.Helper()
	text := d.exchange(t, callMessage("7", tool, args))
	var answer struct{ Result json.RawMessage }
	if err := json.Unmarshal(text, &answer); err != nil || answer.Result == nil {
		t.Fatalf("calling %s: %v: %s", tool, err, clip(text))
	}
	return answer.Result
}

// stop stops toolgate and waits until every server that it started has exited.
func (c *comparison) stop(t testing.TB) {
	t.Helper()
	gone := trackDescendants(t, c.gate.Cmd.Process.Pid)
	if err := c.gate.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.gate.Wait(t)
	gone()
}
