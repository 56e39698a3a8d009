package peers_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// TestServersInTheSandbox: real servers run in a whole sandbox as they run without
// one: they list the same tools, and a call of each works. Playwright starts a
// browser, Python several processes and a database.
func TestServersInTheSandbox(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	node, chromium, python := requirePart(t, "node"), requirePart(t, "chromium"), pythonProgram(t)
	script, err := filepath.Abs("../../testdata/python/server.py")
	if err != nil {
		t.Fatal(err)
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>Confined</title><h1>Hello from the page</h1>")
	}))
	t.Cleanup(page.Close)
	folder := t.TempDir()
	write(t, filepath.Join(folder, "hello.txt"), "hello")
	servers := []struct {
		name       string
		command    string
		args       []string
		tool       string
		arguments  args
		wantInText string
	}{
		{"everything", node, []string{npmServer(t, "server-everything"), "stdio"}, "echo", args{"message": "confined"}, "confined"},
		{"files", node, []string{npmServer(t, "server-filesystem"), folder}, "read_text_file", args{"path": filepath.Join(folder, "hello.txt")}, "hello"},
		{"memory", node, []string{npmServer(t, "server-memory")}, "read_graph", args{}, "entities"},
		{"thinking", node, []string{npmServer(t, "server-sequential-thinking")}, "sequentialthinking",
			args{"thought": "confined", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}, "thoughtHistoryLength"},
		{"playwright", node, []string{requirePart(t, "@playwright/mcp/cli.js"), "--headless", "--isolated", "--no-sandbox", "--executable-path", chromium, "--output-dir", folder},
			"browser_navigate", args{"url": page.URL}, "Confined"},
		{"python", python, []string{script, folder}, "sum_of_squares", args{"numbers": []int{1, 2, 3}}, `"14"`},
		{"own", program.Toolgate(t), []string{"tools", "--dir", filepath.Join(folder, "tools")}, "search_internet", args{"query": "policy"}, "results"},
	}
	var entries []server
	for _, s := range servers {
		env := map[string]string{"HOME": folder, "MEMORY_FILE_PATH": filepath.Join(folder, "memory.jsonl")}
		entries = append(entries, server{s.name, map[string]any{"command": s.command, "args": s.args, "cwd": folder, "env": env},
			map[string]any{"isolation": "shared", "sandbox": "require"}})
	}
	g := serveReady(t, configure(t, setup{servers: entries}))
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			direct := openCommand(t, []string{"HOME=" + folder, "MEMORY_FILE_PATH=" + filepath.Join(folder, "memory.jsonl")}, s.command, s.args...)
			through := openHTTP(t, g.Agents+"/mcp/"+s.name, agentToken)
			if want, got := toolNames(t, list(t, direct)), toolNames(t, list(t, through)); want != got {
				t.Errorf("lists %s, without a sandbox %s", got, want)
			}
			if result := mustCall(t, through, s.tool, jsonText(t, s.arguments)); !strings.Contains(string(result), s.wantInText) {
				t.Errorf("result %s, want %s in it", result, s.wantInText)
			}
		})
	}
}

// pythonProgram returns the Python interpreter itself: python3 may be a script that
// looks for one.
func pythonProgram(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(requirePart(t, "python3"), "-c", "import sys, sqlite3, multiprocessing; print(sys.executable)").Output()
	if err != nil {
		t.Fatalf("running Python: %v", err)
	}
	return strings.TrimSpace(string(out))
}

func toolNames(t testing.TB, tools []json.RawMessage) string {
	t.Helper()
	var names []string
	for _, raw := range tools {
		var tool struct{ Name string }
		if err := json.Unmarshal(raw, &tool); err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}
