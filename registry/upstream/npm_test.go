package upstream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// npmServer finds the entry point of a server that nobody here wrote, and
// skips without it, except in CI.
func npmServer(t *testing.T, name string) (node, script string) {
	t.Helper()
	return parts.Need(t, "node"), npm.File(t, "@modelcontextprotocol/"+name+"/dist/index.js")
}

// Real servers over stdio: they are discovered, and a call works.
func TestRealServersStdio(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		server          string
		args            []string
		tools           int
		tool, arguments string
		want            string
	}{
		{"server-everything", []string{"stdio"}, 13, "echo", `{"message":"h\u0065llo"}`, "hello"},
		{"server-filesystem", []string{dir}, 14, "list_allowed_directories", `{}`, dir},
		{"server-memory", nil, 9, "read_graph", `{}`, "entities"},
	} {
		t.Run(tc.server, func(t *testing.T) {
			node, script := npmServer(t, tc.server)
			r := start(t, config.Server{
				Name: tc.server, Type: "stdio", Command: node, Args: append([]string{script}, tc.args...), Timeout: patience,
				Env: map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.json")},
			}, upstream.Options{})
			checkReal(t, r, tc.tools, tc.tool, tc.arguments, tc.want)
		})
	}
}

// checkReal checks the number of tools and one call.
func checkReal(t *testing.T, r *running, tools int, tool, arguments, want string) {
	t.Helper()
	prints := r.ready()
	if len(prints) != tools {
		t.Errorf("%d tools, want %d: %v", len(prints), tools, prints)
	}
	result, e := r.Do(context.Background(), upstream.Call{Tool: tool, Fingerprint: prints[tool], From: upstream.Downstream{Session: "s"}, Arguments: json.RawMessage(arguments)})
	if e != nil {
		t.Fatal(e)
	}
	if !strings.Contains(string(result), want) {
		t.Errorf("result %s, want one with %q", result, want)
	}
}

// A real server over Streamable HTTP and over the older HTTP+SSE.
func TestRealServerHTTP(t *testing.T) {
	for _, tc := range []struct{ mode, kind, path string }{
		{"streamableHttp", "http", "/mcp"},
		{"sse", "sse", "/sse"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			node, script := npmServer(t, "server-everything")
			_, port, _ := net.SplitHostPort(program.FreeAddress(t))
			listen(t, exec.Command(node, script, tc.mode), port)
			r := start(t, config.Server{
				Name: "everything", Type: tc.kind, URL: "http://127.0.0.1:" + port + tc.path, Timeout: patience,
			}, upstream.Options{})
			checkReal(t, r, 13, "echo", `{"message":"hello"}`, "hello")
			var steps int
			_, e := r.Do(context.Background(), upstream.Call{
				Tool: longRunning, Fingerprint: r.fingerprint(longRunning), Arguments: json.RawMessage(`{"duration":0.2,"steps":4}`),
				Progress: func(json.RawMessage) { steps++ },
			})
			if e != nil || steps != 4 {
				t.Errorf("%d progress notifications, want 4; error %v", steps, e)
			}
		})
	}
}

// A real server asks the client of a session, over each transport, and uses the
// answer.
func TestRealServerAsks(t *testing.T) {
	for _, tc := range []struct{ mode, kind, path string }{
		{"stdio", "stdio", ""},
		{"streamableHttp", "http", "/mcp"},
		{"sse", "sse", "/sse"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			node, script := npmServer(t, "server-everything")
			cfg := config.Server{Name: "everything", Type: tc.kind, Command: node, Args: []string{script, tc.mode}, Timeout: patience}
			if tc.path != "" {
				_, port, _ := net.SplitHostPort(program.FreeAddress(t))
				listen(t, exec.Command(node, script, tc.mode), port)
				cfg.URL = "http://127.0.0.1:" + port + tc.path
			}
			r := start(t, cfg, upstream.Options{})
			r.ready()
			me, peer, home := from("me")
			me.Capabilities = json.RawMessage(`{"sampling":{},"elicitation":{},"roots":{}}`)
			me.Level = "debug"
			answers := map[string]string{
				"sampling/createMessage": `{"role":"assistant","model":"m","content":{"type":"text","text":"what the model says"}}`,
				"elicitation/create":     `{"action":"decline"}`,
				"roots/list":             `{"roots":[{"uri":"file:///nowhere/at/all"}]}`,
			}
			peer.answer = func(_ context.Context, q upstream.Question) upstream.Answer {
				return upstream.Answer{Result: json.RawMessage(answers[q.Method])}
			}
			home.answer = peer.answer
			for _, call := range []struct{ tool, arguments, want string }{
				{"trigger-sampling-request", `{"prompt":"say something","maxTokens":10}`, "what the model says"},
				{"trigger-elicitation-request", `{}`, "declined"},
				{"get-roots-list", `{}`, "file:///nowhere/at/all"},
			} {
				var offer string
				r.await("the server offers "+call.tool, func() bool { // a busy machine opens it later than a list waits for it
					offer = r.Profile(t.Context(), me).Offers(call.tool)
					return offer != ""
				})
				result, e := r.Do(t.Context(), upstream.Call{Tool: call.tool, Fingerprint: offer, Arguments: json.RawMessage(call.arguments), From: me})
				if e != nil || !strings.Contains(string(result), call.want) {
					t.Errorf("%s: result %s, error %v", call.tool, result, e)
				}
			}
		})
	}
}

const longRunning = "trigger-long-running-operation"

// listen starts an HTTP server and waits until it says that it listens.
func listen(t *testing.T, cmd *exec.Cmd, port string) {
	t.Helper()
	cmd.Env = append(os.Environ(), "PORT="+port)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 100)
	go func() {
		defer close(said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case said <- lines.Text():
			default:
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		for range said {
		}
		cmd.Wait()
	})
	for line := range said {
		if strings.Contains(line, port) {
			return
		}
	}
	t.Fatal("the server ended before it listened")
}
