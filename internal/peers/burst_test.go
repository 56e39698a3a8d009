//lint:file-ignore SA1019 earlier revisions have what later revisions deprecate

package peers_test

import (
	"context"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// A client gets all of many messages that a server sends at once.
func TestBurst(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	const burst = 600
	tools := recorder.Config{Tools: []recorder.Tool{{Name: "steps", Does: recorder.Steps, N: burst}}}
	streamed := tools
	streamed.Stream = true
	dir := configure(t, setup{servers: []server{stdioOf("pipe", recorder.Stdio(t, tools), nil), httpOf("web", recorder.HTTP(t, streamed), nil)}})
	g := serveReady(t, dir)
	for name, at := range map[string]target{"http": g.route(""), "stdio": g.stdio(t, "mcp.json")} {
		for _, tool := range []string{"pipe__steps", "web__steps"} {
			t.Run(name+"/"+tool, func(t *testing.T) {
				var heard, last atomic.Int64
				c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, &sdk.ClientOptions{
					ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
						heard.Add(1)
						last.Store(int64(r.Params.Progress))
					},
				})
				session, err := c.Connect(t.Context(), goTransport(at), &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
				if err != nil {
					t.Fatal(err)
				}
				defer session.Close()
				params := &sdk.CallToolParams{Name: tool, Arguments: map[string]any{}}
				params.SetProgressToken("p")
				if _, err := session.CallTool(t.Context(), params); err != nil {
					t.Fatal(err)
				}
				program.Await(t, "all progress is heard", func() bool { return heard.Load() == burst })
				if last.Load() != burst-1 {
					t.Errorf("the last progress is %d, want %d", last.Load(), burst-1)
				}
			})
		}
	}
}
