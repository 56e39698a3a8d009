package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

// clockServer is the least that an MCP server over HTTP can be: one tool.
func clockServer(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &m) != nil || m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"clock","version":"1"}}`,
		"tools/list": `{"tools":[{"name":"now","inputSchema":{"type":"object"}}]}`,
		"tools/call": `{"content":[{"type":"text","text":"noon"}]}`,
	}[m.Method]
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// write makes the files of a configuration.
func write(dir, server string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "policy.rego"), []byte(`package toolgate

import rego.v2

allow contains {"rule": "EARTH", "reason": "clocks on Earth are free"} if input.arguments.zone != "moon"
`), 0o600),
		os.WriteFile(filepath.Join(dir, "mcp.json"), fmt.Appendf(nil, `{
			"mcpServers": { "clock": { "url": %q } },
			"toolgate": { "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "policy": { "path": "." } }
		}`, server), 0o600),
	)
}

// A toolgate in one's own process: open it, run it, call a tool through it, and
// end it.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(clockServer))
	defer server.Close()
	dir, err := os.MkdirTemp("", "toolgate-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := write(dir, server.URL); err != nil {
		log.Fatal(err)
	}

	cfg, err := config.Load(config.Options{Path: filepath.Join(dir, "mcp.json")})
	if err != nil {
		log.Fatal(err)
	}
	listeners, err := app.Listen(cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	a, err := app.Open(ctx, listeners.Bound(cfg), app.Options{Role: "observer", Version: "example"})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, listeners, app.Reload{}) }()
	waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
	a.WaitForUpstreams(waiting)
	cancel()

	for _, zone := range []string{"UTC", "moon"} {
		fmt.Println(call("http://"+listeners.Agents.Addr().String()+"/v1/jobs", zone))
	}

	stop()
	if err := errors.Join(<-ended, a.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// UTC: 200
	// moon: 403 POLICY_DENIED
}

// call asks for the time in a zone, and gives the status and, of a refusal, the code.
func call(url, zone string) string {
	body := fmt.Sprintf(`{"tool": "clock__now", "args": {"zone": %q}}`, zone)
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	var problem struct{ Code string }
	if err := json.NewDecoder(res.Body).Decode(&problem); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %d %s", zone, res.StatusCode, problem.Code))
}
