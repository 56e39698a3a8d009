//lint:file-ignore SA1019 what later revisions deprecate, the revisions before them still have

package peers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	mcpgo "github.com/mark3labs/mcp-go/server"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// eraServerVar makes this binary a server made with mcp-go, on stdio.
const eraServerVar = "PEERS_ERAS"

// eraForm and eraSampling are what the servers of these tests ask for.
var (
	eraForm = mcp.ElicitationParams{Message: "who", RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}, "required": []string{"name"},
	}}
	eraSampling = mcp.CreateMessageParams{MaxTokens: 9, Messages: []mcp.SamplingMessage{{Role: mcp.RoleUser, Content: mcp.TextContent{Type: "text", Text: "of what"}}}}
)

// runEraServer is that server. Its tools ask within a call, as earlier revisions allow;
// the tool ask is written for all revisions.
func runEraServer() {
	s := mcpgo.NewMCPServer("mcp-go", "1", mcpgo.WithToolCapabilities(true), mcpgo.WithElicitation(), mcpgo.WithRoots(), mcpgo.WithLogging())
	s.EnableSampling()
	add := func(name string, run func(context.Context, mcp.CallToolRequest) (string, error)) {
		s.AddTool(mcp.NewTool(name), func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			text, err := run(ctx, r)
			if err != nil {
				return mcp.NewToolResultError(err.Error()), nil
			}
			return mcp.NewToolResultText(text), nil
		})
	}
	add("sample", func(ctx context.Context, _ mcp.CallToolRequest) (string, error) {
		got, err := s.RequestSampling(ctx, mcp.CreateMessageRequest{CreateMessageParams: eraSampling})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(got.Model, ": ", mcp.GetTextFromContent(got.Content)), nil
	})
	add("elicit", func(ctx context.Context, _ mcp.CallToolRequest) (string, error) {
		got, err := s.RequestElicitation(ctx, mcp.ElicitationRequest{Params: eraForm})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(got.Action, ": ", got.Content), nil
	})
	add("roots", func(ctx context.Context, _ mcp.CallToolRequest) (string, error) {
		got, err := s.RequestRoots(ctx, mcp.ListRootsRequest{})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(got.Roots), nil
	})
	add("report", func(ctx context.Context, r mcp.CallToolRequest) (string, error) {
		for n := 1; n <= 2 && r.Params.Meta != nil && r.Params.Meta.ProgressToken != nil; n++ {
			_ = s.SendNotificationToClient(ctx, progressNote, map[string]any{"progressToken": r.Params.Meta.ProgressToken, "progress": n})
			time.Sleep(100 * time.Millisecond) // it works: mcp-go's answer can overtake notifications
		}
		return "reported", nil
	})
	s.AddTool(mcp.NewTool("ask"), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		answers := r.Params.InputResponses
		who, poem, places := mcpgo.ElicitationResponse(answers, "who"), mcpgo.SamplingResponse(answers, "poem"), mcpgo.RootsResponse(answers, "places")
		if who == nil || poem == nil || places == nil {
			return mcpgo.NewInputRequestBuilder("state").Elicit("who", eraForm).Sample("poem", eraSampling).Roots("places").ToolResult(), nil
		}
		return mcp.NewToolResultText(fmt.Sprint(r.Params.RequestState, " ", who.Content, " ", poem.Model, " ", places.Roots)), nil
	})
	if err := mcpgo.ServeStdio(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(0)
}

// eraActions are for the server above and for testdata/npm/servers/dual-era.mjs.
var eraActions = []action{
	{Named: "tools", Op: "tools"},
	{Named: "sampling", Op: "call", Name: "sample", wantRequests: sampleMethod},
	{Named: "elicit form", Op: "call", Name: "elicit", wantRequests: elicitMethod},
	{Named: "roots", Op: "call", Name: "roots"},
	{Named: "ask", Op: "call", Name: "ask", wantRequests: elicitMethod},
	{Named: "progress", Op: "call", Name: "report", Progress: true, Wait: map[string]int{progressNote: 2}},
}

// eraServers are servers of three SDKs that speak revisions with a session and without,
// over stdio.
func eraServers(t *testing.T) []referenceServer {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../../testdata/npm/servers/dual-era.mjs")
	if err != nil {
		t.Fatal(err)
	}
	requirePart(t, "@modelcontextprotocol/server/package.json")
	mcpGo := []string{eraServerVar + "=1", "GORACE=atexit_sleep_ms=0", self}
	var out []referenceServer
	for _, s := range []struct {
		name, command string
		args          []string
		actions       []action
	}{
		{"go-sdk", goEverything(t), []string{}, slices.Concat(statefulActions[:3], statelessActions[2:12])},
		{"mcp-go", "env", mcpGo, eraActions},
		{"typescript", requirePart(t, "node"), []string{script}, eraActions},
	} {
		out = append(out, referenceServer{
			name: s.name, actions: s.actions, entry: map[string]any{"command": s.command, "args": s.args},
			direct: target{Command: s.command, Args: s.args, lingers: true},
		})
	}
	return out
}

// TestErasOverStdio: a server that speaks both kinds of revision is to every client what
// it is without toolgate: its tools can ask clients with a session within a call.
func TestErasOverStdio(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	servers := eraServers(t)
	var entries []server
	for _, s := range servers {
		entries = append(entries, server{s.name, s.entry, map[string]any{"max_sessions": 64, "pin": false}})
	}
	g := serveReady(t, configure(t, setup{servers: entries, results: "off", agents: len(libraries)}))
	t.Run("all", func(t *testing.T) { // the subtests end before the servers do
		for n, p := range libraries {
			for _, s := range servers {
				t.Run(p.String()+"/"+s.name, func(t *testing.T) {
					t.Parallel()
					want := observe(t, p, s.direct, false, s)[s.name]
					got := observe(t, p, target{URL: g.Agents + "/mcp/" + s.name, Token: tokenOf(n)}, false, s)[s.name]
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("(-directly +through toolgate):\n%s", diff)
					}
					for action, holds := range map[string]string{"sampling": " 1 times", "elicit form": " 1 times", "roots": rootURI} {
						if p.revision == sessionRevision && !strings.Contains(got[action], holds) {
							t.Errorf("%s: %s", action, got[action])
						}
					}
				})
			}
		}
	})
}
