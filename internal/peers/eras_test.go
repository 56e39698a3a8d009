package peers_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// library is a client that somebody else wrote.
type library struct {
	name string
	eras []string
	play func(t *testing.T, w way, era string, acts []act) []saw
}

var libraries = []library{
	{"go-sdk", []string{legacyEra, modernEra}, playGoSDK},
	{"mcp-go", []string{legacyEra, modernEra}, playMCPGo},
	{"typescript 1", []string{legacyEra}, playTypeScript(1)},
	{"typescript 2", []string{legacyEra, modernEra}, playTypeScript(2)},
}

// world is a server that somebody else wrote, and what can be done with it.
type world struct {
	name string
	era  string // that it speaks
	acts []act
	// entry is the server in mcp.json, and how a client reaches it directly.
	entry  map[string]any
	direct way
}

// worldsOf starts the servers.
func worldsOf(t *testing.T) []world {
	node, script := needs(t, "node"), npmServer(t, "server-everything")
	stateful, stateless := everythingAt(t, "-stateless=false"), everythingAt(t, "-stateless=true")
	return []world{
		{"npm", legacyEra, npmActs, map[string]any{"command": node, "args": []string{script, "stdio"}}, way{Command: node, Args: []string{script, "stdio"}, lingers: true}},
		{"stateful", legacyEra, statefulActs, map[string]any{"type": "http", "url": stateful}, way{URL: stateful}},
		{"stateless", modernEra, statelessActs, map[string]any{"type": "http", "url": stateless}, way{URL: stateless}},
	}
}

var goEverything = program.Built("github.com/modelcontextprotocol/go-sdk/conformance/everything-server")

// everythingAt starts go-sdk's everything-server and gives its URL.
func everythingAt(t *testing.T, flag string) string {
	t.Helper()
	_, addr := program.LaunchAt(t, func(addr string) *exec.Cmd { return exec.Command(goEverything(t), "-http", addr, flag) })
	return "http://" + addr
}

type args = map[string]any

// npmActs are for server-everything. It asks for roots when they are wanted, or
// a third of a second after the start in the course of whatever is under way.
var npmActs = []act{
	{Named: "tools", Op: "tools"},
	{Named: "roots", Op: "call", Name: "get-roots-list"},
	{Named: "call", Op: "call", Name: "echo", Args: args{"message": "hello, \u00fcber & <all>"}},
	{Named: "structured", Op: "call", Name: "get-structured-content", Args: args{"location": "Chicago"}},
	{Named: "progress", Op: "call", Name: longRunning, Args: args{"duration": 0.3, "steps": 3}, Progress: true, Wait: map[string]int{progressNote: 3}},
	{Named: "cancel", Op: "call", Name: longRunning, Args: args{"duration": 60, "steps": 600}, Cancel: true},
	{Named: "level", Op: "level", Value: "debug"},
	{Named: "log", Op: "call", Name: "toggle-simulated-logging", Wait: map[string]int{messageNote: 1}, loose: true},
	{Named: "hush log", Op: "call", Name: "toggle-simulated-logging"},
	{Named: "sampling", Op: "call", Name: "trigger-sampling-request", Args: args{"prompt": "of what", "maxTokens": 7}, asks: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "trigger-elicitation-request", asks: elicitMethod},
	{Named: "elicit url", Op: "call", Name: "trigger-url-elicitation", Args: args{"url": "https://example.test/go", "message": "go", "elicitationId": "one"}, asks: elicitMethod},
	{Named: "url required", Op: "call", Name: "trigger-url-elicitation", Args: args{"url": "https://example.test/go", "elicitationId": "two", "errorPath": true}},
	{Named: "resources", Op: "resources"},
	{Named: "templates", Op: "templates"},
	{Named: "read", Op: "read", URI: "demo://resource/dynamic/text/1"},
	{Named: "read nothing", Op: "read", URI: "demo://nothing"},
	{Named: "listen", Op: "listen", URI: "demo://resource/dynamic/text/2"},
	{Named: "update", Op: "call", Name: "toggle-subscriber-updates", Wait: map[string]int{updatedNote: 1}},
	{Named: "no updates", Op: "call", Name: "toggle-subscriber-updates"},
	{Named: "list changed", Op: "call", Name: "gzip-file-as-resource", Args: args{"name": "one.gz", "data": "data:text/plain,one", "outputType": "resourceLink"}, Wait: map[string]int{resourcesNote: 1}},
	{Named: "read changed", Op: "read", URI: "demo://resource/session/one.gz"},
	{Named: "hush", Op: "hush", URI: "demo://resource/dynamic/text/2"},
	{Named: "prompts", Op: "prompts"},
	{Named: "prompt", Op: "prompt", Name: "args-prompt", Args: args{"city": "Oslo", "state": "none"}},
	{Named: "completion", Op: "complete", Name: "completable-prompt", Argument: "department", Value: "S"},
	{Named: "task", Op: "task", Name: "simulate-research-query", Args: args{"topic": "owls", "ambiguous": true}, asks: elicitMethod},
}

// goActs are for go-sdk's everything-server in both eras.
var goActs = []act{
	{Named: "tools", Op: "tools"},
	{Named: "call", Op: "call", Name: "test_multiple_content_types"},
	{Named: "failure", Op: "call", Name: "test_error_handling"},
	{Named: "progress", Op: "call", Name: "test_tool_with_progress", Progress: true, blind: true, Wait: map[string]int{progressNote: 3}},
	{Named: "level", Op: "level", Value: "info"},
	{Named: "log", Op: "call", Name: "test_tool_with_logging", Wait: map[string]int{messageNote: 3}},
	{Named: "resources", Op: "resources"},
	{Named: "templates", Op: "templates"},
	{Named: "read", Op: "read", URI: "test://static-binary"},
	{Named: "read template", Op: "read", URI: "test://template/7/data"},
	{Named: "read nothing", Op: "read", URI: "test://nothing"},
	{Named: "listen", Op: "listen", URI: "test://watched-resource"},
	{Named: "update", Op: "call", Name: "test_simple_text", Wait: map[string]int{updatedNote: 1}},
	{Named: "tools changed", Op: "call", Name: "test_trigger_tool_change", Wait: map[string]int{toolsNote: 1}},
	{Named: "prompts changed", Op: "call", Name: "test_trigger_prompt_change", Wait: map[string]int{promptsNote: 1}},
	{Named: "hush", Op: "hush", URI: "test://watched-resource"},
	{Named: "prompts", Op: "prompts"},
	{Named: "prompt", Op: "prompt", Name: "test_prompt_with_arguments", Args: args{"arg1": "a", "arg2": "b"}},
	{Named: "prompt image", Op: "prompt", Name: "test_prompt_with_image"},
	{Named: "completion", Op: "complete", Name: "test_prompt_with_arguments", Argument: "arg1", Value: "a"},
}

// statefulActs are for it before 2026-07-28.
var statefulActs = append([]act{
	{Named: "sampling", Op: "call", Name: "test_sampling", Args: args{"prompt": "of what"}, asks: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "test_elicitation", Args: args{"message": "who"}, asks: elicitMethod},
	{Named: "elicit defaults", Op: "call", Name: "test_elicitation_sep1034_defaults", asks: elicitMethod},
}, goActs...)

// statelessActs are for it of 2026-07-28.
var statelessActs = append([]act{
	{Named: "tools first", Op: "tools"}, // what goes into headers stands there
	{Named: "header", Op: "call", Name: "test_x_mcp_header", Args: args{"region": "\u00fcber"}},
	{Named: "sampling", Op: "call", Name: "test_input_required_result_sampling", asks: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "test_input_required_result_elicitation", asks: elicitMethod},
	{Named: "roots", Op: "call", Name: "test_input_required_result_list_roots"},
	{Named: "elicit with state", Op: "call", Name: "test_input_required_result_request_state", asks: elicitMethod},
	{Named: "many at once", Op: "call", Name: "test_input_required_result_multiple_inputs", asks: elicitMethod},
	{Named: "rounds", Op: "call", Name: "test_input_required_result_multi_round", asks: elicitMethod},
	{Named: "capabilities", Op: "call", Name: "test_input_required_result_capabilities", asks: sampleMethod},
	{Named: "prompt that asks", Op: "prompt", Name: "test_input_required_result_prompt", asks: elicitMethod},
}, goActs...)

// reference is the library and the era that a client's observations at a server
// are compared with: itself, or in the era that it shares with that server.
func (l library) reference(w world) (library, string) {
	if !slices.Contains(l.eras, w.era) {
		l = libraries[len(libraries)-1] // the same SDK's next major version
	}
	return l, w.era
}

// cell is one client at one server.
type cell struct{ library, era, world string }

// gap is what a cell cannot do or does otherwise than the reference, and why.
type gap struct{ library, era, world, act, why string }

// gaps of clients and servers. "" stands for all.
var gaps = []gap{
	{"go-sdk", "", "", "task", "the client has no tasks"},
	{"mcp-go", legacyEra, "npm", "cancel", "over HTTP the client tells nobody that it has given up"},
	{"", modernEra, "npm", "task", "tasks left the core with 2026-07-28, and no client has the extension"},
	{"", modernEra, "npm", "url required", "its error is not of 2026-07-28"},
}

// gapOf gives why an act is not compared, "" when it is.
func gapOf(l, era, world, act string) string {
	for _, g := range gaps {
		if (g.library == "" || g.library == l) && (g.era == "" || g.era == era) && (g.world == "" || g.world == world) && g.act == act {
			return g.why
		}
	}
	return ""
}

// observed is what was seen of the acts of a world, by name of the act.
type observed map[string]string

// observe plays the acts of worlds in one session, each with a prefix before
// its names, and leaves out what cannot be done.
func observe(t *testing.T, l library, era string, w way, prefix bool, worlds ...world) map[string]observed {
	t.Helper()
	// toolgate stdio waits for its servers no longer than a second.
	acts, of := []act{{Named: "ready", Op: "tools", Want: w.want}}, []string{""}
	for _, one := range worlds {
		for _, a := range one.acts {
			if gapOf(l.name, era, one.name, a.Named) != "" {
				continue
			}
			if prefix && a.Name != "" {
				a.Name = one.name + "__" + a.Name
			}
			acts, of = append(acts, l.fit(a)), append(of, one.name)
		}
	}
	seen := map[string]observed{}
	for i, got := range l.play(t, w, era, acts) {
		if of[i] == "" {
			continue
		}
		if prefix && got.Names != nil {
			got.Names = unprefixed(of[i], acts[i].Op, got.Names)
		}
		if seen[of[i]] == nil {
			seen[of[i]] = observed{}
		}
		seen[of[i]][acts[i].Named] = seenOf(t, acts[i], got)
		if got.Failed != "" {
			t.Logf("%s, %s: %s", of[i], acts[i].Named, got.Failed)
		}
	}
	return seen
}

// fit makes an act one that a library can do: TypeScript's handle progress later
// than an answer that comes in the same piece, and may miss the last.
func (l library) fit(a act) act {
	if strings.HasPrefix(l.name, "typescript") && a.Wait[progressNote] > 0 {
		a.Wait = map[string]int{progressNote: a.Wait[progressNote] - 1}
	}
	return a
}

// unprefixed gives the names of one server out of a list of all, as it has them.
func unprefixed(server, op string, names []string) []string {
	own := []string{}
	for _, name := range names {
		name, ok := strings.CutPrefix(name, server+"__")
		if op == "resources" || op == "templates" {
			ok = strings.HasPrefix(name, "demo:") == (server == "npm")
		}
		if ok {
			own = append(own, name)
		}
	}
	return own
}

// TestEras puts real clients of both eras before real servers of both eras,
// with toolgate between them, and compares with what the same client sees
// without it.
func TestEras(t *testing.T) {
	t.Parallel()
	worlds := worldsOf(t)
	direct := directly(t, worlds)
	// Two of the servers have resources of the same names.
	for _, group := range [][]world{worlds[:2], worlds[2:]} {
		testEras(t, direct, group)
	}
}

// testEras puts one toolgate before servers, and every client before it.
func testEras(t *testing.T, direct map[cell]observed, worlds []world) {
	var servers []server
	for _, w := range worlds {
		servers = append(servers, server{w.name, w.entry, map[string]any{"isolation": "session", "max_sessions": 64, "pin": false}})
	}
	dir := configure(t, setup{servers: servers, results: "off", agents: 64})
	g := serveReady(t, dir)
	// Clients of the modern era that look alike share what servers remember of
	// an agent.
	agents := 0
	agent := func() string {
		agents++
		return tokenOf(agents - 1)
	}
	for _, l := range libraries {
		for _, era := range l.eras {
			compare := func(t *testing.T, w way, prefix bool, worlds ...world) {
				t.Parallel()
				for name, seen := range observe(t, l, era, w, prefix, worlds...) {
					compareWith(t, l, era, worldNamed(worlds, name), direct, seen)
				}
			}
			for _, one := range worlds {
				t.Run(l.name+" "+era+"/"+one.name, func(t *testing.T) {
					compare(t, way{URL: g.Agents + "/mcp/" + one.name, Token: agent()}, false, one)
				})
			}
			last := worlds[len(worlds)-1].name
			t.Run(l.name+" "+era+"/all "+last, func(t *testing.T) {
				compare(t, way{URL: g.Agents + "/mcp", Token: agent()}, true, worlds...)
			})
			t.Run(l.name+" "+era+"/stdio "+last, func(t *testing.T) {
				compare(t, way{
					Command: program.Toolgate(t), Dir: dir, Args: []string{"stdio", "--config", "mcp.json", "--token", agentToken},
					want: l.offered(direct, worlds),
				}, true, worlds...)
			})
		}
	}
}

// offered counts the tools that servers offer to a client's reference.
func (l library) offered(direct map[cell]observed, worlds []world) (n int) {
	for _, w := range worlds {
		ref, era := l.reference(w)
		n += len(strings.Fields(direct[cell{library: ref.name, era: era, world: w.name}]["tools"]))
	}
	return n
}

func worldNamed(worlds []world, name string) world {
	return worlds[slices.IndexFunc(worlds, func(w world) bool { return w.name == name })]
}

// compareWith compares one client's observations with its reference's.
func compareWith(t *testing.T, l library, era string, w world, direct map[cell]observed, seen observed) {
	t.Helper()
	ref, refEra := l.reference(w)
	want := direct[cell{library: ref.name, era: refEra, world: w.name}]
	for _, a := range w.acts {
		if gapOf(l.name, era, w.name, a.Named) != "" || gapOf(ref.name, refEra, w.name, a.Named) != "" {
			continue
		}
		if diff := cmp.Diff(inEra(era, want[a.Named]), seen[a.Named]); diff != "" {
			t.Errorf("%s, %s (-directly +through toolgate):\n%s", w.name, a.Named, diff)
		}
	}
}

// inEra gives an observation as a client of an era makes it: the modern one has
// no names for visits to pages.
func inEra(era, seen string) string {
	if era == modernEra {
		return strings.ReplaceAll(seen, `"elicitationId":"one",`, "")
	}
	return seen
}

// TestInspectorEras: the inspector starts anew for each act, and does few of
// them. Before a server of the era before it goes by what it sees there itself.
func TestInspectorEras(t *testing.T) {
	t.Parallel()
	runtime, script := needs(t, "node"), npmServer(t, "server-everything")
	stateless := everythingAt(t, "-stateless=true")
	g := serveReady(t, configure(t, setup{results: "off", servers: []server{
		{"npm", map[string]any{"command": runtime, "args": []string{script, "stdio"}}, nil},
		{"stateless", map[string]any{"type": "http", "url": stateless}, nil},
	}}))
	through := func(name string) []string {
		return []string{g.Agents + "/mcp/" + name, "--transport", "http", "--header", "Authorization: Bearer " + agentToken}
	}
	for name, tc := range map[string]struct {
		era    string // of the server
		direct []string
		asks   [][]string
	}{
		"npm": {legacyEra, []string{runtime, script, "stdio"}, [][]string{
			{"--method", "tools/call", "--tool-name", "get-structured-content", "--tool-args-json", `{"location":"Chicago"}`},
			{"--method", "prompts/get", "--prompt-name", "args-prompt", "--prompt-args", "city=Oslo"},
		}},
		"stateless": {modernEra, []string{stateless, "--transport", "http"}, [][]string{
			{"--method", "tools/call", "--tool-name", "test_multiple_content_types"},
			{"--method", "resources/read", "--uri", "test://static-text"},
		}},
	} {
		for _, ask := range tc.asks {
			want := inspected(t, tc.direct, tc.era, ask)
			for _, era := range []string{legacyEra, modernEra} {
				t.Run(name+" "+ask[1]+" "+era, func(t *testing.T) {
					t.Parallel()
					if diff := cmp.Diff(want, inspected(t, through(name), era, ask)); diff != "" {
						t.Errorf("(-directly +through toolgate):\n%s", diff)
					}
				})
			}
		}
	}
}

// inspected gives what the inspector makes of one request in an era.
func inspected(t *testing.T, target []string, era string, ask []string) any {
	t.Helper()
	named := map[string]string{legacyEra: "legacy", modernEra: "modern"}[era]
	args := append([]string{needs(t, "@modelcontextprotocol/inspector/clients/launcher/build/index.js"), "--cli"}, target...)
	args = append(append(args, "--protocol-era", named, "--format", "json", "-q"), ask...)
	stdout, stderr := node(t, nil, args...)
	var got map[string]any
	if err := json.Unmarshal(stdout, &got); err != nil {
		t.Fatalf("the inspector said %q: %v\n%s", stdout, err, stderr)
	}
	return plain(got)
}

// directly observes each server without toolgate, with every client of its era.
func directly(t *testing.T, worlds []world) map[cell]observed {
	var mu sync.Mutex // protects found
	found := map[cell]observed{}
	t.Run("directly", func(t *testing.T) {
		for _, w := range worlds {
			for _, l := range libraries {
				if !slices.Contains(l.eras, w.era) {
					continue
				}
				t.Run(l.name+"/"+w.name, func(t *testing.T) {
					t.Parallel()
					seen := observe(t, l, w.era, w.direct, false, w)[w.name]
					mu.Lock()
					defer mu.Unlock()
					found[cell{library: l.name, era: w.era, world: w.name}] = seen
				})
			}
		}
	})
	return found
}
