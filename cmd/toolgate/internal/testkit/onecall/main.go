// Command onecall measures which functions one allowed call enters: it runs a
// toolgate with coverage counters, makes warm-up calls of one tool over /mcp, and
// writes the counters of five further identical calls to one directory each.
// internal/house builds it with -cover -covermode=atomic and reads the counters.
//
//	onecall DIRECTORY
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

const policy = `package toolgate

import rego.v2

visible if input.tool.name == "echo"

allow contains {"rule": "ECHO", "reason": "everybody may hear an echo"} if input.tool.name == "echo"
`

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "onecall:", err)
		os.Exit(1)
	}
}

// run starts a toolgate below dir and measures calls.
func run(dir string) (err error) {
	server := httptest.NewServer(http.HandlerFunc(serveEcho))
	defer server.Close()
	cfg, err := configure(dir, server.URL)
	if err != nil {
		return err
	}
	listeners, err := app.Listen(cfg)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	a, err := app.Open(ctx, listeners.Bound(cfg), app.Options{Role: "observer", Version: "onecall"})
	if err != nil {
		listeners.Close()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, listeners, app.Reload{}) }()
	a.WaitForUpstreams(ctx)
	err = measure(dir, "http://"+listeners.Agents.Addr().String()+"/mcp")
	stop()
	return errors.Join(err, <-ended, a.Close())
}

// configure writes the files of a toolgate in front of the server at url, and loads
// them.
func configure(dir, url string) (*config.Config, error) {
	file := filepath.Join(dir, "mcp.json")
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "policy"), 0o700),
		os.WriteFile(filepath.Join(dir, "policy", "policy.rego"), []byte(policy), 0o600),
		os.WriteFile(file, fmt.Appendf(nil, `{ "mcpServers": { "up": { "url": %q } }, "toolgate": {
			"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "keys": "keys", "policy": { "path": "policy", "timeout": "10s" }, "audit": { "durability": "os" },
			"limits": { "default": "1000000/1s" }, "servers": { "up": { "isolation": "shared" } } } }`, url), 0o600),
	)
	if err != nil {
		return nil, err
	}
	return config.Load(config.Options{Path: file})
}

// serveEcho is an MCP server with one tool.
func serveEcho(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &m) != nil || m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"up","version":"1"}}`,
		"tools/list": `{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]}`,
		"tools/call": `{"content":[{"type":"text","text":"hello"}]}`,
	}[m.Method]
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// measure opens a session at url, makes warm-up calls, and writes the counters of
// five calls to dir/1 to dir/5.
func measure(dir, url string) error {
	session, _, err := post(url, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"onecall","version":"1"}}}`)
	if err != nil {
		return err
	}
	for id := 1; id <= 55; id++ {
		if id > 50 {
			if err := coverage.ClearCounters(); err != nil {
				return err
			}
		}
		_, answer, err := post(url, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"up__echo","arguments":{"text":"hello"}}}`, id))
		if err != nil || !strings.Contains(answer, `"text":"hello"`) {
			return fmt.Errorf("call %d: %s: %w", id, answer, err)
		}
		if id > 50 {
			if err := emit(filepath.Join(dir, fmt.Sprint(id-50))); err != nil {
				return err
			}
		}
	}
	return nil
}

// emit writes the counters to dir.
func emit(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir))
}

// post sends one message and returns the session of the answer, and its body.
func post(url, session, message string) (id, answer string, err error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader([]byte(message)))
	if err != nil {
		return "", "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.Header.Get("Mcp-Session-Id"), string(body), err
}
