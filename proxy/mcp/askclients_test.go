//lint:file-ignore SA1019 what later revisions deprecate, the revisions before them still have

package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// askAll is what the tool "talk" is told to ask real clients: a sampling, a form
// and the roots, in the course of the call or beside it.
func askAll(home bool) map[string]any {
	question := func(method, params string) map[string]any {
		return map[string]any{"method": method, "params": json.RawMessage(params)}
	}
	return map[string]any{"home": home, "ask": []any{
		question("sampling/createMessage", `{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}],"maxTokens":9}`),
		question("elicitation/create", `{"message":"sure?","requestedSchema":{"type":"object","properties":{"yes":{"type":"boolean"}}}}`),
		question("roots/list", `{}`),
	}}
}

// wantAll are parts of what a client answers to askAll.
var wantAll = []string{`"model":"stub"`, `"text":"ho"`, `"action":"accept"`, `"yes":true`, `"uri":"file:///r"`}

// checkAll holds the answers of a client, which are in the result, to wantAll.
func checkAll(t *testing.T, name string, result any, err error) {
	t.Helper()
	text, _ := json.Marshal(result)
	for _, part := range wantAll {
		if err != nil || !strings.Contains(string(text), part) {
			t.Errorf("%s: %s, %v; want %s in it", name, text, err, part)
		}
	}
}

// repeating makes the tool "talk" give its answers as text, which clients that
// decode a result do not lose.
func repeating(g *fakeGate) {
	g.behave["talk"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		answers, f := talk(ctx, g, in, args)
		return raw(fmt.Sprintf(`{"content":[{"type":"text","text":"asked"}],"structuredContent":%s}`, answers)), f
	}
}

// TestGoSDKIsAsked: the go-sdk client answers in the revisions before
// 2026-07-28, over HTTP and stdio.
func TestGoSDKIsAsked(t *testing.T) {
	g := newGate()
	repeating(g)
	srv, d := newServer(t, g, nil)
	inR, inW, outR, outW := pipes()
	done := make(chan error, 1)
	go func() {
		done <- d.Serve(context.Background(), inR, outW)
		_ = outW.Close()
	}()
	for name, way := range map[string]sdk.Transport{
		"http":  &sdk.StreamableClientTransport{Endpoint: srv.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer{http.DefaultTransport}}},
		"stdio": &sdk.IOTransport{Reader: outR, Writer: inW},
	} {
		c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, &sdk.ClientOptions{
			CreateMessageHandler: func(context.Context, *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
				return &sdk.CreateMessageResult{Model: "stub", Role: "assistant", Content: &sdk.TextContent{Text: "ho"}}, nil
			},
			ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
				return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"yes": true}}, nil
			},
		})
		c.AddRoots(&sdk.Root{URI: "file:///r"})
		s, err := c.Connect(t.Context(), way, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, home := range []bool{false, true} {
			result, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "demo__talk", Arguments: askAll(home)})
			checkAll(t, fmt.Sprintf("%s, home %v", name, home), result, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("serving: %v", err)
	}
}

// answering is an mcp-go client's end of what it is asked.
type answering struct{}

func (answering) CreateMessage(context.Context, mcpgo.CreateMessageRequest) (*mcpgo.CreateMessageResult, error) {
	text := mcpgo.SamplingMessage{Role: mcpgo.RoleAssistant, Content: mcpgo.TextContent{Type: "text", Text: "ho"}}
	return &mcpgo.CreateMessageResult{SamplingMessage: text, Model: "stub"}, nil
}

func (answering) Elicit(context.Context, mcpgo.ElicitationRequest) (*mcpgo.ElicitationResult, error) {
	return &mcpgo.ElicitationResult{ElicitationResponse: mcpgo.ElicitationResponse{
		Action: mcpgo.ElicitationResponseActionAccept, Content: map[string]any{"yes": true},
	}}, nil
}

func (answering) ListRoots(context.Context, mcpgo.ListRootsRequest) (*mcpgo.ListRootsResult, error) {
	return &mcpgo.ListRootsResult{Roots: []mcpgo.Root{{URI: "file:///r"}}}, nil
}

// TestMCPGoIsAsked: likewise the mcp-go client, with a GET stream and without.
func TestMCPGoIsAsked(t *testing.T) {
	g := newGate()
	repeating(g)
	srv, _ := newServer(t, g, nil)
	for _, listens := range []bool{false, true} {
		opts := []transport.StreamableHTTPCOption{
			transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer alice-token"}), transport.WithHTTPBasicClient(srv.Client()),
		}
		if listens {
			//lint:ignore SA1019 the revisions before 2026-07-28 ask on the GET stream
			opts = append(opts, transport.WithContinuousListening())
		}
		way, err := transport.NewStreamableHTTP(srv.URL+"/mcp", opts...)
		if err != nil {
			t.Fatal(err)
		}
		c := client.NewClient(way, client.WithLegacyProtocolOnly(), client.WithSamplingHandler(answering{}),
			client.WithElicitationHandler(answering{}), client.WithRootsHandler(answering{}))
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Initialize(t.Context(), mcpgo.InitializeRequest{}); err != nil {
			t.Fatalf("initializing: %v", err)
		}
		for _, home := range []bool{false, true} {
			var call mcpgo.CallToolRequest
			call.Params.Name, call.Params.Arguments = "demo__talk", askAll(home)
			result, err := c.CallTool(t.Context(), call)
			checkAll(t, fmt.Sprintf("listens %v, home %v", listens, home), result, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	}
}
