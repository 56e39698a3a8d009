package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/policy/identity"
)

// lowPolicy denies the principal low every call, and hides nothing from it.
const lowPolicy = `package toolgate

import rego.v2

decision := {"effect": "deny", "rule": "none", "reason": "not for you"} if {
	input.principal.subject == "low"
	input.arguments.text != "never said"
}

else := {"effect": "allow", "rule": "all"}
`

// attackFiles is a toolgate with one upstream, which everybody but the principal low
// may call, and settings.
func attackFiles(t *testing.T, dir, toolgate string) {
	t.Helper()
	write(t, dir, map[string]string{
		"policy/p.rego": lowPolicy, "up.json": `{"Tools": [{"Name": "say"}]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off", "refused": "600/1m"}` + toolgate + `}}`,
	})
}

// Threat H6, fault 23: a process that may open 1,024 files keeps serving calls and
// /readyz while 1,000 connections send heads and bodies that never end, on every kind
// of path, and 300 more say nothing to the admin listener.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	parts.Long(t, "makes thousands of connections")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	attackFiles(t, dir, "")
	startCommand(t, dir, exec.Command("sh", "-c", "ulimit -n 1024 && exec toolgate serve --listen "+agents+" --admin "+admin))
	ready(t, admin)
	say := upSayer(t, "http://"+agents)
	hold := func(address, text string) {
		c, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	const head = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
	for i := range 250 {
		hold(agents, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow")
		hold(agents, "POST /mcp HTTP/1.1\r\n"+head)
		hold(agents, "POST /v1/jobs HTTP/1.1\r\n"+head)
		hold(agents, "POST /nowhere HTTP/1.1\r\n"+head)
		hold(admin, [...]string{"", "GET /readyz HT", "POST /console/login HTTP/1.1\r\n" + head, "POST /v1/approvals/x/approve HTTP/1.1\r\n" + head}[i%4])
		if i%50 == 0 {
			if got := say(10); got != "" {
				t.Fatalf("a call next to %d slow clients: %s", 5*i, got)
			}
		}
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 20 {
		if got := say(10); got != "" {
			t.Errorf("a call next to slow clients: %s", got)
		}
		answer, err := client.Get("http://" + admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("/readyz: %s", answer.Status)
		}
	}
	if _, text, err := visit("http://"+admin+"/metrics", ""); err != nil || !strings.Contains(text, `toolgate_connections_dropped_total{listener="agents"} `) {
		t.Errorf("/metrics does not count dropped connections: %v", err)
	}
}

// tokensFor is the identity of subjects whose tokens are their names.
func tokensFor(subjects ...string) string {
	var all []string
	for _, name := range subjects {
		all = append(all, fmt.Sprintf(`{"subject": %q, "roles": ["tester"], "sha256": %q}`, name, identity.HashToken(name)))
	}
	return `, "identity": {"tokens": [` + strings.Join(all, ",") + `]}`
}

// call posts a tools/call to /v1/rpc and returns its status and error code.
func call(t *testing.T, agents, token, tool, text string) (status int, code string) {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc": "2.0", "id": "1", "method": "tools/call", "params": {"name": %q, "arguments": {"text": %q}}}`, tool, text)
	return post(t, "http://"+agents+"/v1/rpc", token, body)
}

func post(t *testing.T, url, token, body string) (status int, code string) {
	t.Helper()
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Content-Type", "application/json")
	if token != "" {
		ask.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Error struct{ Data struct{ Code string } }
	}
	_ = json.Unmarshal(raw, &said) // problem details have no such member
	return answer.StatusCode, said.Error.Data.Code
}

// Threat H4: the lowest role cannot fill the disk with refusals. Its calls with large
// arguments, large names and broken bytes are recorded as excerpts, those beyond
// limits.refused in one record with their exact count, and the calls of others are
// made all the while.
func TestDiskFiller(t *testing.T) {
	t.Parallel()
	parts.Long(t, "fills a disk")
	disk, dir, agents, admin := smallDisk(t, "24m"), t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	state := filepath.Join(disk, "state")
	attackFiles(t, dir, tokensFor("low", "agent"))
	p := start(t, dir, "serve", "--state", state, "--listen", agents, "--admin", admin)
	ready(t, admin)
	large := strings.Repeat("x", 30<<17)
	codes, sent := map[string]int{}, 0
	attack := func(tool, text string) {
		_, code := call(t, agents, "low", tool, text)
		codes[code]++
		if sent++; sent%50 == 1 {
			if status, code := call(t, agents, "agent", "up__say", "hello"); status != http.StatusOK {
				t.Fatalf("a call of another after %d refused ones: %d %s", sent, status, code)
			}
		}
	}
	for range 15 {
		attack("up__say", large)
		attack(large, "")
		_, code := post(t, "http://"+agents+"/v1/rpc", "low", `{"jsonrpc": "2.0", "id": "`+large)
		codes[code]++
		sent++
	}
	for range 1000 {
		attack("up__say", "small")
	}
	if codes["POLICY_DENIED"] < 500 || codes["TOOL_NOT_FOUND"] != 15 || codes["PARSE_ERROR"] != 15 || codes["RATE_LIMITED"] < 100 {
		t.Errorf("the attacker was answered %v", codes)
	}
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
	recorded, folded := 0, 0
	for line, err := range audit.Tail(t.Context(), filepath.Join(state, "audit"), audit.TailOptions{Records: 1 << 20}) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := audit.Parse(line)
		switch {
		case err != nil:
			t.Error(err)
		case len(line) > 16<<10:
			t.Errorf("a record of %d bytes: %.200s", len(line), line)
		case r.Principal.Subject != "low":
		case r.Kind == audit.KindOutcome:
			if recorded++; recorded == 1 && (r.ArgumentsBytes < len(large) || r.ArgumentsSHA256 == "" || !strings.HasPrefix(r.ArgumentsExcerpt, `{"text"`)) {
				t.Errorf("the first record has %d bytes, digest %q, excerpt %.40q", r.ArgumentsBytes, r.ArgumentsSHA256, r.ArgumentsExcerpt)
			}
		case r.Kind == audit.KindEvent && r.Event.Name == audit.EventCallsRefused:
			folded += max(1, r.Event.Count)
		}
	}
	if folded != codes["RATE_LIMITED"] || recorded+folded != sent {
		t.Errorf("%d calls, %d records of their own, %d folded; %d were RATE_LIMITED", sent, recorded, folded, codes["RATE_LIMITED"])
	}
	if code, out := toolgate(t, dir, "audit", "verify", "--state", state); code != command.ExitOK {
		t.Errorf("exit %d: %s", code, out)
	}
}

// A client that guesses tokens is throttled by its address, on both listeners and every
// path, and leaves folded records with exact counts. A valid token passes all the while;
// a proxy that is trusted names the client, and any other client names nobody.
func TestGuessingClient(t *testing.T) {
	t.Parallel()
	parts.Long(t, "attacks a whole program")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	attackFiles(t, dir, tokensFor("agent")+`, "trusted_proxies": ["127.0.0.1"]`)
	p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	guess := func(url, from string, header ...string) int {
		ask, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"jsonrpc": "2.0", "id": "1", "method": "ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		ask.Header.Set("Content-Type", "application/json")
		ask.Header["Authorization"] = header
		ask.Header["X-Forwarded-For"] = []string{"198.51.100.1", from}
		answer, err := http.DefaultClient.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
		return answer.StatusCode
	}
	statuses, sent := map[int]int{}, 0
	paths := []string{"http://" + agents + "/mcp", "http://" + agents + "/mcp/up", "http://" + agents + "/v1/jobs", "http://" + agents + "/v1/rpc", "http://" + admin + "/v1/approvals/x/approve"}
	for i := range 500 {
		statuses[guess(paths[i%len(paths)], "192.0.2.7", fmt.Sprintf("Bearer guess-%d", i))]++
		if sent++; i%50 == 0 {
			if status, code := call(t, agents, "agent", "up__say", "hello"); status != http.StatusOK {
				t.Fatalf("a call with a valid token: %d %s", status, code)
			}
		}
	}
	if statuses[401] < 10 || statuses[401] > 20 || statuses[401]+statuses[429] != sent {
		t.Errorf("the guesses were answered %v", statuses)
	}
	if got := guess(paths[0], "192.0.2.7", "Bearer agent"); got == 401 || got == 429 {
		t.Errorf("a valid token from the address of the guesses: %d", got)
	}
	for _, header := range [][]string{{"Bearer other"}, {"Basic eDp5"}, {"Bearer agent", "Bearer agent"}} {
		if got := guess(paths[0], "192.0.2.8", header...); got != 401 {
			t.Errorf("%q from another address: %d, want 401", header, got)
		}
	}
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
	counts, records := map[string]int{}, 0
	for line, err := range audit.Tail(t.Context(), filepath.Join(dir, ".toolgate", "audit"), audit.TailOptions{Records: 1 << 20}) {
		if err != nil {
			t.Fatal(err)
		}
		if r, err := audit.Parse(line); err != nil {
			t.Error(err)
		} else if r.Kind == audit.KindEvent && r.Event.Name == audit.EventCredentialRefused {
			records++
			counts[r.Event.Source+" "+r.Event.Credential+" "+r.Event.Reason] += max(1, r.Event.Count)
		}
	}
	want := map[string]int{"192.0.2.7 token unknown": sent, "192.0.2.8 token unknown": 1, "192.0.2.8 malformed malformed": 2}
	if !maps.Equal(counts, want) || records > 20 {
		t.Errorf("%d records count %v, want %v", records, counts, want)
	}
}

// Threat H5, fault 19: the session hog. One principal opens sessions until every
// connection of a server is busy with long calls, two in each session, and goes on. Calls of another principal are made all the while.
func TestSessionHog(t *testing.T) {
	t.Parallel()
	parts.Long(t, "attacks a whole program")
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, map[string]string{
		"policy/p.rego": allowAll, "up.json": `{"Tools": [{"Name": "say"}, {"Name": "wait", "Does": "late", "Delay": 1000000000}]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off"},
				"servers": {"up": {"max_sessions": 3}}` + tokensFor("hog", "agent") + `}}`,
	})
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	attack, stop := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer stop()
	open := func(token string) *command.Agent {
		e := &command.Env{Addr: "http://" + agents, Token: token}
		a, err := e.Agent(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		return a
	}
	for range 8 {
		hog := open("hog")
		for range 2 {
			calls.Go(func() {
				for attack.Err() == nil {
					_, _ = hog.Do(attack, &mcpclient.Call{ID: hog.NextID(), Method: "tools/call", Params: []byte(`{"name":"up__wait","arguments":{}}`)})
				}
			})
		}
	}
	for deadline := time.Now().Add(patience); received(t, dir) < 6; {
		if time.Now().After(deadline) {
			t.Fatal("the hog does not get every connection")
		}
	}
	agent := open("agent")
	for i := range 5 {
		answer, fault := agent.Do(t.Context(), &mcpclient.Call{ID: agent.NextID(), Method: "tools/call", Params: []byte(`{"name":"up__say","arguments":{}}`)})
		if fault != nil || strings.Contains(string(answer), `"isError":true`) {
			t.Errorf("call %d next to the hog: %v %s", i, fault, answer)
		}
	}
}

// flood is a server over Streamable HTTP whose event stream sends notifications, changes
// of lists among them, as fast as toolgate reads them.
func flood(t *testing.T, sent, listed *atomic.Int64) string {
	t.Helper()
	const notices = `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s"}}` + "\n\n" +
		`data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n\n"
	event := fmt.Sprintf(notices, strings.Repeat("x", 2000))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, event); err != nil {
					return
				}
				sent.Add(2)
			}
			return
		}
		body, _ := io.ReadAll(r.Body)
		var ask struct {
			ID     json.RawMessage
			Method string
		}
		result, _ := "{}", json.Unmarshal(body, &ask)
		switch ask.Method {
		case "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"tools":{"listChanged":true}},"serverInfo":{"name":"flood","version":"1"}}`
		case "tools/list":
			listed.Add(1)
			result = `{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`
		}
		if ask.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, ask.ID, result)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	return srv.URL
}

// Fault 4: the SSE flood. A server that sends notifications without end is read at a
// bounded pace, is not asked for its tools all the time, and keeps nobody from calls of
// another server.
func TestSSEFlood(t *testing.T) {
	t.Parallel()
	parts.Long(t, "attacks a whole program")
	var sent, listed atomic.Int64
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, map[string]string{
		"policy/p.rego": allowAll, "up.json": `{"Tools": [{"Name": "say"}]}`,
		"mcp.json": fmt.Sprintf(`{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}, "flood": {"url": %q}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off"}}}`, flood(t, &sent, &listed)),
	})
	p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	say := upSayer(t, "http://"+agents)
	p.says("read more slowly")
	begun, before := time.Now(), sent.Load()
	calls := 0
	for ; time.Since(begun) < 5*time.Second; calls++ {
		if got := say(100); got != "" {
			t.Fatalf("a call next to the flood: %s", got)
		}
	}
	const buffered = 10_000 // in sockets
	if n, most := sent.Load()-before, int64(2_100*time.Since(begun).Seconds())+buffered; n > most {
		t.Errorf("%d messages were read in %s, at most %d were expected", n, time.Since(begun), most)
	}
	if n := listed.Load(); n > 15 {
		t.Errorf("the tools were listed %d times", n)
	}
	t.Logf("%d calls, %d messages, %d lists", calls, sent.Load(), listed.Load())
}
