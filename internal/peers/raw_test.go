package peers_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// rawClient sends bytes unchanged, so that a test can send what no SDK sends.
type rawClient interface {
	// exchange sends one message and returns its answer, nil for none.
	exchange(t testing.TB, message []byte) []byte
	// notifications returns the notifications before the last answer.
	notifications() [][]byte
}

const initializeMessage = `{"jsonrpc":"2.0","id":"open","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// rawHTTP is one session over Streamable HTTP.
type rawHTTP struct {
	url, token, session string
	status              int // of the last answer
	notes               [][]byte
}

// notifications implements rawClient.
func (d *rawHTTP) notifications() [][]byte { return d.notes }

// openHTTP initializes a session.
func openHTTP(t testing.TB, url, token string) *rawHTTP {
	t.Helper()
	return openAs(t, "raw", url, token)
}

// openAs initializes a session of a client with a name.
func openAs(t testing.TB, client, url, token string) *rawHTTP {
	t.Helper()
	d := &rawHTTP{url: url, token: token}
	if answer := d.exchange(t, []byte(strings.Replace(initializeMessage, "raw", client, 1))); !bytes.Contains(answer, []byte(`"protocolVersion":"2025-11-25"`)) {
		t.Fatalf("initializing %s: %s", url, answer)
	}
	d.exchange(t, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return d
}

// rawStateless is a client at revision 2026-07-28 over HTTP or stdio.
type rawStateless struct{ rawClient }

// exchange implements rawClient.
func (d rawStateless) exchange(t testing.TB, message []byte) []byte {
	t.Helper()
	meta, params := statelessMeta("{}"), []byte(`"params":{`)
	if !bytes.Contains(message, params) {
		return d.rawClient.exchange(t, bytes.Replace(message, []byte(`"method":`), []byte(`"params":{`+meta+`},"method":`), 1))
	}
	return d.rawClient.exchange(t, bytes.Replace(message, params, []byte(`"params":{`+meta+`,`), 1))
}

// post sends a body.
func (d *rawHTTP) post(ctx context.Context, message []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if d.token != "" {
		req.Header.Set("Authorization", "Bearer "+d.token)
	}
	if d.session != "" {
		req.Header.Set("Mcp-Session-Id", d.session)
		req.Header.Set("MCP-Protocol-Version", "2025-11-25")
	}
	if bytes.Contains(message, []byte(statelessMeta("{}"))) {
		method, _ := jsonrpc.Get(message, "method")
		params, _ := jsonrpc.Get(message, "params")
		req.Header.Set("MCP-Protocol-Version", statelessRevision)
		req.Header.Set("Mcp-Method", strings.Trim(string(method), `"`))
		if name := toolName(params); name != "" {
			req.Header.Set("Mcp-Name", name)
		}
	}
	return http.DefaultClient.Do(req)
}

// exchange implements rawClient.
func (d *rawHTTP) exchange(t testing.TB, message []byte) []byte {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	answer, err := d.tryExchange(ctx, message)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// tryExchange is exchange for goroutines other than the test's.
func (d *rawHTTP) tryExchange(ctx context.Context, message []byte) ([]byte, error) {
	res, err := d.post(ctx, message)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	d.status, d.notes = res.StatusCode, nil
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		d.session = id
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return text, err
	}
	var last []byte
	for line := range bytes.Lines(text) {
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		switch data = bytes.TrimSpace(data); {
		case !ok || len(data) == 0:
		case isResponse(data):
			last = data
		default:
			d.notes = append(d.notes, data)
		}
	}
	return last, nil
}

// isResponse reports whether a message is a response.
func isResponse(message []byte) bool {
	_, method := jsonrpc.Get(message, "method")
	return !method && len(message) > 0
}

// rawStdio is one client on the stdin and stdout of a program.
type rawStdio struct {
	in    io.WriteCloser
	out   chan []byte
	proc  *program.Process // nil for a program that is not toolgate
	notes [][]byte
	ends  []io.Closer // the test's ends of the program's pipes
}

// closePipes closes every pipe at once, as the exit of a client does.
func (d *rawStdio) closePipes(t testing.TB) {
	t.Helper()
	for _, end := range d.ends {
		if err := end.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// notifications implements rawClient.
func (d *rawStdio) notifications() [][]byte { return d.notes }

// openStdio starts toolgate stdio and initializes it.
func openStdio(t testing.TB, dir string) *rawStdio {
	t.Helper()
	d := startStdio(t, dir)
	d.initialize(t)
	return d
}

// startStdio starts toolgate stdio.
func startStdio(t testing.TB, dir string) *rawStdio {
	t.Helper()
	var r, w [3]*os.File // of stdin, stdout and stderr
	for i := range r {
		var err error
		if r[i], w[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
	}
	log := &program.Text{}
	cmd := exec.Command(program.Toolgate(t), "stdio", "--config", "mcp.json", "--token", agentToken)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, r[0], w[1], w[2]
	p := program.Launch(t, cmd)
	p.Log = log
	r[0].Close()
	w[1].Close()
	w[2].Close()
	t.Cleanup(func() { w[0].Close() })
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(log, r[2]) // until either end is closed
	}()
	t.Cleanup(func() {
		r[2].Close()
		<-drained
	})
	d := newPipe(t, w[0], r[1])
	d.proc, d.ends = p, []io.Closer{w[0], r[1], r[2]}
	return d
}

// spawn starts a command that ends with the test process.
func spawn(t testing.TB, cmd *exec.Cmd) *rawStdio {
	t.Helper()
	program.Tether(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return newPipe(t, in, out)
}

// openCommand starts another stdio server and initializes it.
func openCommand(t testing.TB, env []string, name string, args ...string) *rawStdio {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	d := spawn(t, cmd)
	t.Cleanup(func() {
		d.in.Close()
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	d.initialize(t)
	return d
}

func (d *rawStdio) initialize(t testing.TB) {
	t.Helper()
	if answer := d.exchange(t, []byte(initializeMessage)); !bytes.Contains(answer, []byte(`"protocolVersion":"2025-11-25"`)) {
		t.Fatalf("initializing: %s", answer)
	}
	d.send(t, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
}

// newPipe reads the lines of a program.
func newPipe(t testing.TB, in io.WriteCloser, out io.ReadCloser) *rawStdio {
	d := &rawStdio{in: in, out: make(chan []byte, 1024)}
	go func() {
		defer close(d.out)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			d.out <- bytes.TrimSpace(line)
		}
	}()
	t.Cleanup(func() { out.Close() })
	return d
}

// send writes one line.
func (d *rawStdio) send(t testing.TB, message []byte) {
	t.Helper()
	if _, err := d.in.Write(append(bytes.Clone(message), '\n')); err != nil {
		t.Fatal(err)
	}
}

// next returns the next response.
func (d *rawStdio) next(t testing.TB) []byte {
	t.Helper()
	d.notes = nil
	late := time.After(timeout)
	for {
		select {
		case line, ok := <-d.out:
			if !ok {
				t.Fatal("stdout ended before the answer")
			}
			if isResponse(line) {
				return line
			}
			d.notes = append(d.notes, line)
		case <-late:
			t.Fatal("no answer on stdout")
		}
	}
}

// exchange implements rawClient.
func (d *rawStdio) exchange(t testing.TB, message []byte) []byte {
	t.Helper()
	d.send(t, message)
	return d.next(t)
}

// callMessage returns a tools/call message with args unchanged, "" for none.
func callMessage(id, tool, args string) []byte {
	if args != "" {
		args = `,"arguments":` + args
	}
	return []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%s%s}}`, id, jsonrpc.Quote(tool), args))
}

// call calls a tool and returns its result or its error object.
func call(t testing.TB, d rawClient, tool, args string) (result, failure json.RawMessage) {
	t.Helper()
	return splitAnswer(d.exchange(t, callMessage("7", tool, args)))
}

// splitAnswer returns the result or the error object of an answer.
func splitAnswer(answer []byte) (result, failure json.RawMessage) {
	result, _ = jsonrpc.Get(answer, "result")
	failure, _ = jsonrpc.Get(answer, "error")
	return result, failure
}

// mustCall calls a tool and fails the test unless the result is a success.
func mustCall(t testing.TB, d rawClient, tool, args string) json.RawMessage {
	t.Helper()
	result, failure := call(t, d, tool, args)
	if result == nil || bytes.Contains(result, []byte(`"isError":true`)) {
		t.Fatalf("calling %s: %s%s", tool, result, failure)
	}
	return result
}

// list returns every tool as it was received, in order.
func list(t testing.TB, d rawClient) []json.RawMessage {
	t.Helper()
	var out []json.RawMessage
	params := ``
	for {
		answer := d.exchange(t, []byte(`{"jsonrpc":"2.0","id":"list","method":"tools/list"`+params+`}`))
		result, _ := splitAnswer(answer)
		tools, ok := jsonrpc.Get(result, "tools")
		if !ok {
			t.Fatalf("listing: %s", answer)
		}
		for tool := range jsonrpc.Elements(tools) {
			out = append(out, tool)
		}
		next, ok := jsonrpc.Get(result, "nextCursor")
		if !ok {
			return out
		}
		params = `,"params":{"cursor":` + string(next) + `}`
	}
}

func toolName(tool json.RawMessage) string {
	raw, _ := jsonrpc.Get(tool, "name")
	name, _ := jsonrpc.Text(raw)
	return name
}

// refusal is an error object of toolgate.
type refusal struct {
	Code    int
	Message string
	Data    struct {
		Code       string
		KernelCode string `json:"kernel_code"`
		Reason     string
		Detail     map[string]any
	}
}

func readRefusal(t testing.TB, raw json.RawMessage) refusal {
	t.Helper()
	var r refusal
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatalf("reading the error %s: %v", raw, err)
	}
	return r
}

// ticketOf returns the approval status and the ticket of a result.
func ticketOf(t testing.TB, result json.RawMessage) (status, ticket string) {
	t.Helper()
	var r struct {
		Meta struct {
			Approval struct{ Status, Ticket string } `json:"io.toolgate/approval"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		t.Fatalf("reading the result %s: %v", result, err)
	}
	return r.Meta.Approval.Status, r.Meta.Approval.Ticket
}

// answer is the outcome of a call in the background.
type answer struct {
	text []byte
	err  error
}

// lastCallID numbers the calls of startCall, which run at the same time.
var lastCallID atomic.Int64

// startCall makes a call in the background.
func startCall(t testing.TB, d *rawHTTP, tool, args string) <-chan answer {
	t.Helper()
	done := make(chan answer, 1)
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(stop)
	copied, id := *d, fmt.Sprint(1000+lastCallID.Add(1))
	go func() {
		text, err := copied.tryExchange(ctx, callMessage(id, tool, args))
		done <- answer{text, err}
	}()
	return done
}

// mustText returns the answer and fails the test if the call failed.
func (a answer) mustText(t testing.TB) []byte {
	t.Helper()
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.text
}

const holdAll = `decision := {"effect": "hold", "rule": "always", "reason": "a person decides", "approval": {"roles": ["approver"]}}`

// holdCall makes a call that is held and returns its ticket.
func holdCall(t testing.TB, d rawClient, tool, args string) string {
	t.Helper()
	result, failure := call(t, d, tool, args)
	if result == nil {
		t.Fatalf("held call: %s", failure)
	}
	status, ticket := ticketOf(t, result)
	if status != "pending" || ticket == "" {
		t.Fatalf("held call: %s", result)
	}
	return ticket
}
