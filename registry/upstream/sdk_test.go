//lint:file-ignore SA1019 what later revisions deprecate, the revisions before them still have

package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// sdkVar makes the test binary a server made with the go-sdk.
const sdkVar = "SDK_SERVER"

// beSDK is that server.
func beSDK() {
	if err := sdkServer().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(0)
}

const watched = "file:///watched"

// sdkServer is a server made with the go-sdk: tools that report, ask, read an
// argument from a header, and change what the server has.
func sdkServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "sdk", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	add := func(name string, schema string, f func(context.Context, *sdk.CallToolRequest) *sdk.CallToolResult) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(schema)}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return f(ctx, req), nil
		})
	}
	const any = `{"type":"object"}`
	text := func(s string) *sdk.CallToolResult {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}
	}
	add("report", any, func(ctx context.Context, req *sdk.CallToolRequest) *sdk.CallToolResult {
		//lint:ignore SA1019 servers still log
		_ = req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: "working"})
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1})
		return text("reported")
	})
	add("ask", any, func(_ context.Context, req *sdk.CallToolRequest) *sdk.CallToolResult {
		name, _ := req.Params.InputResponses["name"].(*sdk.ElicitResult)
		poem, _ := req.Params.InputResponses["poem"].(*sdk.CreateMessageWithToolsResult)
		if name == nil || poem == nil {
			return &sdk.CallToolResult{RequestState: "state", InputRequests: sdk.InputRequestMap{
				"name": &sdk.ElicitParams{Message: "your name?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)},
				//lint:ignore SA1019 servers still sample
				"poem": &sdk.CreateMessageParams{MaxTokens: 9, Messages: []*sdk.SamplingMessage{}},
			}}
		}
		return text(fmt.Sprint(req.Params.RequestState, " ", name.Content["name"], " ", poem.Model))
	})
	add("mirror", `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}`,
		func(context.Context, *sdk.CallToolRequest) *sdk.CallToolResult { return text("same") })
	add("change", any, func(context.Context, *sdk.CallToolRequest) *sdk.CallToolResult {
		add("late", any, func(context.Context, *sdk.CallToolRequest) *sdk.CallToolResult { return text("late") })
		return text("changed")
	})
	add("touch", any, func(ctx context.Context, _ *sdk.CallToolRequest) *sdk.CallToolResult {
		_ = s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: watched})
		return text("touched")
	})
	add("elicit", any, func(ctx context.Context, req *sdk.CallToolRequest) *sdk.CallToolResult {
		answer, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "now?", RequestedSchema: json.RawMessage(`{"type":"object"}`)})
		if err != nil {
			return text(err.Error())
		}
		return text("client says " + answer.Action)
	})
	s.AddResource(&sdk.Resource{Name: "watched", URI: watched}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: watched, Text: "t"}}}, nil
	})
	return s
}

// overSDK runs f with that server over both transports.
func overSDK(t *testing.T, f func(*testing.T, *running)) {
	t.Run("stdio", func(t *testing.T) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		f(t, start(t, config.Server{Name: "sdk", Type: config.TypeStdio, Command: self, Args: []string{}, Isolation: "session", Timeout: patience,
			Env: map[string]string{sdkVar: "1", "GORACE": "atexit_sleep_ms=0"}}, soon()))
	})
	t.Run("http", func(t *testing.T) {
		s := sdkServer()
		f(t, start(t, serveHTTP(t, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true})), soon()))
	})
}

// serveHTTP serves h and configures it.
func serveHTTP(t *testing.T, h http.Handler) config.Server {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return config.Server{Name: "web", Type: config.TypeHTTP, URL: web.URL, Isolation: "session", Timeout: patience}
}

// A server that speaks revisions with a handshake and without is spoken to as each client
// speaks, or as configured: only with a handshake it can ask within a tool.
func TestEraOfClient(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		isolation, pinned, client string
		asks, both                bool
	}{
		{"session", "", "2025-11-25", true, true},
		{"session", "", "2024-11-05", true, true},
		{"session", "", "2026-07-28", false, true},
		{"session", "", "", false, true},
		{"session", "2026-07-28", "2025-11-25", false, false},
		{"session", "2025-06-18", "2026-07-28", true, false},
		{"shared", "", "2025-11-25", false, true},
		{"shared", "2025-11-25", "2025-11-25", false, false},
	} {
		t.Run(strings.Join([]string{tt.isolation, tt.pinned, tt.client}, " "), func(t *testing.T) {
			up := start(t, config.Server{
				Name: "sdk", Type: config.TypeStdio, Command: self, Isolation: tt.isolation, MaxSessions: 4, Revision: tt.pinned, Timeout: patience,
				Env: map[string]string{sdkVar: "1", "GORACE": "atexit_sleep_ms=0"},
			}, soon())
			up.ready()
			me := asClient("one", &peer{answer: func(upstream.Question) upstream.Answer { return result(`{"action":"decline"}`) }})
			me.Revision = tt.client
			got, e := up.send(me, "elicit", `{}`)
			if asked := strings.Contains(string(got), "client says decline"); e != nil || asked != tt.asks {
				t.Errorf("got %s %v, asked %v, want %v", got, e, asked, tt.asks)
			}
			if up.Both() != tt.both {
				t.Errorf("both is %v, want %v", up.Both(), tt.both)
			}
			stateless := strings.Contains(string(got), `"resultType"`)
			if want := tt.pinned == "2026-07-28" || tt.pinned == "" && (tt.client == "" || tt.client == "2026-07-28"); stateless != want {
				t.Errorf("answered without a handshake: %v, want %v: %s", stateless, want, got)
			}
		})
	}
}

// Over HTTP a server without sessions is spoken to without a handshake by all, and asks
// clients with a session all the same.
func TestEraWithoutSessions(t *testing.T) {
	s := sdkServer()
	up := start(t, serveHTTP(t, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true})), soon())
	up.ready()
	me := asClient("one", &peer{answer: func(q upstream.Question) upstream.Answer {
		if q.Method == "elicitation/create" {
			return result(`{"action":"accept","content":{"name":"Ada"}}`)
		}
		return result(`{"role":"assistant","content":{"type":"text","text":"roses"},"model":"bard"}`)
	}})
	me.Revision = "2025-11-25"
	if got, e := up.send(me, "ask", `{}`); e != nil || !strings.Contains(string(got), "state Ada bard") {
		t.Errorf("got %s %v", got, e)
	}
}

// A configured revision that the server does not speak is an error that names it.
func TestPinnedRevisionRefused(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{})
	cfg := stdioServer(rec)
	cfg.Revision = "2026-07-28"
	up := start(t, cfg, upstream.Options{})
	up.await("failure", func() bool { return up.Status().State == upstream.StateFailed })
	if err := up.Status().Err; !strings.Contains(err.Error(), "servers.rec.revision is 2026-07-28") {
		t.Errorf("the error does not name the setting: %v", err)
	}
}

// A server made with the go-sdk is spoken to without a handshake in all that it
// can do.
func TestSDK(t *testing.T) {
	overSDK(t, func(t *testing.T, up *running) {
		up.ready()
		home := &peer{}
		client := &peer{answer: func(q upstream.Question) upstream.Answer {
			if q.Method == "elicitation/create" {
				return result(`{"action":"accept","content":{"name":"Ada"}}`)
			}
			return result(`{"role":"assistant","content":{"type":"text","text":"roses"},"model":"bard"}`)
		}}
		me := asClient("one", client)
		me.Home = home
		text := func(tool, arguments, want string) {
			t.Helper()
			got, e := up.send(me, tool, arguments)
			if e != nil || !strings.Contains(string(got), `"text":"`+want+`"`) || !strings.Contains(string(got), `"resultType":"complete"`) {
				t.Errorf("%s: %s %v", tool, got, e)
			}
		}
		text("ask", `{}`, "state Ada bard")
		text("mirror", `{"region":"Grüße","n":42}`, "same")
		reported(t, up, me, client)
		if got, e := up.Ask(context.Background(), upstream.Ask{Method: "resources/read", Params: json.RawMessage(`{"uri":"` + watched + `"}`), From: me}); e != nil || !strings.Contains(string(got), `"t"`) {
			t.Errorf("resources/read: %s %v", got, e)
		}
		if _, e := up.subscribe(me, watched, false); e != nil {
			t.Fatal(e)
		}
		text("touch", `{}`, "touched")
		up.await("the update", func() bool {
			return slices.Contains(home.heard(), `notifications/resources/updated {"uri":"`+watched+`"}`)
		})
		if _, e := up.subscribe(me, watched, true); e != nil {
			t.Error(e)
		}
		if _, e := up.call(up.last, "change", `{}`); e != nil {
			t.Fatal(e)
		}
		up.await("the new tool", func() bool { return up.next()["late"] != "" })
		_, e := up.Ask(context.Background(), upstream.Ask{Method: "vendor/thing", From: me})
		wantError(t, e, upstream.Failed, true)
		if !strings.Contains(string(e.RPC), "-32601") {
			t.Errorf("an unknown method: %v", e)
		}
	})
}

// reported calls the tool that reports and checks what came.
func reported(t *testing.T, up *running, me upstream.Downstream, client *peer) {
	t.Helper()
	var mu sync.Mutex
	var progress []string
	if _, e := up.Do(context.Background(), upstream.Call{Tool: "report", Fingerprint: up.fingerprint("report"), Arguments: json.RawMessage(`{}`), From: me, Progress: func(p json.RawMessage) {
		mu.Lock()
		defer mu.Unlock()
		progress = append(progress, string(p))
	}}); e != nil {
		t.Error(e)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{`{"progress":1}`}; !slices.Equal(progress, want) {
		t.Errorf("progress %q, want %q", progress, want)
	}
	if want := []string{`notifications/message {"data":"working","level":"info"}`}; !slices.Equal(client.heard(), want) {
		t.Errorf("told %q, want %q", client.heard(), want)
	}
}

// The same server that keeps sessions is initialized, and one made with mcp-go
// that speaks both ways is not.
func TestErasOfSDKs(t *testing.T) {
	s := sdkServer()
	dual := server.NewMCPServer("dual", "1", server.WithToolCapabilities(true))
	dual.AddTool(mcp.NewTool("report"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText("reported"), nil
	})
	for _, tt := range []struct {
		name    string
		handler http.Handler
		shaken  bool
	}{
		{"go-sdk with sessions", sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil), true},
		{"mcp-go", server.NewStreamableHTTPServer(dual), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			shaken := false
			up := start(t, serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				mu.Lock()
				shaken = shaken || req.Header.Get("Mcp-Session-Id") != ""
				mu.Unlock()
				tt.handler.ServeHTTP(w, req)
			})), soon())
			up.ready()
			if got, e := up.send(asClient("one", &peer{}), "report", `{}`); e != nil || !strings.Contains(string(got), "reported") {
				t.Errorf("%s %v", got, e)
			}
			mu.Lock()
			defer mu.Unlock()
			if shaken != tt.shaken {
				t.Errorf("initialized %v, want %v", shaken, tt.shaken)
			}
		})
	}
}
