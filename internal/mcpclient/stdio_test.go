package mcpclient_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

// served is a server at the far ends of two pipes.
type served struct {
	*mcpclient.Conn
	t       *testing.T
	stdin   *os.File
	stdout  *os.File
	lines   *bufio.Reader
	near    []io.Closer
	exited  chan struct{}
	leaving sync.Once

	mu      sync.Mutex // protects the field below
	notices []string
}

// serve connects to a server.
func serve(t *testing.T) *served {
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, stdin: stdin, stdout: stdout, lines: bufio.NewReader(stdin), near: []io.Closer{in, out}, exited: make(chan struct{})}
	s.Conn = mcpclient.New(mcpclient.Options{MaxBytes: 1 << 20, MaxDepth: 1000, Handle: s.handle})
	s.OpenStdio(in, out, s, false)
	t.Cleanup(func() {
		s.Close()
		s.leave()
	})
	return s
}

func (s *served) handle(msg *jsonrpc.Message, _ *mcpclient.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices = append(s.notices, msg.Method)
}

func (s *served) Exited() <-chan struct{} { return s.exited }
func (s *served) Fate() error             { return errors.New("it left") }

func (s *served) Stop() {
	s.leave()
	for _, c := range s.near {
		_ = c.Close()
	}
}

// leave ends the server.
func (s *served) leave() {
	s.leaving.Do(func() {
		_ = s.stdin.Close()
		_ = s.stdout.Close()
		close(s.exited)
	})
}

// read returns the next line on stdin.
func (s *served) read() string {
	line, err := s.lines.ReadString('\n')
	if err != nil {
		s.t.Error(err)
	}
	return strings.TrimSuffix(line, "\n")
}

// id returns the id of a request.
func id(t *testing.T, line string) string {
	m, err := jsonrpc.Decode([]byte(line), jsonrpc.Limits{})
	if err != nil {
		t.Fatalf("%v: %.200s", err, line)
	}
	return string(m.ID)
}

func (s *served) write(line string) {
	if _, err := io.WriteString(s.stdout, line+"\n"); err != nil {
		s.t.Error(err)
	}
}

// outcome is how a call ended.
type outcome struct {
	result json.RawMessage
	e      *mcpclient.Error
}

// begin makes a call in its own goroutine.
func (s *served) begin(ctx context.Context, params string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		result, e := s.Do(ctx, &mcpclient.Call{ID: s.NextID(), Method: "tools/call", Params: json.RawMessage(params)})
		done <- outcome{result, e}
	}()
	return done
}

// Sixteen calls at a time are answered in the opposite order, with a notification before
// each answer: every caller has its own answer, and the notifications have their order.
func TestStdioOutOfOrder(t *testing.T) {
	const callers, rounds = 16, 20
	s := serve(t)
	for range rounds {
		var calls []<-chan outcome
		for i := range callers {
			size := 1 << (i % 14) // some fill a pipe together
			calls = append(calls, s.begin(t.Context(), fmt.Sprintf(`{"n":%d,"text":%q}`, i, strings.Repeat("x", size))))
		}
		var lines []string
		for range callers {
			lines = append(lines, s.read())
		}
		for i := callers - 1; i >= 0; i-- {
			s.write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/%d"}`, i))
			s.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id(t, lines[i]), paramsOf(t, lines[i])))
		}
		for i, done := range calls {
			if o := <-done; o.e != nil || !strings.HasPrefix(string(o.result), fmt.Sprintf(`{"n":%d,`, i)) {
				t.Fatalf("call %d: %.50s, %v", i, o.result, o.e)
			}
		}
	}
	for i, got := range s.notices {
		if want := fmt.Sprintf("notifications/%d", callers-1-i%callers); got != want {
			t.Fatalf("notification %d is %s, want %s", i, got, want)
		}
	}
	if len(s.notices) != callers*rounds {
		t.Errorf("%d notifications", len(s.notices))
	}
}

func paramsOf(t *testing.T, line string) json.RawMessage {
	params, ok := jsonrpc.Get([]byte(line), "params")
	if !ok {
		t.Fatalf("no params: %.200s", line)
	}
	return params
}

// A server that does not read: calls that were given up meanwhile and of which nothing
// was written are not sent, and the others arrive whole and in order, a notification
// included.
func TestStdioUnread(t *testing.T) {
	const calls = 200
	text := strings.Repeat("x", 1000) // 200 of them are more than a pipe holds
	s := serve(t)
	var done [calls]outcome
	for i := range calls {
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := s.begin(ctx, fmt.Sprintf(`{"n":%d,"text":%q}`, i, text))
		for s.Lookup(fmt.Sprint(i+1)) == nil { // until it is under way
			select {
			case o := <-cancelled:
				t.Fatalf("call %d ended: %v", i, o.e)
			default:
			}
		}
		cancel()
		done[i] = <-cancelled
	}
	if err := s.Post(t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/last"}`)); err != nil {
		t.Fatal(err)
	}
	arrived := map[string]bool{}
	last := 0
	for {
		line := s.read()
		if strings.Contains(line, "notifications/last") {
			break
		}
		var n int
		if _, err := fmt.Sscanf(string(paramsOf(t, line)), `{"n":%d,`, &n); err != nil || n < last || !strings.HasSuffix(line, text+`"}}`) {
			t.Fatalf("after %d: %.100s", last, line)
		}
		last = n
		arrived[fmt.Sprint(n)] = true
	}
	for i, o := range done {
		if o.e == nil || o.e.Kind != mcpclient.Cancelled || o.e.Sent != arrived[fmt.Sprint(i)] {
			t.Errorf("call %d: %+v, arrived %t", i, o.e, arrived[fmt.Sprint(i)])
		}
	}
	if n := len(arrived); n == calls {
		t.Errorf("%d calls arrived", n)
	}
}

// A call follows a notification that was posted before it.
func TestStdioOrder(t *testing.T) {
	s := serve(t)
	for i := range 200 {
		if err := s.Post(t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/first"}`)); err != nil {
			t.Fatal(err)
		}
		done := s.begin(t.Context(), `{}`)
		if got := s.read(); !strings.Contains(got, "notifications/first") {
			t.Fatalf("round %d: %s", i, got)
		}
		s.write(`{"jsonrpc":"2.0","id":` + id(t, s.read()) + `,"result":{}}`)
		if o := <-done; o.e != nil {
			t.Fatal(o.e)
		}
	}
}

// A server that leaves: the call that it had fails with its fate, and the next one was
// not sent.
func TestStdioLeaves(t *testing.T) {
	s := serve(t)
	done := s.begin(t.Context(), `{}`)
	s.read()
	s.leave()
	if o := <-done; o.e == nil || o.e.Kind != mcpclient.Failed || !o.e.Sent || !strings.Contains(o.e.Error(), "it left") {
		t.Errorf("%+v", o.e)
	}
	if o := <-s.begin(t.Context(), `{}`); o.e == nil || o.e.Kind != mcpclient.Unavailable || o.e.Sent {
		t.Errorf("%+v", o.e)
	}
}

// An invalid answer whose id can be read fails its call at once with what is wrong, and
// no other. What is no answer fails none.
func TestInvalidLines(t *testing.T) {
	for _, tt := range []struct{ name, line, reason string }{
		{"a member twice", `{"jsonrpc":"2.0","id":"1","result":{"content":[],"content":[]}}`, `duplicate key "content" at byte`},
		{"cut off", `{"jsonrpc":"2.0","id":"1","result":{"content":[`, "unexpected end"},
		{"invalid UTF-8 outside of strings", `{"jsonrpc":"2.0","id":"1","result":{"text":` + "\xff" + `}}`, "unexpected character at byte 43"},
		{"result and error", `{"jsonrpc":"2.0","id":"1","result":{},"error":{"code":1,"message":"m"}}`, "both a result and an error"},
		{"neither", `{"jsonrpc":"2.0","id":"1"}`, "neither a method nor a result nor an error"},
		{"batch", `[{"jsonrpc":"2.0","id":"1","result":{}}]`, "batches are not accepted"},
		{"id of another type", `{"jsonrpc":"2.0","id":1,"result":{}}`, `its id is the number 1`},
		{"not JSON", `listening`, ""},
		{"a log", `{"level":"info","user":{"id":"1"}}`, ""},
		{"no id", `{"jsonrpc":"2.0","result":{}}`, ""},
		{"another id", `{"jsonrpc":"2.0","id":"77","result":{}}`, ""},
		{"a request that is cut off", `{"jsonrpc":"2.0","id":"1","method":"roots/list","params":{`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t)
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			var calls sync.WaitGroup
			var faults [2]*mcpclient.Error
			for i := range faults {
				call := &mcpclient.Call{ID: s.NextID(), Method: "tools/call"}
				calls.Go(func() { _, faults[i] = s.Do(ctx, call) })
				s.read()
			}
			s.write(tt.line)
			if tt.reason == "" {
				s.write(`{"jsonrpc":"2.0","id":"1","result":{}}`)
			}
			s.write(`{"jsonrpc":"2.0","id":"2","result":{}}`)
			calls.Wait()
			if faults[1] != nil {
				t.Errorf("the other call: %v", faults[1])
			}
			switch {
			case tt.reason == "" && faults[0] != nil:
				t.Errorf("got %v, want a result", faults[0])
			case tt.reason != "" && (!errors.Is(faults[0], mcpclient.ErrMalformed) || !strings.Contains(faults[0].Error(), tt.reason)):
				t.Errorf("got %v, want %s", faults[0], tt.reason)
			}
		})
	}
}

// A line that is too large is dropped. The call that it answers fails, wherever the id is
// in the line; the connection and its other calls live.
func TestStdioLongLines(t *testing.T) {
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	for _, tt := range []struct {
		name, line string // ID is the id of the call
		fails      bool
		reply      string // what the server is sent
	}{
		{"id first", `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":` + large + `}]}}`, true, ""},
		{"id last", `{"result":{"id":"1","content":[` + large + `]},"jsonrpc":"2.0","id":ID}`, true, ""},
		{"an error", `{"error":{"code":1,"message":` + large + `},"jsonrpc":"2.0","id":ID}`, true, ""},
		{"no id", `{"jsonrpc":"2.0","result":{"id":ID,"a":` + large + `}}`, false, ""},
		{"another id", `{"jsonrpc":"2.0","id":"99","result":{"id":ID,"a":` + large + `}}`, false, ""},
		{"a notification", `{"jsonrpc":"2.0","method":"notifications/message","params":{"id":ID,"data":` + large + `}}`, false, ""},
		{"a request", `{"jsonrpc":"2.0","id":ID,"method":"sampling/createMessage","params":{"a":` + large + `}}`, false,
			`{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"the request is larger than 1 MiB"}}`},
		{"no JSON", strings.Repeat(large, 20), false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t)
			first := s.begin(t.Context(), `{}`)
			ids := []string{id(t, s.read())}
			second := s.begin(t.Context(), `{}`)
			ids = append(ids, id(t, s.read()))
			s.write(strings.ReplaceAll(tt.line, "ID", ids[0]))
			if tt.reply != "" {
				if got, want := s.read(), strings.ReplaceAll(tt.reply, "ID", ids[0]); got != want {
					t.Errorf("the server is sent %s, want %s", got, want)
				}
			}
			if tt.fails {
				if o := <-first; o.e == nil || o.e.Kind != mcpclient.TooLarge || !o.e.Sent || o.e.Error() != "too large: an answer of more than 1 MiB" {
					t.Errorf("the call: %s, %v", o.result, o.e)
				}
			} else {
				s.write(`{"jsonrpc":"2.0","id":` + ids[0] + `,"result":{}}`)
				if o := <-first; o.e != nil {
					t.Errorf("the call: %v", o.e)
				}
			}
			s.write(`{"jsonrpc":"2.0","id":` + ids[1] + `,"result":{}}`)
			if o := <-second; o.e != nil || s.Dead() {
				t.Errorf("the other call: %v", o.e)
			}
		})
	}
}

// Results that only a strict reader refuses are kept: lone surrogates and what is not UTF-8
// in strings become U+FFFD, and every other byte stays. What has two readings is refused at once, and the fault says
// where.
func TestStdioOddResults(t *testing.T) {
	deep := strings.Repeat("[", 900) + strings.Repeat("]", 900)
	for _, tt := range []struct{ name, result, want, fault string }{
		{"lone surrogate", `{"a":"x\ud83d","b":"\udc00\ud800 \ud83d\ude00"}`, `{"a":"x\ufffd","b":"\ufffd\ufffd \ud83d\ude00"}`, ""},
		{"lone surrogate in a name", `{"\ud83da":1e2 }`, `{"\ufffda":1e2 }`, ""},
		{"deep", `{"a":` + deep + `}`, `{"a":` + deep + `}`, ""},
		{"null metadata", `{"content":[],"_meta":null}`, `{"content":[],"_meta":null}`, ""},
		{"names that are one", `{"\ud83da":1,"\udc00a":2}`, "", `duplicate key "�a" at byte 39`},
		{"a name twice behind a lone surrogate", `{"x":"\ud800","content":1,"content":2}`, "", `duplicate key "content" at byte 52`},
		{"no value behind a lone surrogate", `{"x":"\ud800","content":}`, "", `unexpected character at byte 50`},
		{"no escape", `{"x":"\ud80"}`, "", "invalid escape in a string at byte 32"},
		{"a byte of Latin-1", "{\"x\":\"caf\xe9\", \"n\":1e2}", "{\"x\":\"caf\ufffd\", \"n\":1e2}", ""},
		{"a character cut off", "{\"x\":\"5 \xe2\x82\",\"y\":\"\\\"\xf0\x9f\x98\"}", "{\"x\":\"5 \ufffd\",\"y\":\"\\\"\ufffd\"}", ""},
		{"a surrogate in UTF-8, and an escaped one", "{\"x\":\"\xed\xa0\xbd \\ud83d\"}", "{\"x\":\"\ufffd \\ufffd\"}", ""},
		{"overlong", "{\"\xc0\xaf\":\"\xe0\x80\xa2\"}", "{\"\ufffd\":\"\ufffd\"}", ""},
		{"names that are one", "{\"\xff\":1,\"\xfe\":2}", "", `duplicate key "�" at byte 35`},
		{"invalid UTF-8 after a backslash", "{\"x\":\"\\\xff\"}", "", "invalid escape in a string at byte 32"},
		{"invalid UTF-8 outside of strings", "{\"x\":\xff}", "", "unexpected character at byte 31"},
		{"invalid UTF-8 in a string and outside", "{\"x\":\"\xff\",\xff}", "", "expected a member name at byte 37"},
		{"too deep", `{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, "", "nested deeper than 1000 levels at byte 1029 (/result/a/0/0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t)
			done := s.begin(t.Context(), `{}`)
			s.write(`{"jsonrpc":"2.0","result":` + tt.result + `,"id":` + id(t, s.read()) + `}`)
			o := <-done
			if tt.fault == "" && (o.e != nil || string(o.result) != tt.want) {
				t.Errorf("%.100s, %v, want %.100s", o.result, o.e, tt.want)
			}
			if tt.fault != "" && (o.e == nil || !errors.Is(o.e, mcpclient.ErrMalformed) || !strings.Contains(o.e.Error(), tt.fault)) {
				t.Errorf("%.100s, %.200v, want %s", o.result, o.e, tt.fault)
			}
		})
	}
}
