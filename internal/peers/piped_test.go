package peers_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// TestPipedLines pipes 1,000 requests at once through toolgate stdio and through toolgate
// stdio --connect, to a server that takes its time. Each has a result before the program
// ends.
func TestPipedLines(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "late", Does: recorder.Late, Delay: 300 * time.Millisecond}}})
	dir := configure(t, setup{servers: []server{stdioOf("far", rec, shared())}})
	t.Run("stdio", func(t *testing.T) {
		checkPiped(t, dir, "--config", "mcp.json")
	})
	t.Run("connect", func(t *testing.T) {
		checkPiped(t, t.TempDir(), "--connect", serveReady(t, dir).Agents)
	})
	if n := len(rec.Calls()); n != 2*334 {
		t.Errorf("%d calls reached the server", n)
	}
}

// checkPiped pipes 1,000 requests through one program and checks its answers.
func checkPiped(t *testing.T, dir string, args ...string) {
	t.Helper()
	const requests = 1000
	var lines strings.Builder
	lines.WriteString(initializeMessage + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")
	for id := range requests {
		fmt.Fprintf(&lines, `{"jsonrpc":"2.0","id":"r%d","method":%s}`+"\n", id, []string{
			`"tools/call","params":{"name":"far__late","arguments":{}}`, `"tools/list"`, `"ping"`,
		}[id%3])
	}
	cmd := exec.Command(program.Toolgate(t), append([]string{"stdio", "--token", agentToken}, args...)...)
	var stderr program.Text
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, strings.NewReader(lines.String()), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	answered := make(map[string]bool)
	for all := bufio.NewScanner(bytes.NewReader(out)); all.Scan(); {
		var m struct {
			ID     any
			Result struct{ IsError bool }
			Error  json.RawMessage
		}
		if err := json.Unmarshal(all.Bytes(), &m); err != nil || m.Error != nil || m.Result.IsError {
			t.Errorf("answer %.300s (%v)", all.Bytes(), err)
		}
		if id := fmt.Sprint(m.ID); m.ID != nil && answered[id] {
			t.Errorf("%s is answered twice", id)
		} else if m.ID != nil {
			answered[id] = true
		}
	}
	if len(answered) != requests+1 {
		t.Errorf("%d of %d requests are answered\n%s", len(answered)-1, requests, stderr.String())
	}
}
