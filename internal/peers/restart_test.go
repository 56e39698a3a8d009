//lint:file-ignore SA1019 earlier revisions have what later revisions deprecate

package peers_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

const restartURI = "restart://thing"

// newRestartServer returns a server whose clients have state: a subscription, a log
// level and running calls. Tool touch changes the resource, log sends a message of
// level info and one of level error, hang reports progress once and waits.
func newRestartServer(revision string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "restart", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	if revision == sessionRevision {
		refuseDiscover(s)
	}
	s.AddResource(&sdk.Resource{Name: "thing", URI: restartURI}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: restartURI, Text: "thing"}}}, nil
	})
	tool := func(name string, does func(context.Context, *sdk.CallToolRequest) error) {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(ctx context.Context, r *sdk.CallToolRequest, _ any) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{}}, nil, does(ctx, r)
		})
	}
	tool("touch", func(ctx context.Context, _ *sdk.CallToolRequest) error {
		return s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: restartURI})
	})
	tool("log", func(ctx context.Context, r *sdk.CallToolRequest) error {
		for _, level := range []sdk.LoggingLevel{"info", "error"} {
			if err := r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Data: "logged"}); err != nil {
				return err
			}
		}
		return nil
	})
	tool("hang", func(ctx context.Context, r *sdk.CallToolRequest) error {
		if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	return s
}

// Environment variables that make this binary a restart server of a revision, on
// stdio or over HTTP at an address. The server writes its process ID to a directory.
const (
	restartServerVar = "PEERS_RESTART"
	restartAddrVar   = "PEERS_RESTART_ADDR"
	restartPIDsVar   = "PEERS_RESTART_PIDS"
)

func runRestartServer() {
	revision, addr := os.Getenv(restartServerVar), os.Getenv(restartAddrVar)
	err := os.WriteFile(filepath.Join(os.Getenv(restartPIDsVar), recorder.InsidePID(os.Getpid())), nil, 0o600)
	if err == nil && addr == "" {
		err = newRestartServer(revision).Run(context.Background(), &sdk.StdioTransport{})
	} else if err == nil {
		one := newRestartServer(revision)
		err = http.ListenAndServe(addr, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return one },
			&sdk.StreamableHTTPOptions{Stateless: revision == statelessRevision}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestRestart: a kill of an upstream fails the running call of a client once, with a
// clear error. After the restart calls work, updates of the client's subscription
// arrive and its log level holds, without any action of the client.
func TestRestart(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	for _, server := range []string{sessionRevision, statelessRevision} {
		for _, transport := range []string{"stdio", "http"} {
			for _, client := range []string{sessionRevision, statelessRevision} {
				t.Run(transport+" "+server+", client "+client, func(t *testing.T) {
					t.Parallel()
					testRestart(t, transport, server, client)
				})
			}
		}
	}
}

func testRestart(t *testing.T, transport, revision, client string) {
	entry, kill := startKillable(t, transport, revision)
	g := serveReady(t, configure(t, setup{results: "off", servers: []server{{"mortal", entry, map[string]any{"isolation": "session"}}}}))
	s := &goClient{revision: client}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "survivor", Version: "1"}, s.options(false)).
		Connect(t.Context(), goTransport(target{URL: g.Agents + "/mcp/mortal", Token: agentToken}), &sdk.ClientSessionOptions{ProtocolVersion: client})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	s.ClientSession = session
	for _, a := range []action{{Op: "level", Value: "warning"}, {Op: "subscribe", URI: restartURI}} {
		if got := s.observe(t, a, 0, s.do); got.Failed != "" {
			t.Fatalf("%s: %s", a.Op, got.Failed)
		}
	}
	s.checkWorks(t)
	heard, _ := s.mark(nil)
	failed := make(chan error, 1)
	go func() {
		_, err := s.call(t.Context(), action{Name: "hang", Progress: true}, 99)
		failed <- err
	}()
	s.await(t, action{Wait: map[string]int{progressNote: 1}}, heard)
	kill()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "Tool failed") {
		t.Errorf("the running call: %v", err)
	}
	program.Await(t, "the server answers again", func() bool {
		result, err := s.call(t.Context(), action{Name: "touch"}, 100)
		return err == nil && !result.IsError
	})
	s.checkWorks(t)
}

// checkWorks checks that updates arrive, and log messages at or above the level.
func (s *goClient) checkWorks(t *testing.T) {
	t.Helper()
	if !program.Settles(func() bool {
		got := s.observe(t, action{Op: "call", Name: "touch"}, 1, s.do)
		return got.Failed == "" && len(paramsOf(t, got.Notifications, updatedNote, true)) > 0
	}) {
		t.Error("no update arrives")
	}
	got := s.observe(t, action{Op: "call", Name: "log", Wait: map[string]int{messageNote: 1}}, 2, s.do)
	var levels []any
	for _, n := range got.Notifications {
		if n.Method == messageNote {
			levels = append(levels, n.Params["level"])
		}
	}
	if len(levels) != 1 || levels[0] != "error" {
		t.Errorf("received log messages %v, want one error (%s)", levels, got.Failed)
	}
}

// startKillable returns the mcp.json entry of a restart server and a function that
// kills it. Over HTTP the function also starts it again.
func startKillable(t *testing.T, transport, revision string) (entry map[string]any, kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pids := t.TempDir()
	env := map[string]string{restartServerVar: revision, restartPIDsVar: pids, "GORACE": "atexit_sleep_ms=0"}
	if transport == "stdio" {
		return map[string]any{"command": self, "env": env}, func() {
			entries, err := os.ReadDir(pids)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if p, err := os.FindProcess(recorder.OutsidePID(e.Name())); err == nil {
					_ = p.Kill() // it may have exited
				}
			}
		}
	}
	command := func(at string) *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), restartAddrVar+"="+at)
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		return cmd
	}
	p, at := program.LaunchAt(t, command)
	return map[string]any{"type": "http", "url": "http://" + at}, func() {
		p.Kill(t)
		again := program.Launch(t, command(at))
		if !again.Await(t, "the server listens again", func() bool { return program.Listens(at) }) {
			t.Fatalf("the server does not start again: %s", again.Log)
		}
	}
}
