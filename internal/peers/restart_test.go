//lint:file-ignore SA1019 what later revisions deprecate, the revisions before them still have

package peers_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

const steadyURI = "steady://thing"

// steady is a server whose client has something to lose when it dies: a
// subscription, a level of logging and calls under way. Tool touch changes the
// resource, log says something of little and of great weight, hang reports
// progress once and waits.
func steady(era string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "steady", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	if era == legacyEra {
		refuseDiscovery(s)
	}
	s.AddResource(&sdk.Resource{Name: "thing", URI: steadyURI}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: steadyURI, Text: "thing"}}}, nil
	})
	tool := func(name string, does func(context.Context, *sdk.CallToolRequest) error) {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(ctx context.Context, r *sdk.CallToolRequest, _ any) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{}}, nil, does(ctx, r)
		})
	}
	tool("touch", func(ctx context.Context, _ *sdk.CallToolRequest) error {
		return s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: steadyURI})
	})
	tool("log", func(ctx context.Context, r *sdk.CallToolRequest) error {
		for _, level := range []sdk.LoggingLevel{"info", "error"} {
			if err := r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Data: "said"}); err != nil {
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

// Variables that make this binary a steady server of an era: on stdio, or over
// HTTP at an address. It writes its process id down.
const (
	steadyVar   = "PEERS_STEADY"
	steadyAtVar = "PEERS_STEADY_AT"
	steadyIDVar = "PEERS_STEADY_PIDS"
)

func beSteady() {
	era, at := os.Getenv(steadyVar), os.Getenv(steadyAtVar)
	err := os.WriteFile(filepath.Join(os.Getenv(steadyIDVar), strconv.Itoa(os.Getpid())), nil, 0o600)
	if err == nil && at == "" {
		err = steady(era).Run(context.Background(), &sdk.StdioTransport{})
	} else if err == nil {
		one := steady(era)
		err = http.ListenAndServe(at, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return one },
			&sdk.StreamableHTTPOptions{Stateless: era == modernEra}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestRestart: an upstream that is killed while a client has a subscription, a
// level of logging and a call under way fails that call once and clearly;
// afterwards calls work, updates arrive and the level holds, without the client
// doing anything.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, far := range []string{legacyEra, modernEra} {
		for _, transport := range []string{"stdio", "http"} {
			for _, client := range []string{legacyEra, modernEra} {
				t.Run(transport+" "+far+", client "+client, func(t *testing.T) {
					t.Parallel()
					restart(t, transport, far, client)
				})
			}
		}
	}
}

func restart(t *testing.T, transport, far, client string) {
	entry, kill := mortal(t, transport, far)
	g := serveReady(t, configure(t, setup{results: "off", servers: []server{{"mortal", entry, map[string]any{"isolation": "session"}}}}))
	s := &goSession{era: client}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "survivor", Version: "1"}, s.options()).
		Connect(t.Context(), goTransport(way{URL: g.Agents + "/mcp/mortal", Token: agentToken}), &sdk.ClientSessionOptions{ProtocolVersion: client})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	s.ClientSession = session
	for _, a := range []act{{Op: "level", Value: "warning"}, {Op: "listen", URI: steadyURI}} {
		if got := s.play(t, a, 0); got.Failed != "" {
			t.Fatalf("%s: %s", a.Op, got.Failed)
		}
	}
	s.lives(t)
	heard, _ := s.begin(nil)
	failed := make(chan error, 1)
	go func() {
		_, err := s.call(t.Context(), act{Name: "hang", Progress: true}, 99)
		failed <- err
	}()
	s.awaits(t, act{Wait: map[string]int{progressNote: 1}}, heard)
	kill()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "Tool failed") {
		t.Errorf("the call under way: %v", err)
	}
	program.Await(t, "the server answers again", func() bool {
		result, err := s.call(t.Context(), act{Name: "touch"}, 100)
		return err == nil && !result.IsError
	})
	s.lives(t)
}

// lives checks that updates arrive, and log messages from the level on.
func (s *goSession) lives(t *testing.T) {
	t.Helper()
	if !program.Settles(func() bool {
		got := s.play(t, act{Op: "call", Name: "touch"}, 1)
		return got.Failed == "" && len(notesOf(t, got.Heard, updatedNote, true)) > 0
	}) {
		t.Error("no update arrives")
	}
	got := s.play(t, act{Op: "call", Name: "log", Wait: map[string]int{messageNote: 1}}, 2)
	var levels []any
	for _, n := range got.Heard {
		if n.Method == messageNote {
			levels = append(levels, n.Params["level"])
		}
	}
	if len(levels) != 1 || levels[0] != "error" {
		t.Errorf("heard log messages %v, want the one error (%s)", levels, got.Failed)
	}
}

// mortal is a steady server in mcp.json, and what kills it. Over HTTP it is
// started again at once.
func mortal(t *testing.T, transport, era string) (entry map[string]any, kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pids := t.TempDir()
	env := map[string]string{steadyVar: era, steadyIDVar: pids, "GORACE": "atexit_sleep_ms=0"}
	if transport == "stdio" {
		return map[string]any{"command": self, "env": env}, func() {
			entries, err := os.ReadDir(pids)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				pid, _ := strconv.Atoi(e.Name())
				if p, err := os.FindProcess(pid); err == nil {
					_ = p.Kill() // it may be gone already
				}
			}
		}
	}
	command := func(at string) *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), steadyAtVar+"="+at)
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		return cmd
	}
	p, at := program.LaunchAt(t, command)
	return map[string]any{"type": "http", "url": "http://" + at}, func() {
		p.Kill(t)
		again := program.Launch(t, command(at))
		if !again.Await(t, "it listens again", func() bool { return program.Listens(at) }) {
			t.Fatalf("it does not start again: %s", again.Log)
		}
	}
}
