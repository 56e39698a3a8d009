package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/proxy/mcp"
)

// inEachRevision runs test with the lines of a client with a session and of one without.
func inEachRevision(t *testing.T, test func(t *testing.T, say func(id int, method, members string) string)) {
	t.Run("session", func(t *testing.T) {
		test(t, func(id int, method, members string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, id, method, members)
		})
	})
	t.Run("stateless", func(t *testing.T) {
		test(t, func(id int, method, members string) string { return modernLine(fmt.Sprint(id), method, members) })
	})
}

const (
	waitTool = `"name":"demo__wait","arguments":{}`
	echoTool = `"name":"demo__echo","arguments":{}`
)

// sizedCall is a call of 3 KB.
func sizedCall(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"demo__echo","arguments":{"x":"%s"}}}`, id, strings.Repeat("x", 3000))
}

// oneAtATime makes requests wait for one that runs, with room for one call of 3 KB.
func oneAtATime(o *mcp.Options) { o.MaxFlights, o.Limits.Bytes = 1, 4096 }

// mixed returns n requests: calls, lists and pings, in a session and without.
func mixed(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		id := fmt.Sprint(i + 1)
		lines[i] = []string{
			`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"demo__slow","arguments":{}}}`,
			`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/list"}`,
			`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`,
			modernLine(id, "tools/call", `"name":"demo__slow","arguments":{}`),
			modernLine(id, "tools/list", ""),
		}[i%5]
	}
	return lines
}

// However many requests a client pipes, each gets its result: when the client reads
// meanwhile and when it first writes them all, and while no call ends.
func TestStdioPiped(t *testing.T) {
	for _, n := range []int{1000, 5000} {
		for name, readsLast := range map[string]bool{"reads meanwhile": false, "reads last": true} {
			t.Run(fmt.Sprint(n, " ", name), func(t *testing.T) {
				g, release := newGate(), make(chan struct{})
				g.behave["slow"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
					<-release
					return echo(ctx, g, in, args)
				}
				c := dial(t, newDoor(t, g, nil)).open()
				written := make(chan struct{})
				go func() {
					defer close(written)
					for _, line := range mixed(n) {
						c.Send(line)
					}
					close(release)
				}()
				if readsLast {
					<-written
				}
				checkAnswered(t, n, c.Receive)
				<-written
				if all := g.refusals(); len(all) > 0 {
					t.Errorf("refused: %s", all)
				}
			})
		}
	}
}

// checkAnswered checks that each of n requests has one result.
func checkAnswered(t *testing.T, n int, receive func() string) {
	t.Helper()
	answered := make([]bool, n+1)
	for range n {
		var m struct {
			ID     int
			Result json.RawMessage
		}
		line := receive()
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Result == nil || m.ID < 1 || m.ID > n || answered[m.ID] {
			t.Fatalf("answer %.300s (%v)", line, err)
		}
		answered[m.ID] = true
	}
}

// A request that waits and is cancelled never reaches the gate, and like one that runs
// it gets no answer.
func TestStdioQueueCancels(t *testing.T) {
	inEachRevision(t, func(t *testing.T, say func(int, string, string) string) {
		g := newGate()
		c := dial(t, newDoor(t, g, oneAtATime)).open()
		c.Send(say(1, "tools/call", waitTool))
		<-g.started
		for id := 2; id <= 4; id++ {
			c.Send(say(id, "tools/call", echoTool))
		}
		c.Send(cancelLine(`3`))
		c.Send(cancelLine(`1`))
		got := []string{c.Receive(), c.Receive()}
		if !strings.Contains(got[0], `"id":2,"result"`) || !strings.Contains(got[1], `"id":4,"result"`) {
			t.Errorf("got %s", got)
		}
		if rest, err := c.End(); rest != "" || err != nil {
			t.Errorf("then %q, %v", rest, err)
		}
		if n := g.calls(); n != 3 {
			t.Errorf("%d calls reached the gate, want 1, 2 and 4", n)
		}
		if diff := g.refusals(); !slices.Equal(diff, []string{"T4_CALL_CANCELLED tools/call"}) {
			t.Errorf("records %q", diff)
		}
	})
}

// The id of a request that runs or waits names no other, and is free after its answer.
func TestStdioQueueDuplicates(t *testing.T) {
	inEachRevision(t, func(t *testing.T, say func(int, string, string) string) {
		g := newGate()
		c := dial(t, newDoor(t, g, oneAtATime)).open()
		c.Send(say(1, "tools/call", waitTool))
		<-g.started
		c.Send(say(2, "tools/call", echoTool))
		for id := 1; id <= 2; id++ {
			if got := refusalOf(t, c.Ask(say(id, "tools/list", "")), g); got.Code != "INVALID_ENVELOPE" || got.ID != fmt.Sprint(id) {
				t.Errorf("got %+v", got)
			}
		}
		close(g.release)
		for id := 1; id <= 2; id++ {
			if got := c.Receive(); !strings.Contains(got, fmt.Sprintf(`"id":%d,"result"`, id)) {
				t.Errorf("got %s", got)
			}
		}
		for id := 1; id <= 2; id++ {
			if got := c.Ask(say(id, "tools/list", "")); !strings.Contains(got, `"tools":`) {
				t.Errorf("the id again: %s", got)
			}
		}
	})
}

// While calls wait for one that waits for the client, pings are answered and the client's
// answer arrives.
func TestStdioQueueAnswers(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, oneAtATime)).open()
	if got := c.Ask(talkCall(`{"ask":[{"method":"roots/list"}]}`)); !strings.Contains(got, `"id":"ask_1"`) {
		t.Fatalf("asked: %s", got)
	}
	c.Send(strings.Replace(echoCall, `"id":1`, `"id":2`, 1))
	if got := c.Ask(`{"jsonrpc":"2.0","id":3,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":3,"result":{}}` {
		t.Errorf("got %s", got)
	}
	got := []string{c.Ask(answer(1, "roots")), c.Receive()}
	if !strings.Contains(got[0], `"result 0":{"said":"roots"}`) || !strings.Contains(got[1], `"id":2,"result"`) {
		t.Errorf("got %s", got)
	}
}

// What waits has at most the bytes of the largest message. Then no line is read, and
// nothing is refused.
func TestStdioQueueBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		c := dial(t, newDoor(t, g, oneAtATime)).open()
		c.Send(waitCall)
		<-g.started
		var sent atomic.Int64
		go func() {
			for id := 2; id <= 9; id++ {
				c.Send(sizedCall(id))
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n > 4 { // one waits, one has no room, and the reader has a buffer
			t.Errorf("%d calls of 3 KB were read", n)
		}
		close(g.release)
		checkAnswered(t, 9, c.Receive)
	})
}

// While a question to the client is open its answer may be in the next line, so lines
// are read, and a request that has no room is refused.
func TestStdioQueueBoundAndAsked(t *testing.T) {
	for name, askedLast := range map[string]bool{"asked before": false, "asked while the reader waits": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, ask := newGate(), make(chan struct{})
				g.behave["talk"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
					<-ask
					return talk(ctx, g, in, args)
				}
				c := dial(t, newDoor(t, g, oneAtATime)).open()
				c.Send(talkCall(`{"ask":[{"method":"roots/list"}]}`))
				if !askedLast {
					close(ask)
					c.Receive()
				}
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					c.Send(sizedCall(2))
					c.Send(sizedCall(3))
				}()
				if askedLast {
					synctest.Wait()
					close(ask)
					c.Receive()
				}
				if got := refusalOf(t, c.Receive(), g); got.Code != "OVERLOADED" || got.ID != "3" {
					t.Errorf("got %+v", got)
				}
				<-sent
				got := []string{c.Ask(answer(1, "roots")), c.Receive()}
				if !strings.Contains(got[0], `"result 0":{"said":"roots"}`) || !strings.Contains(got[1], `"id":2,"result"`) {
					t.Errorf("got %.200s", got)
				}
				if got := c.Ask(sizedCall(3)); !strings.Contains(got, `"id":3,"result"`) {
					t.Errorf("the refused id again: %.200s", got)
				}
			})
		})
	}
}

// The messages of a batch wait like others, and their answers are one array.
func TestStdioQueueBatch(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, oneAtATime))
	c.Ask(helloAs("2025-03-26"))
	c.Send(strings.Replace(waitCall, `"id":1`, `"id":9`, 1))
	<-g.started
	c.Send(`[` + echoCall + `,` + strings.Replace(echoCall, `"id":1`, `"id":2`, 1) + `]`)
	if n := g.calls(); n != 1 {
		t.Errorf("%d calls reached the gate", n)
	}
	close(g.release)
	if got := c.Receive(); !strings.Contains(got, `"id":9,"result"`) {
		t.Errorf("got %s", got)
	}
	if got := members(t, c.Receive()); len(got) != 2 {
		t.Errorf("got %s", got)
	}
}

// At the end of input the requests that wait are answered too, each in the time that one
// has to end. When the context ends they have that time together, and the gate is not
// asked about what is left; that is answered too.
func TestStdioQueueEnd(t *testing.T) {
	for name, stops := range map[string]bool{"input": false, "context": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate()
				g.behave["slow"] = func(ctx context.Context, g *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
					select {
					case <-time.After(8 * time.Second): // of the bubble's clock
					case <-ctx.Done():
					}
					return echo(ctx, g, in, args)
				}
				d := newDoor(t, g, func(o *mcp.Options) { o.MaxFlights, o.Drain = 1, 10*time.Second })
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				in, far := io.Pipe()
				var out strings.Builder
				ended := make(chan error, 1)
				go func() { ended <- d.Serve(ctx, in, &out) }()
				for id := 1; id <= 5; id++ {
					_, _ = io.WriteString(far, modernLine(fmt.Sprint(id), "tools/call", `"name":"demo__slow","arguments":{}`)+"\n")
				}
				synctest.Wait()
				if stops {
					stop()
				} else {
					_ = far.Close()
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				begun := 5
				if stops {
					begun = 2
				}
				lines := strings.SplitAfter(out.String(), "\n")
				checkAnswered(t, begun, func() (line string) { line, lines = lines[0], lines[1:]; return line })
				if n := strings.Count(out.String(), `"code":"UPSTREAM_UNAVAILABLE"`); n != 5-begun {
					t.Errorf("%d requests that waited may be made again, want %d: %q", n, 5-begun, out.String())
				}
				if len(lines) != 1+5-begun || g.calls() != begun {
					t.Errorf("then %q, and %d calls reached the gate", lines, g.calls())
				}
			})
		})
	}
}

// When nobody reads the answers, no request that waits reaches the gate.
func TestStdioQueueBroken(t *testing.T) {
	inEachRevision(t, func(t *testing.T, say func(int, string, string) string) {
		g := newGate()
		d := newDoor(t, g, oneAtATime)
		inR, inW, outR, outW := pipes()
		ended := make(chan error, 1)
		go func() { ended <- d.Serve(t.Context(), inR, outW) }()
		send := func(line string) { _, _ = io.WriteString(inW, line+"\n") }
		send(initialize)
		_, _ = outR.Read(make([]byte, 4096))
		send(say(1, "tools/call", waitTool))
		<-g.started
		send(say(2, "tools/call", echoTool))
		_ = outR.Close()
		send(ping)
		if err := <-ended; err == nil {
			t.Error("no error of writing")
		}
		if n := g.calls(); n != 1 {
			t.Errorf("%d calls reached the gate", n)
		}
	})
}
