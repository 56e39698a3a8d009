package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// exitComment is how a document says with which code a command exits.
var exitComment = regexp.MustCompile(`\s+# exit (\d+)$`)

// The commands of the README, then those of the tour, do what the documents say,
// in one shell, with the shipped configuration moved to free ports.
func TestReadme(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lines := shellLines(t, "README.md", "docs/start.md")
	if len(lines) < 10 {
		t.Fatalf("%d commands: the tour has lost commands", len(lines))
	}
	shipped, err := os.ReadFile(filepath.Join(repository(t), "mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	moved := strings.Replace(string(shipped), `"toolgate": {`, fmt.Sprintf(`"toolgate": {"listen": %q, "admin": %q,`, agents, admin), 1)
	write(t, dir, map[string]string{"mcp.json": moved})
	if err := os.Symlink(filepath.Join(repository(t), "policy"), filepath.Join(dir, "policy")); err != nil {
		t.Fatal(err)
	}
	start(t, dir, "serve", "--config", "mcp.json") // as make run does
	ready(t, admin)
	out := walk(t, dir, lines)
	for _, promise := range []string{
		"Model Context Protocol", "/my-gate/mcp.json", "POLICY_DENIED, -32600", `"pointer": "/num_results"`, "waiting for a person with role approver", "is approved",
		`"status": "replayed"`, "TOOL_NOT_FOUND, -32601", `unknown asset "DOGE": this wallet has USD, EUR, BTC`, "held for approver when", "decisions come out otherwise: 0 with another effect", "ok: ",
	} {
		if !strings.Contains(out, promise) {
			t.Errorf("the walk through never says %q", promise)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// walk runs commands in one shell, in a directory with bin/toolgate, and returns what they
// print.
func walk(t *testing.T, dir string, lines []string) string {
	t.Helper()
	binary, err := exec.LookPath("toolgate")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(dir, "bin", "toolgate")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"walk.sh": script(lines)})
	cmd := exec.CommandContext(t.Context(), "sh", "walk.sh")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GORACE=atexit_sleep_ms=0", "TOOLGATE_CONFIG=", "TOOLGATE_TOKEN=", "HOME="+dir) // not the clients of whoever runs the test
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// shellLines returns the commands in the sh blocks of documents.
func shellLines(t *testing.T, names ...string) (lines []string) {
	t.Helper()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(repository(t), name))
		if err != nil {
			t.Fatal(err)
		}
		inside := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\n")
			switch {
			case strings.HasPrefix(line, "```"):
				inside = line == "```sh"
			case inside && line != "":
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// script runs the commands and stops at the first that ends otherwise than it
// says: 0, if it says nothing.
func script(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		want := "0"
		if m := exitComment.FindStringSubmatch(line); m != nil {
			want = m[1]
		}
		quoted := "'" + strings.ReplaceAll(line, "'", `'\''`) + "'"
		fmt.Fprintf(&b, "printf '%%s\\n' %s\n%s\ncode=$?\n[ $code = %s ] || { echo \"exit $code, want %s\"; exit 1; }\n", quoted, line, want, want)
	}
	return b.String()
}
