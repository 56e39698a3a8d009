package peers_test

import (
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// referenceServer is a third-party server, and the actions that it can take part in.
type referenceServer struct {
	name     string
	revision string
	actions  []action
	entry    map[string]any // its entry in mcp.json
	direct   target         // how a client reaches it without toolgate
}

// referenceServers starts the servers.
func referenceServers(t *testing.T) []referenceServer {
	node, script := requirePart(t, "node"), npmServer(t, "server-everything")
	stateful, stateless := everythingAt(t, "-stateless=false"), everythingAt(t, "-stateless=true")
	command := []string{script, "stdio"}
	return []referenceServer{
		{"npm", sessionRevision, npmActions, map[string]any{"command": node, "args": command}, target{Command: node, Args: command, lingers: true}},
		{"stateful", sessionRevision, statefulActions, map[string]any{"type": "http", "url": stateful}, target{URL: stateful}},
		{"stateless", statelessRevision, statelessActions, map[string]any{"type": "http", "url": stateless}, target{URL: stateless}},
	}
}

var goEverything = program.Built("github.com/modelcontextprotocol/go-sdk/conformance/everything-server")

// everythingAt starts the everything-server of go-sdk and returns its URL.
func everythingAt(t *testing.T, flag string) string {
	t.Helper()
	_, addr := program.LaunchAt(t, func(addr string) *exec.Cmd { return exec.Command(goEverything(t), "-http", addr, flag) })
	return "http://" + addr
}

// npmActions are for server-everything. The server requests the roots when a tool
// needs them, and once about 0.3 s after its start.
var npmActions = []action{
	{Named: "tools", Op: "tools"},
	{Named: "roots", Op: "call", Name: "get-roots-list"},
	{Named: "call", Op: "call", Name: "echo", Args: args{"message": "hello, \u00fcber & <all>"}},
	{Named: "structured", Op: "call", Name: "get-structured-content", Args: args{"location": "Chicago"}},
	{Named: "progress", Op: "call", Name: longRunning, Args: args{"duration": 0.3, "steps": 3}, Progress: true, Wait: map[string]int{progressNote: 3}},
	{Named: "cancel", Op: "call", Name: longRunning, Args: args{"duration": 60, "steps": 600}, Cancel: true},
	{Named: "level", Op: "level", Value: "debug"},
	{Named: "log", Op: "call", Name: "toggle-simulated-logging", Wait: map[string]int{messageNote: 1}, methodsOnly: true},
	{Named: "stop log", Op: "call", Name: "toggle-simulated-logging"},
	{Named: "sampling", Op: "call", Name: "trigger-sampling-request", Args: args{"prompt": "of what", "maxTokens": 7}, wantRequests: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "trigger-elicitation-request", wantRequests: elicitMethod},
	{Named: "elicit url", Op: "call", Name: "trigger-url-elicitation", Args: args{"url": "https://example.test/go", "message": "go", "elicitationId": "one"}, wantRequests: elicitMethod},
	{Named: "url required", Op: "call", Name: "trigger-url-elicitation", Args: args{"url": "https://example.test/go", "elicitationId": "two", "errorPath": true}},
	{Named: "resources", Op: "resources"},
	{Named: "templates", Op: "templates"},
	{Named: "read", Op: "read", URI: "demo://resource/dynamic/text/1"},
	{Named: "read nothing", Op: "read", URI: "demo://nothing"},
	{Named: "subscribe", Op: "subscribe", URI: "demo://resource/dynamic/text/2"},
	{Named: "update", Op: "call", Name: "toggle-subscriber-updates", Wait: map[string]int{updatedNote: 1}},
	{Named: "no updates", Op: "call", Name: "toggle-subscriber-updates"},
	{Named: "list changed", Op: "call", Name: "gzip-file-as-resource", Args: args{"name": "one.gz", "data": "data:text/plain,one", "outputType": "resourceLink"}, Wait: map[string]int{resourcesNote: 1}},
	{Named: "read changed", Op: "read", URI: "demo://resource/session/one.gz"},
	{Named: "unsubscribe", Op: "unsubscribe", URI: "demo://resource/dynamic/text/2"},
	{Named: "prompts", Op: "prompts"},
	{Named: "prompt", Op: "prompt", Name: "args-prompt", Args: args{"city": "Oslo", "state": "none"}},
	{Named: "completion", Op: "complete", Name: "completable-prompt", Argument: "department", Value: "S"},
	{Named: "task", Op: "task", Name: "simulate-research-query", Args: args{"topic": "owls", "ambiguous": true}, wantRequests: elicitMethod},
}

// goActions are for the everything-server of go-sdk at both revisions.
var goActions = []action{
	{Named: "tools", Op: "tools"},
	{Named: "call", Op: "call", Name: "test_multiple_content_types"},
	{Named: "failure", Op: "call", Name: "test_error_handling"},
	{Named: "progress", Op: "call", Name: "test_tool_with_progress", Progress: true, ignoreResult: true, Wait: map[string]int{progressNote: 3}},
	{Named: "level", Op: "level", Value: "info"},
	{Named: "log", Op: "call", Name: "test_tool_with_logging", Wait: map[string]int{messageNote: 3}},
	{Named: "resources", Op: "resources"},
	{Named: "templates", Op: "templates"},
	{Named: "read", Op: "read", URI: "test://static-binary"},
	{Named: "read template", Op: "read", URI: "test://template/7/data"},
	{Named: "read nothing", Op: "read", URI: "test://nothing"},
	{Named: "subscribe", Op: "subscribe", URI: "test://watched-resource"},
	{Named: "update", Op: "call", Name: "test_simple_text", Wait: map[string]int{updatedNote: 1}},
	{Named: "tools changed", Op: "call", Name: "test_trigger_tool_change", Wait: map[string]int{toolsNote: 1}},
	{Named: "prompts changed", Op: "call", Name: "test_trigger_prompt_change", Wait: map[string]int{promptsNote: 1}},
	{Named: "unsubscribe", Op: "unsubscribe", URI: "test://watched-resource"},
	{Named: "prompts", Op: "prompts"},
	{Named: "prompt", Op: "prompt", Name: "test_prompt_with_arguments", Args: args{"arg1": "a", "arg2": "b"}},
	{Named: "prompt image", Op: "prompt", Name: "test_prompt_with_image"},
	{Named: "completion", Op: "complete", Name: "test_prompt_with_arguments", Argument: "arg1", Value: "a"},
}

// statefulActions are for the everything-server with sessions.
var statefulActions = append([]action{
	{Named: "sampling", Op: "call", Name: "test_sampling", Args: args{"prompt": "of what"}, wantRequests: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "test_elicitation", Args: args{"message": "who"}, wantRequests: elicitMethod},
	{Named: "elicit defaults", Op: "call", Name: "test_elicitation_sep1034_defaults", wantRequests: elicitMethod},
}, goActions...)

// statelessActions are for the stateless everything-server.
var statelessActions = append([]action{
	{Named: "tools first", Op: "tools"}, // the definitions name the parameters that headers repeat
	{Named: "header", Op: "call", Name: "test_x_mcp_header", Args: args{"region": "\u00fcber"}},
	{Named: "sampling", Op: "call", Name: "test_input_required_result_sampling", wantRequests: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "test_input_required_result_elicitation", wantRequests: elicitMethod},
	{Named: "roots", Op: "call", Name: "test_input_required_result_list_roots"},
	{Named: "elicit with state", Op: "call", Name: "test_input_required_result_request_state", wantRequests: elicitMethod},
	{Named: "many at once", Op: "call", Name: "test_input_required_result_multiple_inputs", wantRequests: elicitMethod},
	{Named: "rounds", Op: "call", Name: "test_input_required_result_multi_round", wantRequests: elicitMethod},
	{Named: "capabilities", Op: "call", Name: "test_input_required_result_capabilities", wantRequests: sampleMethod},
	{Named: "prompt that asks", Op: "prompt", Name: "test_input_required_result_prompt", wantRequests: elicitMethod},
}, goActions...)

// reference is the peer whose direct observations of a server p is compared with:
// p itself at the server's revision, or the TypeScript SDK if p lacks that
// revision.
func (p peer) reference(s referenceServer) peer {
	for _, one := range libraries {
		if one.name == p.name && one.revision == s.revision {
			return one
		}
	}
	return typescript2Stateless
}

// cell is one client at one server.
type cell struct{ client, revision, server string }

// gap is an action that a client cannot perform at a server, or performs in
// another way than its reference, and the reason. "" stands for all.
type gap struct{ client, revision, server, action, reason string }

var gaps = []gap{
	{"go-sdk", "", "", "task", "the client has no tasks"},
	{"mcp-go", sessionRevision, "npm", "cancel", "over HTTP the client sends no cancellation"},
	{"go-sdk", sessionRevision, "go-sdk", "rounds", "the server asks a second time with a result of revision 2026-07-28, which the client accepts"},
	{"go-sdk", statelessRevision, "mcp-go", "ask", "the client reads no roots/list without params; through toolgate it has them"},
	{"go-sdk", statelessRevision, "typescript", "ask", "the client reads no roots/list without params; through toolgate it has them"},
	{"", statelessRevision, "npm", "task", "revision 2026-07-28 has no tasks in its core, and no client has the extension"},
	{"", statelessRevision, "npm", "url required", "the server's error is not one of revision 2026-07-28"},
}

// hasGap reports whether an action of a client is not compared.
func (p peer) hasGap(server, action string) bool {
	return slices.ContainsFunc(gaps, func(g gap) bool {
		return (g.client == "" || g.client == p.name) && (g.revision == "" || g.revision == p.revision) && (g.server == "" || g.server == server) && g.action == action
	})
}

// observed is the described outcome of each action, by the action's name.
type observed map[string]string

// observe performs the actions of servers in one session and returns the
// outcomes by server. With prefix, tool and prompt names have the server's prefix.
func observe(t *testing.T, p peer, at target, prefix bool, servers ...referenceServer) map[string]observed {
	t.Helper()
	actions, of := []action{listTools(at.tools)}, []string{""}
	for _, one := range servers {
		for _, a := range one.actions {
			if p.hasGap(one.name, a.Named) {
				continue
			}
			if prefix && a.Name != "" {
				a.Name = one.name + "__" + a.Name
			}
			actions, of = append(actions, a), append(of, one.name)
		}
	}
	all := map[string]observed{}
	for i, got := range p.run(t, at, p.revision, actions) {
		if of[i] == "" {
			continue
		}
		if prefix && got.Names != nil {
			got.Names = namesOf(of[i], actions[i].Op, got.Names)
		}
		if all[of[i]] == nil {
			all[of[i]] = observed{}
		}
		all[of[i]][actions[i].Named] = describe(t, actions[i], got)
		if got.Failed != "" {
			t.Logf("%s, %s: %s", of[i], actions[i].Named, got.Failed)
		}
	}
	return all
}

// namesOf returns the names of one server in a list of all, without prefix.
func namesOf(server, op string, names []string) []string {
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

// TestRevisions compares what a client of either revision sees of a server of
// either revision with and without toolgate in between. Each client goes to each
// server by one route of three: /mcp/{server}, /mcp and toolgate stdio. With
// TOOLGATE_SOAK=1 it takes all three.
func TestRevisions(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	servers := referenceServers(t)
	direct := observeDirectly(t, servers)
	// stateful and stateless have resources with the same URIs, so each pair of
	// servers has its own toolgate.
	testRevisions(t, direct, servers[:2], 0)
	testRevisions(t, direct, servers[2:], 1)
}

// testRevisions starts one toolgate for servers and connects every client.
// Clients start with the route number first, one after the other.
func testRevisions(t *testing.T, direct map[cell]observed, servers []referenceServer, first int) {
	var entries []server
	for _, s := range servers {
		entries = append(entries, server{s.name, s.entry, map[string]any{"isolation": "session", "max_sessions": 64, "pin": false}})
	}
	g := serveReady(t, configure(t, setup{servers: entries, results: "off", agents: 64}))
	// Stateless clients of one principal and name share a connection to the server,
	// so each client has a principal of its own.
	agents := 0
	agent := func() string {
		agents++
		return tokenOf(agents - 1)
	}
	last := servers[len(servers)-1].name
	for i, p := range libraries {
		compare := func(name string, at target, prefix bool, servers ...referenceServer) {
			t.Run(p.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				for name, got := range observe(t, p, at, prefix, servers...) {
					compareDirect(t, p, serverNamed(servers, name), direct, got, prefix)
				}
			})
		}
		takes := func(route int) bool { return shortOrSoak((first+i)%3, route) == route }
		if takes(0) {
			for _, one := range servers {
				compare(one.name, target{URL: g.Agents + "/mcp/" + one.name, Token: agent()}, false, one)
			}
		}
		if takes(1) {
			compare("all "+last, target{URL: g.Agents + "/mcp", Token: agent()}, true, servers...)
		}
		if takes(2) {
			at := g.stdio(t, "mcp.json")
			at.tools = p.toolCount(direct, servers)
			compare("stdio "+last, at, true, servers...)
		}
	}
}

// toolCount returns how many tools servers offer to the reference of p.
func (p peer) toolCount(direct map[cell]observed, servers []referenceServer) (n int) {
	for _, s := range servers {
		ref := p.reference(s)
		n += len(strings.Fields(direct[cell{ref.name, ref.revision, s.name}]["tools"]))
	}
	return n
}

func serverNamed(servers []referenceServer, name string) referenceServer {
	return servers[slices.IndexFunc(servers, func(s referenceServer) bool { return s.name == name })]
}

// compareDirect compares a client's observations with its reference's. Where many
// servers are one endpoint, an elicitation's message names the server that asks.
func compareDirect(t *testing.T, p peer, s referenceServer, direct map[cell]observed, got observed, named bool) {
	t.Helper()
	ref := p.reference(s)
	want := direct[cell{ref.name, ref.revision, s.name}]
	for _, a := range s.actions {
		if p.hasGap(s.name, a.Named) || ref.hasGap(s.name, a.Named) {
			continue
		}
		expected := p.expect(want[a.Named])
		if named && strings.Contains(expected, "was asked elicitation/create") {
			expected = strings.ReplaceAll(expected, `"message":"`, `"message":"`+s.name+" asks: ")
		}
		if diff := cmp.Diff(expected, got[a.Named]); diff != "" {
			t.Errorf("%s, %s (-directly +through toolgate):\n%s", s.name, a.Named, diff)
		}
	}
}

// expect adapts a direct observation to the revision of p: the stateless revision
// has no IDs for URL elicitations.
func (p peer) expect(observation string) string {
	if p.revision == statelessRevision {
		return strings.ReplaceAll(observation, `"elicitationId":"one",`, "")
	}
	return observation
}

// TestInspectorRevisions is TestRevisions with the inspector, which runs one
// process per action and has fewer of them.
func TestInspectorRevisions(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	runtime, script := requirePart(t, "node"), npmServer(t, "server-everything")
	stateless := everythingAt(t, "-stateless=true")
	g := serveReady(t, configure(t, setup{results: "off", servers: []server{
		{"npm", map[string]any{"command": runtime, "args": []string{script, "stdio"}}, nil},
		{"stateless", map[string]any{"type": "http", "url": stateless}, nil},
	}}))
	for name, tc := range map[string]struct {
		revision string // of the server
		direct   target
		actions  []action
	}{
		"npm": {sessionRevision, target{Command: runtime, Args: []string{script, "stdio"}}, []action{
			callTool("get-structured-content", args{"location": "Chicago"}),
			{Op: "prompt", Name: "args-prompt", Args: args{"city": "Oslo"}},
		}},
		"stateless": {statelessRevision, target{URL: stateless}, []action{
			callTool("test_multiple_content_types", nil),
			{Op: "read", URI: "test://static-text"},
		}},
	} {
		direct := runInspector(t, tc.direct, tc.revision, tc.actions)
		for _, p := range []peer{inspectorSession, inspectorStateless} {
			t.Run(name+" "+p.revision, func(t *testing.T) {
				t.Parallel()
				through := runInspector(t, g.route(name), p.revision, tc.actions)
				for i, a := range tc.actions {
					if diff := cmp.Diff(describe(t, a, direct[i]), describe(t, a, through[i])); diff != "" || direct[i].Result == nil {
						t.Errorf("%s (-directly +through toolgate), %s:\n%s", a.Op, direct[i].Failed, diff)
					}
				}
			})
		}
	}
}

// observeDirectly observes each server without toolgate, with every client that
// has the server's revision.
func observeDirectly(t *testing.T, servers []referenceServer) map[cell]observed {
	var mu sync.Mutex // protects found
	found := map[cell]observed{}
	t.Run("directly", func(t *testing.T) {
		for _, s := range servers {
			for _, p := range libraries {
				if p.revision != s.revision {
					continue
				}
				t.Run(p.String()+"/"+s.name, func(t *testing.T) {
					t.Parallel()
					got := observe(t, p, s.direct, false, s)[s.name]
					mu.Lock()
					defer mu.Unlock()
					found[cell{p.name, p.revision, s.name}] = got
				})
			}
		}
	})
	return found
}
