package app

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// repeatServer serves one tool over MCP, whose answer is its argument "word" as often as "times" says.
func repeatServer(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Arguments struct {
					Word  string
					Times int
				}
			}
		}
		if json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		answer := `"error":{"code":-32601,"message":"method not found"}`
		switch m.Method {
		case "initialize":
			answer = `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"repeat","version":"1"}}`
		case "tools/list":
			answer = `"result":{"tools":[{"name":"repeat","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			answer = `"result":{"content":[{"type":"text","text":"` + strings.Repeat(m.Params.Arguments.Word, m.Params.Arguments.Times) + `"}]}`
		}
		body := `{"jsonrpc":"2.0","id":` + string(m.ID) + "," + answer + "}"
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/mcp"
}

// Clients that call at the same time, of which some hang up in the middle of an answer, get their own
// answers whole, whatever memory these are in.
func TestLargeAnswersAreTheirOwn(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "policy", "p.rego"), echoPolicy)
	write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{"mcpServers": {"up": {"url": %q}}, "toolgate": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0",
		"state": "state", "policy": {"path": "policy"}, "limits": {"default": "100000000/1m"}, "audit": {"durability": "os"},
		"identity": {"tokens": [{"subject": "agent", "roles": ["agent"], "sha256": "%x"}]}, "servers": {"up": {"isolation": "shared", "pin": false}}}}`,
		repeatServer(t), sha256.Sum256([]byte("agent"))))
	base := "http://" + running(t, dir).Agents.Addr().String() + "/mcp"
	var clients sync.WaitGroup
	for i := range 12 {
		clients.Go(func() {
			rnd, session := rand.New(rand.NewPCG(1, uint64(i))), ""
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			send := func(params string) (*http.Response, error) {
				method := "tools/call"
				if session == "" && i%2 == 0 {
					method = "initialize"
				}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, base, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
				req.Header = http.Header{"Authorization": {"Bearer agent"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
				if session != "" {
					req.Header["Mcp-Session-Id"], req.Header["Mcp-Protocol-Version"] = []string{session}, []string{"2025-11-25"}
				} else if i%2 != 0 {
					req.Header["Mcp-Protocol-Version"], req.Header["Mcp-Method"], req.Header["Mcp-Name"] = []string{"2026-07-28"}, []string{method}, []string{"up__repeat"}
				}
				return c.Do(req)
			}
			if i%2 == 0 {
				res, err := send(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
				if err != nil {
					t.Error(err)
					return
				}
				_ = res.Body.Close()
				session = res.Header.Get("Mcp-Session-Id")
			}
			for n := range 40 {
				word, times := fmt.Sprintf("client %d, call %d. ", i, n), 1+rnd.IntN(20_000)
				res, err := send(fmt.Sprintf(`{"name":"up__repeat","arguments":{"word":%q,"times":%d},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
					`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}`, word, times))
				if err != nil {
					t.Error(err)
					return
				}
				if rnd.IntN(8) == 0 {
					_, _ = io.CopyN(io.Discard, res.Body, 1000)
					_ = res.Body.Close()
					continue
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || !bytes.Contains(body, []byte(`"text":"`+strings.Repeat(word, times)+`"`)) || !json.Valid(body) {
					t.Errorf("client %d, call %d: %d bytes of an answer with %d, %v: %.300s", i, n, len(body), len(word)*times, err, body)
					return
				}
			}
		})
	}
	clients.Wait()
}
