package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// sound is the answer that a server gives after what it said first.
const sound = `{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}`

// FuzzServerAnswers: whatever a server sends in answer to a call, over stdio, as plain
// HTTP or as an event stream, the call ends: with a result that is strict JSON without
// what the policy redacts, or with an error that names the server's fault. Nothing
// panics, and over stdio the server's next answer is still read.
func FuzzServerAnswers(f *testing.F) {
	for _, seed := range []string{
		sound, `{"jsonrpc":"2.0","id":"ID","result":{"structuredContent":{"secret":"s3cret","a":"\ud800"},"_meta":null}}`, `{"result":{"content":[{"type":"text","text":"\ud800"}]},"jsonrpc":"2.0","id":"ID"}`,
		`{"jsonrpc":"2.0","id":"ID","result":{"structuredContent":{"secret":1,"secret":"s3cret"}}}`, `{"jsonrpc":"2.0","id":"ID","result":{"structuredContent":{"\ud800":1,"Secret":"x"},"content":[{"type":"resource","resource":{"blob":"!"}}]}}`,
		`{"jsonrpc":"2.0","id":"ID","error":{"code":1,"message":"\ud800"}}`, `{"jsonrpc":"2.0","id":"ID","result":[]}`, `{"jsonrpc":"2.0","id":"ID","result":` + strings.Repeat("[", 300), `[{"jsonrpc":"2.0","id":"ID","result":{}}]`,
		`{"jsonrpc":"2.0","id":"ID","result":{"resultType":"input_required"}}`, `{"id":"ID","method":"sampling/createMessage","jsonrpc":"2.0"}`, "data: x\n\n", "", "\n", "\x00", `{"id":"ID"`, `{"id":ID}`, strings.Repeat("x", 9000),
		`{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 9000) + `"}]}}`, `{"jsonrpc":"2.0","id":"ID","result":{"isError":true,"content":[{"type":"text","text":"\ud800\u202e"}]}}`,
		`{"jsonrpc":"2.0","id":"ID","result":{"task":{"taskId":"t","status":"working"},"content":null,"structuredContent":null}}`,
	} {
		for way := range byte(3) {
			f.Add([]byte(seed), way)
		}
	}
	modes := []string{"off", "compact", "full", "signals"}
	f.Fuzz(func(t *testing.T, data []byte, way byte) {
		conn := mcpclient.New(mcpclient.Options{MaxBytes: 8 << 10, MaxDepth: 200})
		defer conn.Close()
		switch way % 3 {
		case 0:
			openStdio(conn, data)
		case 1, 2:
			if err := conn.OpenHTTP("http://127.0.0.1/mcp", nil, answeringTransport{data, way%3 == 2}); err != nil {
				t.Fatal(err)
			}
		}
		b := newBench(t)
		b.decision.Redact = []string{"/structuredContent/secret"}
		tool := *searcher
		tool.Output, tool.EscapeHidden = mustSchema(`{"properties":{"secret":{"type":"string"}}}`), len(data)%2 == 0
		g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b,
			Upstreams: overConn{upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, &tool)}, conn},
			Settings:  proxy.Settings{Results: modes[len(data)/2%len(modes)]}})
		if err != nil {
			t.Fatal(err)
		}
		b.Gate = g
		reply, failure := b.call(t, plain)
		if failure != nil {
			if failure.Kernel.Code == signal.CodeInternal || failure.Reason == "" {
				t.Fatalf("%q: %+v", data, failure)
			}
			return
		}
		if _, _, err := jsonrpc.CheckValue(reply.Result, jsonrpc.Limits{Depth: 250, Bytes: 1 << 20}); err != nil {
			t.Fatalf("%q: %v in %q", data, err, reply.Result)
		}
		var read struct{ StructuredContent map[string]json.RawMessage }
		if json.Unmarshal(reply.Result, &read) == nil {
			if secret, ok := read.StructuredContent["secret"]; ok && string(secret) != `"[redacted]"` {
				t.Fatalf("%q: the secret is %s", data, secret)
			}
		}
	})
}

// overConn forwards calls over a connection.
type overConn struct {
	upstreams
	conn *mcpclient.Conn
}

func (u overConn) Forward(ctx context.Context, _ *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	result, e := u.conn.Do(ctx, &mcpclient.Call{ID: u.conn.NextID(), Method: "tools/call", Params: out.Arguments})
	if e != nil {
		return nil, e
	}
	return result, nil
}

// answerTo puts the id of a request into what the server sends.
func answerTo(request, data []byte) []byte {
	id, _ := jsonrpc.TextAt(request, "id")
	return bytes.ReplaceAll(data, []byte("ID"), []byte(id))
}

// openStdio connects to a server that answers its first request with data, and then
// soundly.
func openStdio(conn *mcpclient.Conn, data []byte) {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	p := &pipes{ends: []io.Closer{stdin, in, out, stdout}, exited: make(chan struct{})}
	go func() { // ends when the pipes are closed
		lines := bufio.NewReader(stdin)
		request, _ := lines.ReadBytes('\n')
		_, _ = stdout.Write(answerTo(request, append(append(bytes.Clone(data), '\n'), sound+"\n"...)))
		_, _ = io.Copy(io.Discard, lines)
	}()
	conn.OpenStdio(in, out, p, false)
}

// pipes is the process behind them.
type pipes struct {
	ends   []io.Closer
	exited chan struct{}
}

func (p *pipes) Exited() <-chan struct{} { return p.exited }
func (p *pipes) Fate() error             { return errors.New("it left") }
func (p *pipes) Stop() {
	for _, end := range p.ends {
		_ = end.Close()
	}
	close(p.exited)
}

// answeringTransport answers every POST with data, as JSON or as events.
type answeringTransport struct {
	data   []byte
	events bool
}

func (a answeringTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return &http.Response{StatusCode: http.StatusMethodNotAllowed, Body: http.NoBody, Request: r}, nil
	}
	request, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	data, media := answerTo(request, a.data), "application/json"
	if a.events {
		data, media = append([]byte("data: "), data...), "text/event-stream"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {media}}, ContentLength: -1, Body: io.NopCloser(bytes.NewReader(data)), Request: r}, nil
}
