package mcpclient_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/paramheader"
)

// canned is a connection to a server that answers with text, whatever it is sent.
type canned struct {
	text io.Reader
	sent bytes.Buffer
}

func (c *canned) Read(p []byte) (int, error)       { return c.text.Read(p) }
func (c *canned) Write(p []byte) (int, error)      { return c.sent.Write(p) }
func (c *canned) Close() error                     { return nil }
func (c *canned) LocalAddr() net.Addr              { return nil }
func (c *canned) RemoteAddr() net.Addr             { return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

// onlyRoundTrip hides that a transport is more than that.
type onlyRoundTrip struct{ http.RoundTripper }

// callOver makes a call, whose id is "1", to a server that answers with answer. It
// returns the request as the server reads it.
func callOver(t *testing.T, answer, revision string, header http.Header, params json.RawMessage, bound []paramheader.Parameter, plain bool) (json.RawMessage, *mcpclient.Error, *http.Request) {
	t.Helper()
	server := &canned{text: strings.NewReader(answer)}
	transport := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return server, nil }})
	defer transport.CloseIdleConnections()
	var base http.RoundTripper = transport
	if !plain {
		base = onlyRoundTrip{transport}
	}
	c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 10})
	defer c.Close()
	if err := c.OpenHTTP("http://server.example/mcp?a=b", header, base); err != nil {
		t.Fatal(err)
	}
	c.Speak(revision)
	result, e := c.Do(t.Context(), &mcpclient.Call{ID: c.NextID(), Method: "tools/call", Params: params, Bound: bound})
	req, err := http.ReadRequest(bufio.NewReader(&server.sent))
	if err != nil {
		t.Fatalf("the server cannot read %q: %v", server.sent.String(), err)
	}
	body, _ := io.ReadAll(req.Body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	return result, e, req
}

// seen is what a server sees of a request.
func seen(r *http.Request) string {
	body, _ := io.ReadAll(r.Body)
	return fmt.Sprintf("%s %s %s %v %d %s", r.Method, r.RequestURI, r.Host, r.Header, r.ContentLength, body)
}

// FuzzSameCall: a call whose head is written once, and whose plain answer is read
// without net/http, is the same request and has the same outcome as any other.
func FuzzSameCall(f *testing.F) {
	ok := `{"jsonrpc":"2.0","id":"1","result":{"n":1}}`
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(ok))
	for _, answer := range []string{
		head + length + "\r\n" + ok,
		head + length + "\r\n" + ok + "HTTP/1.1 200 OK\r\n\r\nforged",
		head + length + "Content-Length: 5\r\n\r\n" + ok,
		head + length + "Transfer-Encoding: chunked\r\n\r\n" + ok,
		head + " Content-Length: 3\r\n" + length + "\r\n" + ok,
		head + "X: a\rContent-Length: 3\r\n" + length + "\r\n" + ok,
		head + "Content-Length: 900\r\n\r\n" + ok,
		head + "Content-Length: 9000\r\n\r\n" + ok,
		head + "Content-Length: 0\r\n\r\n",
		head + "\r\n" + ok,
		head + length + "\r\n" + ok[:10],
		head + length + "\r\n" + strings.Replace(ok, `"1"`, `"2"`, 1),
		head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(ok)+2) + strings.Replace(ok, "1}", `1,"n":2}`, 1),
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + ok + "\n\n",
		"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + length + "\r\n" + ok,
		"HTTP/1.1 202 Accepted\r\n\r\n",
		"HTTP/1.1 307 Elsewhere\r\nLocation: http://other.example/\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\n" + head + length + "\r\n" + ok,
		"", "HTTP/1.1 200 OK\r\nContent",
	} {
		f.Add(answer, "echo", "2026-07-28", "secret")
		f.Add(answer, "a\r\nContent-Length: 0", "2025-11-25", "")
	}
	f.Add(head+length+"\r\n"+ok, "ünï", "2026-07-28", "ü")
	f.Add(head+length+"\r\n"+ok, " padded ", "2026-07-28", "a b")
	f.Fuzz(func(t *testing.T, answer, name, revision, token string) {
		if strings.ContainsFunc(token, unicode.IsControl) || revision != "2025-11-25" && revision != "2026-07-28" {
			t.Skip() // no configuration has it
		}
		params, err := json.Marshal(map[string]any{"name": name, "arguments": map[string]any{"q": name, "n": len(answer)}})
		if err != nil {
			t.Skip()
		}
		header := http.Header{"Authorization": {"Bearer " + token}, "Mcp-Param-N": {"own"}}
		for _, bound := range [][]paramheader.Parameter{nil, {{Path: []string{"q"}, Header: "Mcp-Param-Q"}}, {{Path: []string{"n"}, Header: "Mcp-Param-N"}}, {{Path: []string{"q"}, Header: "Mcp-Param-Q"}, {Path: []string{"n"}, Header: "Mcp-Param-Q"}}} {
			result, e, req := callOver(t, answer, revision, header, params, bound, true)
			wantResult, wantErr, wantReq := callOver(t, answer, revision, header, params, bound, false)
			if got, want := seen(req), seen(wantReq); got != want {
				t.Errorf("sent %s\nwant %s", got, want)
			}
			if !bytes.Equal(result, wantResult) || (e == nil) != (wantErr == nil) {
				t.Fatalf("%q: %s, %v\nwant %s, %v", answer, result, e, wantResult, wantErr)
			}
			if e != nil && (e.Kind != wantErr.Kind || e.Sent != wantErr.Sent || e.Lost != wantErr.Lost || !bytes.Equal(e.RPC, wantErr.RPC) || e.Error() != wantErr.Error()) {
				t.Fatalf("%q: %+v\nwant %+v", answer, e, wantErr)
			}
		}
	})
}
