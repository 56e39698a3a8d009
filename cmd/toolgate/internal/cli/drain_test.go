package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// drainFiles is a toolgate with a short drain, whose server never answers a call of the
// tool hang, and where people have to approve calls of the tool held.
func drainFiles(shutdown string) map[string]string {
	return map[string]string{
		"policy/p.rego": `package toolgate

import rego.v2

decision := {"effect": "hold", "rule": "people", "reason": "ask", "approval": {"roles": ["approver"]}} if input.tool.name == "held"

else := {"effect": "allow", "rule": "all"} if input.tool.name
`,
		"up.json": `{"Tools": [{"Name": "hang", "Does": "hang"}, {"Name": "held"}, {"Name": "say"}]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off"}, "approvals": {"hold": "1m"},
				"shutdown": ` + shutdown + `, "servers": {"up": {"isolation": "shared"}}}}`,
	}
}

// drained is one call that is under way when toolgate stops: an HTTP request, by its path,
// headers and body.
type drained struct {
	path, accept, revision string
	body                   string
	session                string // "" = none; "new" = one of its own
}

const bothForms = "application/json, text/event-stream"

// drainedCalls are calls through every door over HTTP, by name. All but those of the tool held
// reach the server.
func drainedCalls() map[string]drained {
	call := func(tool, more string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":%q,"arguments":{}%s}}`, tool, more)
	}
	const progress = `,"_meta":{"progressToken":1}`
	stateless := func(more string) string {
		return `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}` + more + `}`
	}
	return map[string]drained{
		"session":           {"/mcp", bothForms, "2025-11-25", call("up__hang", ""), "new"},
		"session, events":   {"/mcp", bothForms, "2025-11-25", call("up__hang", progress), "new"},
		"session, one form": {"/mcp", "text/event-stream", "2025-11-25", call("up__hang", ""), "new"},
		"session, batch":    {"/mcp", bothForms, "2025-03-26", "[" + call("up__hang", "") + "]", "new"},
		"session, held":     {"/mcp", bothForms, "2025-11-25", call("up__held", ""), "new"},
		"one server":        {"/mcp/up", bothForms, "2025-11-25", call("hang", ""), "new"},
		"stateless":         {"/mcp", bothForms, "2026-07-28", call("up__hang", stateless("")), ""},
		"stateless, events": {"/mcp", "text/event-stream", "2026-07-28", call("up__hang", stateless(`,"progressToken":1`)), ""},
		"stateless, held":   {"/mcp", bothForms, "2026-07-28", call("up__held", stateless("")), ""},
		"jobs":              {"/v1/jobs", "", "", `{"query":"","tool":"up__hang","args":{}}`, ""},
		"jobs, held":        {"/v1/jobs", "", "", `{"query":"","tool":"up__held","args":{"n":2}}`, ""},
		"rpc":               {"/v1/rpc", "", "", call("up__hang", ""), ""},
		"rpc, held":         {"/v1/rpc", "", "", call("up__held", ""), ""},
	}
}

// send makes the request of c, and returns its status and its whole body. A body that was
// cut is an error.
func (c drained) send(ctx context.Context, base string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+c.path, strings.NewReader(c.body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range map[string]string{"Accept": c.accept, "Mcp-Protocol-Version": c.revision, "Mcp-Session-Id": c.session} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if c.revision == "2026-07-28" {
		req.Header.Set("Mcp-Method", "tools/call")
		req.Header.Set("Mcp-Name", regexp.MustCompile(`up__\w+`).FindString(c.body))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if events := res.Header.Get("Content-Type") == "text/event-stream"; events != strings.HasSuffix(string(text), "\n\n") || c.accept == "text/event-stream" && !events {
		err = errors.Join(err, fmt.Errorf("content type %s", res.Header.Get("Content-Type")))
	}
	return res.StatusCode, string(text), err
}

// openSession opens a session of a revision on a path, and returns its id.
func openSession(t *testing.T, base, path, revision string) string {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, revision)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", bothForms)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.Header.Get("Mcp-Session-Id")
}

// sseStream opens a client of HTTP+SSE whose one call hangs, and returns what its stream
// still says, to the end.
func sseStream(t *testing.T, base string) <-chan string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/sse", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(res.Body)
	var endpoint string
	for endpoint == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		endpoint, _ = strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !strings.HasPrefix(line, "data:") {
			endpoint = ""
		}
	}
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"up__hang","arguments":{}}}`,
	} {
		if status, text, _ := (drained{path: endpoint, body: body}).send(t.Context(), base); status != http.StatusAccepted {
			t.Fatalf("status %d: %s", status, text)
		}
	}
	said := make(chan string, 1)
	go func() {
		defer res.Body.Close()
		text, err := io.ReadAll(lines)
		if err != nil {
			text = fmt.Appendf(text, "\ncut: %v", err)
		}
		said <- string(text)
	}()
	return said
}

// awaitCount waits until a file contains a text n times.
func awaitCount(t *testing.T, path, text string, n int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var data []byte
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if data, _ = os.ReadFile(path); bytes.Count(data, []byte(text)) >= n {
			return
		}
	}
	t.Fatalf("%s contains %q %d times, want %d", path, text, bytes.Count(data, []byte(text)), n)
}

const unknownEffect = "whether the call took effect is unknown"

// A call that is under way when the drain ends gets a whole answer at every door, which
// says that its effect is unknown; a held one that it waits for people. Each leaves its
// outcome in the trail.
func TestDrainAnswers(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, drainFiles(`{"drain": "1s"}`))
	p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	base := "http://" + agents
	type said struct {
		name   string
		status int
		body   string
		err    error
	}
	answers, sent := make(chan said), 1 // by the client of HTTP+SSE
	calls := drainedCalls()
	for name, c := range calls {
		if c.session != "" { // each has one of its own
			c.session = openSession(t, base, c.path, c.revision)
		}
		if !strings.Contains(name, "held") {
			sent++
		}
		go func() {
			status, body, err := c.send(t.Context(), base)
			answers <- said{name, status, body, err}
		}()
	}
	events := sseStream(t, base)
	awaitCount(t, filepath.Join(dir, "record"), "tools/call", sent)
	awaitInFlight(t, admin, len(calls)+1)
	p.signal(syscall.SIGTERM)
	for range calls {
		a := <-answers
		want := unknownEffect
		if strings.Contains(a.name, "held") {
			want = "is waiting for a person"
		}
		switch {
		case a.err != nil:
			t.Errorf("%s: %v\n%s", a.name, a.err, a.body)
		case !strings.Contains(a.body, want):
			t.Errorf("%s: %d %s", a.name, a.status, a.body)
		case strings.HasPrefix(calls[a.name].path, "/mcp") && !strings.Contains(a.body, `"id":"7"`):
			t.Errorf("%s answers another request: %s", a.name, a.body)
		}
	}
	if got := <-events; !strings.Contains(got, `"id":7,"error"`) || !strings.Contains(got, unknownEffect) || strings.Contains(got, "cut:") {
		t.Errorf("HTTP+SSE: %s", got)
	}
	p.ends(command.ExitOK)
	checkDrained(t, dir, sent)
}

// awaitInFlight waits until n calls are under way, held ones included.
func awaitInFlight(t *testing.T, admin string, n int) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	want := fmt.Sprintf("toolgate_calls_in_flight %d\n", n)
	var body string
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if _, body, _ = visit("http://"+admin+"/metrics", ""); strings.Contains(body, want) {
			return
		}
	}
	t.Fatalf("the metrics never say %q", want)
}

// checkDrained checks that the trail is whole and has n outcomes of calls that toolgate
// ended.
func checkDrained(t *testing.T, dir string, n int) {
	t.Helper()
	if code, out := toolgate(t, dir, "audit", "verify"); code != command.ExitOK || strings.Contains(out, "unfinished") {
		t.Errorf("exit %d: %s", code, out)
	}
	_, out := toolgate(t, dir, "audit", "tail", "-n", "1000", "-o", "json")
	ended := 0
	for line := range strings.Lines(out) {
		var r struct{ Kind, Outcome, Code, Error string }
		decode(t, []byte(line), &r)
		if r.Kind == "outcome" && r.Code == "T4_TOOL_TIMEOUT" && strings.Contains(r.Error, unknownEffect) {
			ended++
		}
	}
	if ended != n {
		t.Errorf("%d outcomes of calls that were under way, want %d\n%s", ended, n, out)
	}
}

// The doors on a pair of streams answer in the same way.
func TestDrainAnswersOnStreams(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	call := func(id, tool, meta string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{}%s}}`, id, tool, meta)
	}
	for name, tc := range map[string]struct {
		command string
		lines   []string
	}{
		"stdio": {"stdio", []string{
			`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
			call("7", "up__hang", ""),
		}},
		"stdio, stateless": {"stdio", []string{
			call("7", "up__hang", `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`),
		}},
		"ndjson": {"ndjson", []string{`{"id":"7","type":"invoke","payload":{"action":"up__hang","input":{}}}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, drainFiles(`{"drain": "1s"}`))
			cmd := exec.Command("toolgate", tc.command)
			feed, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			p := startCommand(t, dir, cmd)
			for _, line := range tc.lines {
				if _, err := io.WriteString(feed, line+"\n"); err != nil {
					t.Fatal(err)
				}
			}
			await(t, filepath.Join(dir, "record"), "tools/call")
			p.signal(syscall.SIGTERM)
			p.says(`^\{.*"id":"?7.*` + unknownEffect + `.*\}$`)
			p.ends(command.ExitOK)
			checkDrained(t, dir, 1)
		})
	}
}

// With a delay, /readyz is 503 at once, while calls are still answered; the drain follows.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, drainFiles(`{"delay": "1h", "drain": "1s"}`))
	p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	p.signal(syscall.SIGTERM)
	p.says("not ready any more, and still serving: seconds=3600")
	if status, body, err := visit("http://"+admin+"/readyz?verbose", ""); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "toolgate is draining") {
		t.Errorf("/readyz: %d %s %v", status, body, err)
	}
	if status, body, err := visit("http://"+admin+"/livez", ""); err != nil || status != http.StatusOK {
		t.Errorf("/livez: %d %s %v", status, body, err)
	}
	if code, out := toolgate(t, dir, "tool", "call", "up__say", "--addr", "http://"+agents); code != command.ExitOK {
		t.Errorf("a call during the delay: exit %d\n%s", code, out)
	}
	p.signal(syscall.SIGTERM)
	p.ends(-1) // a second signal waits for nothing
	write(t, dir, drainFiles(`{"delay": "50ms", "drain": "1s"}`))
	p = start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	p.signal(syscall.SIGTERM)
	p.says("draining: seconds=1")
	p.ends(command.ExitOK)
}
