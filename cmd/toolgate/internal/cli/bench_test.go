package cli

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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/registry/config"
)

// bare is the least that an MCP server can be: it answers each request from
// memory, so that what is measured is the road.
func bare(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &m) != nil || m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bare","version":"1"}}`,
		"tools/list": `{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]}`,
		"tools/call": `{"content":[{"type":"text","text":"hello"}]}`,
	}[m.Method]
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// BenchmarkHTTPRoad measures one client's tools/call over loopback HTTP: to the
// bare upstream, and to the same upstream through toolgate, call by call in
// turn, so that both see the same machine. It reports medians, what toolgate
// adds, and the ratio.
func BenchmarkHTTPRoad(b *testing.B) {
	for _, durability := range []string{"os", "sync"} {
		b.Run(durability, func(b *testing.B) {
			upstream := httptest.NewServer(http.HandlerFunc(bare))
			defer upstream.Close()
			gate := benchServer(b, upstream.URL, durability)
			direct := &caller{url: upstream.URL, tool: "echo"}
			through := &caller{url: gate + "/mcp", tool: "up__echo"}
			through.open(b)
			var d, t []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				d = append(d, direct.call(b))
				t = append(t, through.call(b))
			}
			md, mt := median(d), median(t)
			b.ReportMetric(float64(md.Microseconds()), "direct-µs")
			b.ReportMetric(float64(mt.Microseconds()), "governed-µs")
			b.ReportMetric(float64((mt - md).Microseconds()), "added-µs")
			b.ReportMetric(float64(mt)/float64(md), "ratio")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// caller is one MCP client with one connection.
type caller struct {
	url, tool, session string
	http               http.Client
}

func (c *caller) post(b *testing.B, body string) *http.Response {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Session-Id", c.session)
	if c.session == "" {
		req.Header.Del("Mcp-Session-Id")
	}
	res, err := c.http.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	return res
}

func (c *caller) open(b *testing.B) {
	b.Helper()
	res := c.post(b, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	defer res.Body.Close()
	c.session = res.Header.Get("Mcp-Session-Id")
	c.post(b, `{"jsonrpc":"2.0","method":"notifications/initialized"}`).Body.Close()
}

func (c *caller) call(b *testing.B) time.Duration {
	b.Helper()
	start := time.Now()
	res := c.post(b, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+c.tool+`","arguments":{"text":"hello"}}}`)
	text, err := io.ReadAll(res.Body)
	res.Body.Close()
	took := time.Since(start)
	if err != nil || !bytes.Contains(text, []byte(`"text":"hello"`)) {
		b.Fatalf("%s: %v", text, err)
	}
	return took
}

// benchServer serves one upstream, shared, with a policy that allows.
func benchServer(b *testing.B, upstream, durability string) string {
	b.Helper()
	dir := b.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "policy"), 0o700); err != nil {
		b.Fatal(err)
	}
	write("policy/p.rego", "package toolgate\nimport rego.v2\ndecision := {\"effect\": \"allow\", \"rule\": \"OK\"} if input.tool.name == \"echo\"\n")
	write("mcp.json", fmt.Sprintf(`{"mcpServers": {"up": {"type": "http", "url": %q}}, "toolgate": {"state": "state", "policy": {"path": "policy", "timeout": "10s"},
		"limits": {"default": "1000000000/1m"}, "audit": {"durability": %q}, "servers": {"up": {"isolation": "shared"}}}}`, upstream, durability))
	cfg, err := config.Load(clients.Options(config.Options{Path: filepath.Join(dir, "mcp.json"), Getenv: os.LookupEnv, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}))
	if err != nil {
		b.Fatal(err)
	}
	listeners, err := app.Listen(cfg)
	if err != nil {
		b.Fatal(err)
	}
	a, err := app.Open(b.Context(), listeners.Bound(cfg), app.Options{Role: "observer"})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, listeners, app.Reload{}) }()
	b.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, a.Close()); err != nil {
			b.Error(err)
		}
	})
	return "http://" + listeners.Agents.Addr().String()
}
