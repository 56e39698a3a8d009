package peers_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// bridgeTo returns the command of a third-party bridge that carries a client over stdio
// to a URL.
type bridgeTo func(t *testing.T, to target) target

func mcpRemote(t *testing.T, to target) target {
	args := []string{"MCP_REMOTE_CONFIG_DIR=" + t.TempDir(), requirePart(t, "node"), requirePart(t, "mcp-remote/dist/proxy.js"), to.URL, "--transport", "http-only"}
	if to.Token != "" {
		args = append(args, "--header", "Authorization: Bearer "+to.Token)
	}
	return target{Command: "env", Args: args, lingers: true}
}

func supergateway(t *testing.T, to target) target {
	args := []string{npm.SoakFile(t, "supergateway/dist/index.js"), "--streamableHttp", to.URL, "--logLevel", "none"}
	if to.Token != "" {
		args = append(args, "--oauth2Bearer", to.Token)
	}
	return target{Command: requirePart(t, "node"), Args: args, lingers: true}
}

// foreignBridges are the bridges. One that carries answers only takes no cancellation
// and no notification.
var foreignBridges = []struct {
	name    string
	answers bool
	start   bridgeTo
}{
	{"mcp-remote", false, mcpRemote},
	{"supergateway", true, supergateway},
}

// TestForeignBridges: a client behind a third-party bridge sees of a server through
// toolgate what it sees of the server behind the same bridge, and reads denials.
func TestForeignBridges(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	script := npmServer(t, "server-everything")
	everything := referenceServer{
		name: "npm", revision: sessionRevision, actions: npmActions,
	}
	direct := target{URL: listenOn(t, script, "streamableHttp") + "/mcp"}
	entry := map[string]any{"type": "http", "url": direct.URL}
	g := serveReady(t, configure(t, setup{results: "off", servers: []server{{"npm", entry, nil}}, policy: peersPolicy}))
	t.Run("all", func(t *testing.T) { // the subtests end before the server does
		for _, b := range foreignBridges {
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				p, seen := goSession, everything
				if b.answers {
					seen.actions = slices.DeleteFunc(slices.Clone(npmActions), func(a action) bool { return a.Cancel || a.Wait != nil })
				}
				want := observe(t, p, b.start(t, direct), false, seen)["npm"]
				got := observe(t, p, b.start(t, g.route("npm")), false, seen)["npm"]
				if diff := cmp.Diff(want, got); diff != "" || len(got) < len(seen.actions)-len(gaps) {
					t.Errorf("%d actions (-directly +through toolgate):\n%s", len(got), diff)
				}
				denied := p.run(t, b.start(t, g.route("")), p.revision, []action{callTool("npm__get-structured-content", args{"location": "New York"})})
				denial{code: "POLICY_DENIED", gateway: -32600}.check(t, p, false, denied[0])
			})
		}
	})
}
