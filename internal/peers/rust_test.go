package peers_test

import (
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// rustPeer returns the program of testdata/rust, which is the client and the server of
// the Rust SDK.
func rustPeer(t testing.TB) string {
	t.Helper()
	parts.Need(t, "cargo")
	peer := filepath.Join("target", "debug", "peer")
	kit := parts.Kit{Dir: "rust", Lock: "Cargo.lock", Stamp: peer, Target: "rust", Commands: [][]string{{"cargo", "build", "--quiet", "--locked"}}}
	return kit.File(t, peer)
}

// TestRust holds that the Rust SDK's client and server work through toolgate as they do
// without it.
func TestRust(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	peer := rustPeer(t)
	acts := []act{
		{"tools", "list_tools", "", nil},
		{"a call", "call", "echo", args{"text": "a", "times": 2}},
		{"a structured result", "call", "weather", args{"city": "Bonn"}},
		{"an error of the tool", "call", "fails", args{}},
		{"an error of the server", "call", "breaks", args{}},
		{"progress", "call", "counts", args{}},
		{"cancellation", "cancel", "sleeps", args{}},
		{"resources", "list_resources", "", nil},
		{"a resource", "read", "note://today", nil},
		{"no resource", "read", "note://nothing", nil},
		{"prompts", "list_prompts", "", nil},
		{"a prompt", "prompt", "plan", args{"goal": "rest"}},
		{"bad arguments", "call", "echo", args{"text": 1}},
		{"no such tool", "call", "nothing", args{}},
	}
	g := serveReady(t, configure(t, setup{servers: []server{{"rust", map[string]any{"command": peer, "args": []string{"serve"}}, nil}}}))
	through := []string{"act", program.Toolgate(t), "stdio", "--connect", g.route("rust").URL, "--token", agentToken}
	for i := range acts {
		if acts[i].Args == nil {
			acts[i].Args = args{}
		}
	}
	wantActs(t, runActs(t, acts, peer, "act", peer, "serve"), runActs(t, acts, peer, through...), refusals)
}
