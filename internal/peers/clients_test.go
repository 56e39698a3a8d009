package peers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// way is where a client connects: to a URL, or to a command that it starts.
type way struct {
	URL     string   `json:"url,omitempty"`
	Token   string   `json:"token,omitempty"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	lingers bool     // after its input has ended
	want    int      // tools there are when all servers have answered
}

// step is one thing for a client to do.
type step struct {
	Op       string          `json:"op"` // list or call
	Tool     string          `json:"tool,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
	Progress bool            `json:"progress,omitempty"`
	Cancel   bool            `json:"cancel,omitempty"` // with the first progress
	// Want is how many tools a list has at the end. toolgate stdio waits one
	// second for its servers, so on a slow machine a list is asked for again.
	Want int `json:"want"`
}

func listing(want int) step { return step{Op: "list", Want: want} }

func calling(tool, args string) step {
	return step{Op: "call", Tool: tool, Args: json.RawMessage(args)}
}

// seen is what a client made of one step. Exactly one of Tools, Result and
// Failed is set.
type seen struct {
	Tools    []string        `json:"tools"`
	Result   json.RawMessage `json:"result"`
	Failed   string          `json:"failed"` // the client's error as text
	Code     int             `json:"code"`   // of a JSON-RPC error, 0 where the client hides it
	Data     json.RawMessage `json:"data"`   // of a JSON-RPC error, nil where the client hides it
	Progress int             `json:"progress"`
}

// peer is one third-party client. run takes it through all steps in one
// session.
type peer struct {
	name string
	run  func(t *testing.T, w way, steps ...step) []seen
	// What the client shows of a JSON-RPC error besides its message.
	showsCode, showsData bool
	// It asks for progress, and cancels over HTTP and over stdio.
	progress, cancelsHTTP, cancelsStdio bool
	// It may miss the last progress: it handles notifications later than an
	// answer that it reads at the same time.
	missesLast bool
	// It takes tasks in place of results, and waits for what they come to.
	takesTasks bool
}

var (
	inspector  = peer{name: "inspector", run: runInspector}
	goSDK      = peer{name: "go-sdk", run: runGoSDK, showsCode: true, showsData: true, progress: true, cancelsHTTP: true, cancelsStdio: true}
	typescript = peer{name: "typescript", run: runTypeScript(1, legacyEra), showsCode: true, showsData: true, progress: true, cancelsHTTP: true, cancelsStdio: true, missesLast: true}
	// mcp-go tells a server over HTTP nothing when a call is cancelled.
	mcpGo = peer{name: "mcp-go", run: runMCPGo, progress: true, cancelsStdio: true}
	peers = []peer{inspector, goSDK, typescript, mcpGo}
)

// runInspector runs the MCP inspector's CLI, once for each step.
func runInspector(t *testing.T, w way, steps ...step) []seen {
	t.Helper()
	return inspecting(t, w, nil, steps...)
}

// inspectorOf is runInspector with further flags.
func inspectorOf(flags ...string) func(t *testing.T, w way, steps ...step) []seen {
	return func(t *testing.T, w way, steps ...step) []seen {
		t.Helper()
		return inspecting(t, w, flags, steps...)
	}
}

func inspecting(t *testing.T, w way, flags []string, steps ...step) []seen {
	t.Helper()
	script := needs(t, "@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	target := []string{w.URL, "--transport", "http", "--header", "Authorization: Bearer " + w.Token}
	if w.URL == "" {
		session := filepath.Join(t.TempDir(), "session.json")
		write(t, session, jsonText(t, map[string]any{"mcpServers": map[string]any{
			"gate": map[string]any{"type": "stdio", "command": w.Command, "args": w.Args, "cwd": w.Dir},
		}}))
		target = []string{"--config", session, "--server", "gate"}
	}
	var out []seen
	for _, s := range steps {
		args := append([]string{script, "--cli"}, target...)
		args = append(append(args, "--format", "json", "-q"), flags...)
		if s.Op == "list" {
			args = append(args, "--method", "tools/list")
		} else {
			args = append(args, "--method", "tools/call", "--tool-name", s.Tool, "--tool-args-json", string(s.Args))
		}
		out = append(out, inspect(t, args))
		// Each inspector starts a toolgate of its own, which may be listed too
		// early; see step.Want.
		for end := time.Now().Add(patience); w.URL == "" && out[len(out)-1].early(s) && time.Now().Before(end); {
			out[len(out)-1] = inspect(t, args)
		}
	}
	return out
}

// early reports whether a server was not there yet.
func (s seen) early(at step) bool {
	return len(s.Tools) < at.Want || strings.Contains(s.Failed, "tool_not_found")
}

// inspect runs one inspector.
func inspect(t *testing.T, args []string) seen {
	t.Helper()
	stdout, stderr := node(t, nil, args...)
	var got struct {
		Result json.RawMessage
	}
	if err := json.Unmarshal(bytes.TrimSpace(stdout), &got); err != nil || got.Result == nil {
		return seen{Failed: strings.TrimSpace(string(stderr))}
	}
	var page struct{ Tools []struct{ Name string } }
	if json.Unmarshal(got.Result, &page) == nil && page.Tools != nil {
		s := seen{}
		for _, tool := range page.Tools {
			s.Tools = append(s.Tools, tool.Name)
		}
		return s
	}
	return seen{Result: got.Result}
}

// node runs a script to its end, whatever its exit code, in a home of its own.
func node(t *testing.T, stdin []byte, args ...string) (stdout, stderr []byte) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 4*patience) // a client may wait for people twice
	defer stop()
	cmd := exec.CommandContext(ctx, needs(t, "node"), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdin = bytes.NewReader(stdin)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.WaitDelay = 5 * time.Second
	program.Tether(cmd)
	var x *exec.ExitError
	if err := cmd.Run(); err != nil && (!errors.As(err, &x) || ctx.Err() != nil) {
		t.Fatalf("node %s: %v\n%s", strings.Join(args, " "), err, log.Bytes())
	}
	return out.Bytes(), log.Bytes()
}

// runTypeScript runs the client of the TypeScript SDK of a major version, of
// which the second knows both eras.
func runTypeScript(major int, era string) func(t *testing.T, w way, steps ...step) []seen {
	return func(t *testing.T, w way, steps ...step) []seen {
		t.Helper()
		needs(t, "@modelcontextprotocol/client/package.json")
		script, err := filepath.Abs("../../testdata/npm/client.mjs")
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr := node(t, []byte(jsonText(t, map[string]any{"way": w, "steps": steps, "major": major, "era": era})), script)
		var out []seen
		if err := json.Unmarshal(stdout, &out); err != nil || len(out) != len(steps) {
			t.Fatalf("the client said %q: %v\n%s", stdout, err, stderr)
		}
		return out
	}
}

// bearer shows a token.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// watched counts progress and can cancel a call with the first of it.
type watched struct {
	count  atomic.Int64
	cancel atomic.Pointer[context.CancelFunc]
}

func (w *watched) notice() {
	w.count.Add(1)
	if stop := w.cancel.Load(); stop != nil {
		(*stop)()
	}
}

// begin starts a step.
func (w *watched) begin(t *testing.T, s step) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(t.Context(), patience)
	w.count.Store(0)
	w.cancel.Store(nil)
	if s.Cancel {
		w.cancel.Store(&stop)
	}
	return ctx, stop
}

// runGoSDK runs the client of the official Go SDK, in the era that it chooses.
func runGoSDK(t *testing.T, w way, steps ...step) []seen {
	t.Helper()
	return goSDKIn(t, w, nil, steps...)
}

// goSDKOf runs it in an era.
func goSDKOf(era string) func(t *testing.T, w way, steps ...step) []seen {
	return func(t *testing.T, w way, steps ...step) []seen {
		t.Helper()
		return goSDKIn(t, w, &sdk.ClientSessionOptions{ProtocolVersion: era}, steps...)
	}
}

func goSDKIn(t *testing.T, w way, how *sdk.ClientSessionOptions, steps ...step) []seen {
	t.Helper()
	var progress watched
	c := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { progress.notice() },
	})
	var over sdk.Transport = &sdk.StreamableClientTransport{
		Endpoint: w.URL, HTTPClient: &http.Client{Transport: bearer{w.Token, http.DefaultTransport}},
	}
	if w.URL == "" {
		cmd := exec.Command(w.Command, w.Args...)
		cmd.Dir = w.Dir
		program.Tether(cmd)
		over = &sdk.CommandTransport{Command: cmd}
	}
	session, err := c.Connect(t.Context(), over, how)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	var out []seen
	for i, s := range steps {
		ctx, stop := progress.begin(t, s)
		out = append(out, goSDKStep(ctx, session, s, i))
		if s.Progress { // the handler is not bound to the answer's order
			program.Await(t, "progress arrives", func() bool { return progress.count.Load() >= wantSteps })
		}
		out[i].Progress = int(progress.count.Load())
		stop()
	}
	if err := session.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	return out
}

func goSDKStep(ctx context.Context, session *sdk.ClientSession, s step, n int) seen {
	if s.Op == "list" {
		return s.poll(ctx, func() (names []string, err error) {
			for tool, err := range session.Tools(ctx, nil) {
				if err != nil {
					return nil, err
				}
				names = append(names, tool.Name)
			}
			return names, nil
		})
	}
	params := &sdk.CallToolParams{Name: s.Tool, Arguments: s.Args}
	if s.Progress || s.Cancel {
		params.SetProgressToken(n)
	}
	result, err := session.CallTool(ctx, params)
	if err != nil {
		return failed(err)
	}
	return succeeded(result)
}

// poll lists until there are as many tools as wanted.
func (s step) poll(ctx context.Context, list func() ([]string, error)) seen {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		names, err := list()
		if err != nil {
			return failed(err)
		}
		if len(names) >= s.Want {
			return seen{Tools: names}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return seen{Tools: names}
		}
	}
}

// succeeded gives a result as the client would hand it on.
func succeeded(result any) seen {
	text, err := json.Marshal(result)
	if err != nil {
		return failed(err)
	}
	return seen{Result: text}
}

func failed(err error) seen {
	s := seen{Failed: err.Error()}
	var rpc *jsonrpc.Error
	if errors.As(err, &rpc) {
		s.Code, s.Data = int(rpc.Code), rpc.Data
	}
	return s
}

// runMCPGo runs mcp-go's client.
func runMCPGo(t *testing.T, w way, steps ...step) []seen {
	t.Helper()
	c := mcpGoClient(t, w)
	var progress watched
	c.OnNotification(func(n mcpgo.JSONRPCNotification) {
		if n.Method == "notifications/progress" {
			progress.notice()
		}
	})
	if _, err := c.Initialize(t.Context(), mcpgo.InitializeRequest{}); err != nil {
		t.Fatalf("initializing: %v", err)
	}
	var out []seen
	for i, s := range steps {
		ctx, stop := progress.begin(t, s)
		out = append(out, mcpGoStep(ctx, c, s, i))
		if s.Progress {
			program.Await(t, "progress arrives", func() bool { return progress.count.Load() >= wantSteps })
		}
		out[i].Progress = int(progress.count.Load())
		stop()
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	return out
}

func mcpGoClient(t *testing.T, w way) *client.Client {
	t.Helper()
	// The constructor for stdio leaves notifications unheard; Start does not.
	var over transport.Interface = transport.NewStdioWithOptions(w.Command, nil, w.Args, transport.WithCommandFunc(
		func(_ context.Context, name string, env, args []string) (*exec.Cmd, error) {
			cmd := exec.Command(name, args...)
			cmd.Dir, cmd.Env = w.Dir, append(os.Environ(), env...)
			program.Tether(cmd)
			return cmd, nil
		}))
	if w.URL != "" {
		var err error
		over, err = transport.NewStreamableHTTP(w.URL, transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + w.Token}))
		if err != nil {
			t.Fatalf("connecting: %v", err)
		}
	}
	c := client.NewClient(over)
	if err := c.Start(t.Context()); err != nil {
		t.Fatalf("connecting: %v", err)
	}
	return c
}

func mcpGoStep(ctx context.Context, c *client.Client, s step, n int) seen {
	if s.Op == "list" {
		return s.poll(ctx, func() (names []string, err error) {
			page, err := c.ListTools(ctx, mcpgo.ListToolsRequest{})
			if err != nil {
				return nil, err
			}
			for _, tool := range page.Tools {
				names = append(names, tool.Name)
			}
			return names, nil
		})
	}
	var request mcpgo.CallToolRequest
	request.Params.Name, request.Params.Arguments = s.Tool, s.Args
	if s.Progress || s.Cancel {
		request.Params.Meta = &mcpgo.Meta{ProgressToken: n}
	}
	result, err := c.CallTool(ctx, request)
	if err != nil {
		return failed(err)
	}
	return succeeded(result)
}
