package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// bearer shows alice's token.
type bearer struct{ next http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer alice-token")
	return b.next.RoundTrip(r)
}

// The revisions that a client is pinned to: the newest with sessions, and the
// one without.
const (
	legacyEra = "2025-11-25"
	modernEra = "2026-07-28"
)

// inBothEras runs a test for clients of either kind of revision.
func inBothEras(t *testing.T, test func(t *testing.T, era string)) {
	for _, era := range []string{legacyEra, modernEra} {
		t.Run(era, func(t *testing.T) { test(t, era) })
	}
}

// sdkSession connects the go-sdk client, which must then speak era.
func sdkSession(t *testing.T, url, era string, opts *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, opts)
	session, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: url, HTTPClient: &http.Client{Transport: bearer{http.DefaultTransport}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: era})
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	if got := session.InitializeResult().ProtocolVersion; got != era {
		t.Errorf("negotiated %s, want %s", got, era)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return session
}

func TestGoSDKClient(t *testing.T) { inBothEras(t, testGoSDKClient) }

func testGoSDKClient(t *testing.T, era string) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	changed, steps := make(chan struct{}, 1), atomic.Int64{}
	s := sdkSession(t, srv.URL+"/mcp", era, &sdk.ClientOptions{
		ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
		ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { steps.Add(1) },
	})
	tools, err := s.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != len(g.tools) {
		t.Fatalf("listing: %v, %v", tools, err)
	}
	params := &sdk.CallToolParams{Name: "demo__steps", Arguments: map[string]any{"a": 1}}
	params.SetProgressToken("t")
	result, err := s.CallTool(t.Context(), params)
	if err != nil || result.Content[0].(*sdk.TextContent).Text != `{"a":1}` {
		t.Errorf("calling: %v, %v", result, err)
	}
	_, err = s.CallTool(t.Context(), &sdk.CallToolParams{Name: "demo__limited"})
	var rpc *jsonrpc.Error
	if !errors.As(err, &rpc) || rpc.Code != -32001 || !bytes.Contains(rpc.Data, []byte("RATE_LIMITED")) {
		t.Errorf("a limited call: %v", err)
	}
	d.ToolsChanged()
	<-changed
	if steps.Load() != 2 {
		t.Errorf("%d progress notifications, want 2", steps.Load())
	}
	if err := s.Ping(t.Context(), nil); (err == nil) != (era == legacyEra) {
		t.Errorf("pinging: %v", err)
	}
}

// TestGoSDKCancel: after a cancelled call the client goes on.
func TestGoSDKCancel(t *testing.T) { inBothEras(t, testGoSDKCancel) }

func testGoSDKCancel(t *testing.T, era string) {
	g := newGate()
	ended := make(chan struct{})
	g.behave["wait"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
		defer close(ended)
		return wait(ctx, g, in, args)
	}
	srv, _ := newServer(t, g, nil)
	s := sdkSession(t, srv.URL+"/mcp", era, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-g.started
		cancel()
	}()
	if _, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "demo__wait"}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	<-ended // the client sends its cancellation after it has returned
	if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "demo__echo"}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestGoSDKOverStdio: the same client on the other transport.
func TestGoSDKOverStdio(t *testing.T) { inBothEras(t, testGoSDKOverStdio) }

func testGoSDKOverStdio(t *testing.T, era string) {
	g := newGate()
	inR, inW, outR, outW := pipes()
	d := newDoor(t, g, nil)
	done := make(chan error, 1)
	go func() {
		done <- d.Serve(context.Background(), inR, outW)
		_ = outW.Close()
	}()
	c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.IOTransport{Reader: outR, Writer: inW}, &sdk.ClientSessionOptions{ProtocolVersion: era})
	if err != nil || s.InitializeResult().ProtocolVersion != era {
		t.Fatalf("connecting: %v, %v", s, err)
	}
	if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "demo__echo", Arguments: map[string]any{}}); err != nil {
		t.Errorf("calling: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("serving: %v", err)
	}
}

func TestMCPGoClient(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	changed := make(chan struct{}, 1)
	c, err := client.NewStreamableHttpClient(srv.URL+"/mcp",
		transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer alice-token"}),
		//lint:ignore SA1019 the revisions before 2026-07-28 announce changes on the GET stream
		transport.WithContinuousListening(),
		transport.WithHTTPBasicClient(srv.Client()))
	if err != nil {
		t.Fatal(err)
	}
	c.OnNotification(func(n mcpgo.JSONRPCNotification) {
		if n.Method == "notifications/tools/list_changed" {
			changed <- struct{}{}
		}
	})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	result, err := c.Initialize(t.Context(), mcpgo.InitializeRequest{})
	if err != nil {
		t.Fatalf("initializing: %v", err)
	}
	if result.ProtocolVersion != "2025-11-25" {
		t.Errorf("negotiated %s", result.ProtocolVersion)
	}
	tools, err := c.ListTools(t.Context(), mcpgo.ListToolsRequest{})
	if err != nil || len(tools.Tools) != len(g.tools) {
		t.Errorf("listing: %v, %v", tools, err)
	}
	var call mcpgo.CallToolRequest
	call.Params.Name, call.Params.Arguments = "demo__echo", map[string]any{"a": 1}
	answer, err := c.CallTool(t.Context(), call)
	if err != nil || answer.Content[0].(mcpgo.TextContent).Text != `{"a":1}` {
		t.Errorf("calling: %v, %v", answer, err)
	}
	d.ToolsChanged()
	<-changed
	if err := c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// TestTypeScriptClient runs the TypeScript SDK's client, and with it the
// handling of status, event streams and DELETE that most agents have.
func TestTypeScriptClient(t *testing.T) {
	node, modules := parts.Need(t, "node"), filepath.Dir(npm.File(t, "@modelcontextprotocol"))
	g := newGate()
	srv, _ := newServer(t, g, nil)
	script, err := filepath.Abs("testdata/client.mjs")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, script, srv.URL+"/mcp", modules)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running the client: %v\n%s", err, stderr.String())
	}
	var got struct {
		Tools    int
		Text     string
		Progress int
		Limited  struct {
			Code int
			Data struct{ Code string }
		}
		After string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got.Tools != len(g.tools) || got.Text != `{"a":1}` || got.Progress != 2 || got.After != `{"b":2}` {
		t.Errorf("got %s", out)
	}
	if got.Limited.Code != -32001 || got.Limited.Data.Code != "RATE_LIMITED" {
		t.Errorf("a limited call: %+v", got.Limited)
	}
}

var _ http.Handler = (*mcp.Door)(nil)

// breaking ends the body of each event stream after a few events, the third
// time not in the middle of one.
type breaking struct {
	next   http.RoundTripper
	broken atomic.Int64
}

func (b *breaking) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(r)
	if err == nil && res.Header.Get("Content-Type") == "text/event-stream" {
		res.Body = &cutBody{ReadCloser: res.Body, of: b, left: 2}
	}
	return res, err
}

// cutBody fails after a number of events.
type cutBody struct {
	io.ReadCloser
	of   *breaking
	left int
	held []byte
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		c.of.broken.Add(1)
		return 0, io.ErrUnexpectedEOF
	}
	if len(c.held) == 0 {
		buffer := make([]byte, 4096)
		n, err := c.ReadCloser.Read(buffer)
		if c.held = buffer[:n]; n == 0 {
			return 0, err
		}
	}
	n := len(c.held)
	if end := bytes.Index(c.held, []byte("\n\n")); end >= 0 {
		n = end + 2
		c.left--
	}
	n = copy(p, c.held[:n])
	c.held = c.held[n:]
	return n, nil
}

// TestGoSDKResumes: a client whose connections break after every second event
// gets each notification once, and the answer.
func TestGoSDKResumes(t *testing.T) {
	g := newGate()
	reporter(g, 5, -1)
	srv, _ := newServer(t, g, nil)
	var got []float64
	cut := &breaking{next: http.DefaultTransport}
	c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			got = append(got, r.Params.Progress)
		},
	})
	s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: srv.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer{cut}}, DisableStandaloneSSE: true,
	}, &sdk.ClientSessionOptions{ProtocolVersion: legacyEra})
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	params := &sdk.CallToolParams{Name: "demo__report"}
	params.SetProgressToken("t")
	if _, err := s.CallTool(t.Context(), params); err != nil {
		t.Errorf("calling: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if diff := cmp.Diff([]float64{1, 2, 3, 4, 5}, got); diff != "" || cut.broken.Load() < 3 {
		t.Errorf("%d connections broke; progress (-want +got):\n%s", cut.broken.Load(), diff)
	}
}

// TestGoSDKPolls: a client whose streams are closed again and again stays.
func TestGoSDKPolls(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, func(o *mcp.Options) { o.StreamLife = 10 * time.Millisecond })
	changed := make(chan struct{}, 1)
	s := sdkSession(t, srv.URL+"/mcp", legacyEra, &sdk.ClientOptions{
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
	})
	params := &sdk.CallToolParams{Name: "demo__wait"}
	params.SetProgressToken("t")
	go func() {
		<-g.started
		d.ToolsChanged()
		<-changed
		close(g.release)
	}()
	if _, err := s.CallTool(t.Context(), params); err != nil {
		t.Errorf("calling: %v", err)
	}
}

// TestGoSDKOverSSE: the client of the transport of 2024-11-05.
func TestGoSDKOverSSE(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, nil)
	for _, tt := range []struct{ path, prefix string }{{"/sse", "demo__"}, {"/sse/demo", ""}} {
		changed, steps := make(chan struct{}, 1), atomic.Int64{}
		c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, &sdk.ClientOptions{
			ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
			ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { steps.Add(1) },
		})
		s, err := c.Connect(t.Context(), &sdk.SSEClientTransport{
			Endpoint: srv.URL + tt.path, HTTPClient: &http.Client{Transport: bearer{http.DefaultTransport}},
		}, nil)
		if err != nil {
			t.Fatalf("connecting: %v", err)
		}
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != len(g.tools) {
			t.Fatalf("listing: %v, %v", tools, err)
		}
		params := &sdk.CallToolParams{Name: tt.prefix + "steps", Arguments: map[string]any{"a": 1}}
		params.SetProgressToken("t")
		result, err := s.CallTool(t.Context(), params)
		if err != nil || result.Content[0].(*sdk.TextContent).Text != `{"a":1}` {
			t.Errorf("calling: %v, %v", result, err)
		}
		d.ToolsChanged()
		<-changed
		if steps.Load() != 2 {
			t.Errorf("%d progress notifications, want 2", steps.Load())
		}
		if err := s.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	}
}

// TestMCPGoOverSSE: another client of that transport.
func TestMCPGoOverSSE(t *testing.T) {
	srv, _ := newServer(t, newGate(), nil)
	c, err := client.NewSSEMCPClient(srv.URL+"/sse", client.WithHeaders(map[string]string{"Authorization": "Bearer alice-token"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	init := mcpgo.InitializeRequest{}
	init.Params.ProtocolVersion = "2024-11-05"
	result, err := c.Initialize(t.Context(), init)
	if err != nil || result.ProtocolVersion != "2024-11-05" {
		t.Fatalf("initializing: %v, %v", result, err)
	}
	var call mcpgo.CallToolRequest
	call.Params.Name, call.Params.Arguments = "demo__echo", map[string]any{"a": 1}
	answer, err := c.CallTool(t.Context(), call)
	if err != nil || answer.Content[0].(mcpgo.TextContent).Text != `{"a":1}` {
		t.Errorf("calling: %v, %v", answer, err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}
