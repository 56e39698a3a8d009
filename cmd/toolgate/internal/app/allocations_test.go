package app

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// echoPolicy decides echo the same for every call, and checked by its text.
const echoPolicy = `package toolgate
import rego.v2
granted if "agent" in input.principal.roles
allow contains {"rule": "granted", "reason": "a role of the caller has the tool"} if granted
visible if granted
deny contains {"rule": "long", "reason": "the text is too long"} if {
	input.tool.name == "checked"
	count(input.arguments.text) > 1000
}
`

// canned are the answers of echoServer by what the request has in it.
var canned = []struct{ request, answer string }{
	{`"server/discover"`, `"error":{"code":-32601,"message":"method not found"}`},
	{`"initialize"`, `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}`},
	{`"tools/list"`, `"result":{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}},` +
		`{"name":"checked","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`},
	{`"tools/call"`, `"result":{"content":[{"type":"text","text":"the quick brown fox"}],"isError":false}`},
}

// echoServer serves MCP over HTTP with answers that are written beforehand, so that a call
// allocates nothing here. It returns its address.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerEchoes(conn)
		}
	}()
	return "http://" + l.Addr().String() + "/mcp"
}

func answerEchoes(conn net.Conn) {
	defer conn.Close()
	request, answer := make([]byte, 0, 64<<10), make([]byte, 0, 64<<10)
	requests := make([][]byte, len(canned))
	for i, c := range canned {
		requests[i] = []byte(c.request)
	}
	for {
		n, err := conn.Read(request[len(request):cap(request)])
		if err != nil {
			return
		}
		request = request[:len(request)+n]
		if body := bytes.Index(request, []byte("\r\n\r\n")); body < 0 || bytes.HasPrefix(request, []byte("POST")) && !bytes.HasSuffix(request, []byte("}")) {
			continue
		}
		answer = append(answer[:0], "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"...)
		for i, c := range canned {
			if !bytes.Contains(request, requests[i]) {
				continue
			}
			_, id, _ := bytes.Cut(request, []byte(`"id":`))
			id = id[:bytes.IndexByte(id, ',')]
			size := len(`{"jsonrpc":"2.0","id":,}`) + len(id) + len(c.answer)
			answer = fmt.Appendf(answer[:0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)
			answer = append(append(append(append(append(answer, `{"jsonrpc":"2.0","id":`...), id...), ','), c.answer...), '}')
			break
		}
		if !bytes.HasPrefix(request, []byte("POST")) {
			answer = append(answer[:0], "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"...)
		}
		request = request[:0]
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// An echoClient sends requests that are written beforehand on one connection.
type echoClient struct {
	conn   net.Conn
	answer []byte // valid until the next request
}

func (c *echoClient) send(t *testing.T, request []byte) {
	if _, err := c.conn.Write(request); err != nil {
		t.Fatal(err)
	}
	c.answer = c.answer[:0]
	for !bytes.HasSuffix(c.answer, []byte("}")) && !bytes.HasSuffix(c.answer, []byte("Content-Length: 0\r\n\r\n")) {
		n, err := c.conn.Read(c.answer[len(c.answer):cap(c.answer)])
		if err != nil {
			t.Fatal(err)
		}
		c.answer = c.answer[:len(c.answer)+n]
	}
}

func post(headers, body string) []byte {
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json, text/event-stream\r\n"+
		"Content-Type: application/json\r\nAuthorization: Bearer agent\r\n%sContent-Length: %d\r\n\r\n%s", headers, len(body), body)
}

// echoIssuer returns an issuer that says where its keys are, and a token of its agent.
func echoIssuer(t *testing.T) (issuer, token string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			fmt.Fprintf(w, `{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": %q}]}`, text(public))
			return
		}
		fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, issuer, issuer+"/keys")
	}))
	t.Cleanup(srv.Close)
	issuer = srv.URL
	token = text([]byte(`{"alg":"EdDSA","kid":"1","typ":"at+jwt"}`)) + "." + text(fmt.Appendf(nil, `{"iss":%q,"sub":"agent-7","aud":"gate","client_id":"c","scope":"media payments","roles":["agent"],"exp":%d}`,
		issuer, time.Now().Add(time.Hour).Unix()))
	return issuer, token + "." + text(ed25519.Sign(private, []byte(token)))
}

// The allocations of one governed call in the whole program, from its client's bytes to the
// answer's: a token, a policy, a rate limit, the tool's schema, both records. A change that
// needs more of them says why.
func TestAllocationsOfACall(t *testing.T) {
	if program.Raced {
		t.Skip("the race detector allocates too")
	}
	dir := t.TempDir()
	issuer, token := echoIssuer(t)
	write(t, filepath.Join(dir, "policy", "p.rego"), echoPolicy)
	write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{"mcpServers": {"up": {"url": %q}}, "toolgate": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0",
		"state": "state", "policy": {"path": "policy"}, "limits": {"default": "100000000/1m"}, "audit": {"durability": "os"},
		"identity": {"tokens": [{"subject": "agent", "roles": ["agent"], "sha256": "%x"}], "jwt": [{"issuer": %q, "audience": ["gate"]}]}, "servers": {"up": {"isolation": "shared", "pin": false}}}}`,
		echoServer(t), sha256.Sum256([]byte("agent")), issuer))
	l := running(t, dir)
	const (
		call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__%s","arguments":{"text":"the quick brown fox"}%s}}`
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	)
	conn, err := net.Dial("tcp", l.Agents.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := &echoClient{conn: conn, answer: make([]byte, 0, 64<<10)}
	c.send(t, post("", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`))
	_, session, _ := bytes.Cut(c.answer, []byte("Mcp-Session-Id: "))
	session, _, _ = bytes.Cut(session, []byte("\r\n"))
	inSession := fmt.Sprintf("Mcp-Session-Id: %s\r\nMcp-Protocol-Version: 2025-11-25\r\n", session)
	for _, tc := range []struct {
		name    string
		request []byte
		want    float64
	}{
		{"constant verdict", post(inSession, fmt.Sprintf(call, "echo", "")), 30},
		{"verdict on arguments", post(inSession, fmt.Sprintf(call, "checked", "")), 69},
		{"client of 2026-07-28", post("Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: up__echo\r\n", fmt.Sprintf(call, "echo", meta)), 40},
		{"the same with a token of an issuer that is known", bytes.Replace(post("Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: up__echo\r\n", fmt.Sprintf(call, "echo", meta)),
			[]byte("Bearer agent"), []byte("Bearer "+token), 1), 45},
	} {
		t.Run(tc.name, func(t *testing.T) {
			least := math.Inf(1)
			for range 300 { // the trail's writer and the index have their own now and then
				least = min(least, testing.AllocsPerRun(1, func() {
					if c.send(t, tc.request); !bytes.Contains(c.answer, []byte("the quick brown fox")) {
						t.Fatalf("%s", c.answer)
					}
				}))
			}
			if least != tc.want {
				t.Errorf("%v allocations, want %v", least, tc.want)
			}
		})
	}
}
