package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/proxy/bridge"
)

// slots is how many requests of one client are sent side by side.
const slots = 256

// A switchboard is a listener whose connections are pipes in the test's bubble.
type switchboard struct {
	calls chan net.Conn
	done  chan struct{}
}

func (s *switchboard) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case s.calls <- far:
		return near, nil
	case <-s.done:
	case <-ctx.Done():
	}
	return nil, errors.New("nobody accepts")
}

func (s *switchboard) Accept() (net.Conn, error) {
	select {
	case c := <-s.calls:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *switchboard) Close() error   { close(s.done); return nil }
func (s *switchboard) Addr() net.Addr { return &net.IPAddr{} }

// bubble connects a client, by a bridge, with an endpoint as misbehave makes it, all in
// the bubble of t. Calls of the tool "x" end when release is called.
func bubble(t *testing.T, special map[string]handler, change func(*bridge.Options)) (c *client, e *endpoint, release func()) {
	released := make(chan struct{})
	all := map[string]handler{"tools/call": func(w http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-released:
			answerJSON(w, json.RawMessage(r.Header.Get("Id")), `{}`)
		case <-r.Context().Done():
		}
	}}
	maps.Copy(all, special)
	e = newEndpoint(t, all)
	lines := &switchboard{calls: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: withID(e.handle)}
	go func() { _ = srv.Serve(lines) }()
	t.Cleanup(func() { _ = srv.Close() })
	c = connect(t, "http://bubble.example", change)
	c.bridge.DialWith(lines.dial)
	return c, e, func() { close(released) }
}

// withID puts the id of the message into the header Id.
func withID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, _ := jsonrpc.Get(body, "id")
		r.Header.Set("Id", string(id))
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		next.ServeHTTP(w, r)
	})
}

// fill makes all slots busy with calls, from the id 1 on.
func (c *client) fill(members string) {
	for id := 1; id <= slots; id++ {
		c.Send(request(id, "tools/call", `"name":"x"`+members))
	}
	synctest.Wait()
}

func request(id int, method, members string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, id, method, members)
}

func cancel(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)
}

// large is a request of 3 MB, of which one may wait.
func large(id int) string {
	return request(id, "tools/list", `"x":"`+strings.Repeat("x", 3<<20)+`"`)
}

// checkAnswered checks that the requests first to last have one result each.
func checkAnswered(t testing.TB, first, last int, receive func() string) {
	t.Helper()
	answered := make(map[int]bool)
	for range last - first + 1 {
		var m struct {
			ID     int
			Result json.RawMessage
		}
		line := receive()
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Result == nil || m.ID < first || m.ID > last || answered[m.ID] {
			t.Fatalf("answer %.300s (%v)", line, err)
		}
		answered[m.ID] = true
	}
}

// However many requests a client pipes, each gets its result: when the client reads
// meanwhile and when it first writes them all, and while no request ends.
func TestPiped(t *testing.T) {
	parts.Long(t, "makes 12,000 calls")
	for _, n := range []int{1000, 5000} {
		for name, readsLast := range map[string]bool{"reads meanwhile": false, "reads last": true} {
			t.Run(fmt.Sprint(n, " ", name), func(t *testing.T) {
				release := make(chan struct{})
				srv := httptest.NewServer(withID(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					<-release
					answerJSON(w, json.RawMessage(r.Header.Get("Id")), `{}`)
				})))
				defer srv.Close()
				c := connect(t, srv.URL, nil)
				written := make(chan struct{})
				go func() {
					defer close(written)
					for id := 1; id <= n; id++ {
						c.Send(request(id, []string{"tools/call", "tools/list", "ping"}[id%3], `"name":"x"`+[]string{"", "," + modernMeta}[id%2]))
					}
					close(release)
				}()
				if readsLast {
					<-written
				}
				checkAnswered(t, 1, n, c.Receive)
				<-written
			})
		}
	}
}

// A request that waits and is cancelled is never sent, nor is its cancellation, and like
// one that was sent it gets no answer. Its id is free.
func TestQueueCancels(t *testing.T) {
	for name, members := range map[string]string{"session": "", "stateless": "," + modernMeta} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e, release := bubble(t, nil, nil)
				c.open()
				c.fill(members)
				list := func(id int) string { return request(id, "tools/list", `"x":"`+fmt.Sprint(id)+`"`+members) }
				c.Send(list(301))
				c.Send(list(302))
				c.Send(cancel(302))
				c.Send(list(303))
				c.Send(cancel(303))
				c.Send(list(303))
				synctest.Wait()
				if n := e.count(http.MethodPost, "notifications/cancelled"); n > 0 {
					t.Errorf("%d cancellations were sent", n)
				}
				release()
				var got strings.Builder
				for range slots + 2 {
					got.WriteString(c.Receive() + "\n")
				}
				if rest, err := c.End(); rest != "" || err != nil {
					t.Errorf("then %q, %v", rest, err)
				}
				if n := e.count(http.MethodPost, "tools/list"); n != 2 || strings.Contains(got.String(), `"id":302`) || !strings.Contains(got.String(), `"id":303,"result"`) {
					t.Errorf("%d lists were sent, the client got %.300s", n, got.String())
				}
			})
		})
	}
}

// The cancellation of a request that was sent goes out while others wait.
func TestQueueCancelsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e, release := bubble(t, nil, nil)
		c.open()
		c.fill("")
		c.Send(request(301, "tools/list", ""))
		began := time.Now()
		c.Send(cancel(7))
		e.await(http.MethodPost, "notifications/cancelled")
		if late := time.Since(began); late > 0 {
			t.Errorf("it came after %v", late)
		}
		release()
		rest, err := c.End()
		if n := strings.Count(rest, `"result"`); n != slots+1 || err != nil { // the endpoint answered the cancelled one too
			t.Errorf("%d answers, %v", n, err)
		}
	})
}

// The id of a request that was sent or waits names no other.
func TestQueueDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, release := bubble(t, nil, nil)
		c.fill("")
		c.fails(request(1, "tools/list", ""), "1", "INVALID_ENVELOPE")
		c.Send(request(301, "tools/list", ""))
		c.fails(request(301, "tools/list", ""), "301", "INVALID_ENVELOPE")
		release()
		for range slots + 1 {
			c.Receive()
		}
		if got := c.Ask(request(301, "tools/list", "")); !strings.Contains(got, `"id":301,"result"`) {
			t.Errorf("again: %s", got)
		}
	})
}

// asksRoots is a call that ends when the client has answered a question.
func asksRoots(answered <-chan struct{}) handler {
	return func(w http.ResponseWriter, r *http.Request, _ int) {
		begin(w, "data: "+`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`+"\n\n")
		<-answered
		begin(w, `data: {"jsonrpc":"2.0","id":`+r.Header.Get("Id")+`,"result":{}}`+"\n\n")
	}
}

const rootsAnswer = `{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`

// While requests wait for some that wait for the client, pings are answered and the
// client's answer arrives. No message waits for what was not sent.
func TestQueueAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered := make(chan struct{})
		c, _, release := bubble(t, map[string]handler{
			"prompts/get": asksRoots(answered),
			"": func(w http.ResponseWriter, _ *http.Request, _ int) {
				close(answered)
				w.WriteHeader(http.StatusAccepted)
			},
		}, nil)
		if got := c.Ask(request(300, "prompts/get", "")); !strings.Contains(got, `"id":"q"`) {
			t.Fatalf("asked: %s", got)
		}
		c.fill("")
		began := time.Now()
		c.Send(note(1))
		if got := c.Ask(request(301, "ping", "")); !strings.Contains(got, `"id":301,"result"`) {
			t.Errorf("ping: %s", got)
		}
		if got := c.Ask(rootsAnswer); !strings.Contains(got, `"id":300,"result"`) {
			t.Errorf("answered: %s", got)
		}
		if late := time.Since(began); late > 0 {
			t.Errorf("it took %v", late)
		}
		release()
		for range slots {
			c.Receive()
		}
	})
}

// Requests that wait have at most the bytes of the largest message. So have the lines that
// are read then, and after them none is read. Nothing is refused.
func TestQueueBound(t *testing.T) {
	parts.Long(t, "fills a queue")
	synctest.Test(t, func(t *testing.T) {
		c, _, release := bubble(t, nil, nil)
		c.fill("")
		var sent atomic.Int64
		go func() {
			for id := slots + 1; id <= slots+8; id++ {
				c.Send(large(id))
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n > 4 { // one waits, one has no room, one line waits, one has no room
			t.Errorf("%d requests of 3 MB were read", n)
		}
		release()
		checkAnswered(t, 1, slots+8, c.Receive)
	})
}

// While a question to the client is open its answer may be in the next line, so lines
// are read, and a request that has no room is refused.
func TestQueueBoundAndAsked(t *testing.T) {
	for name, askedLast := range map[string]bool{"asked before": false, "asked while the reader waits": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answered, ask := make(chan struct{}), make(chan struct{})
				c, e, release := bubble(t, map[string]handler{
					"prompts/get": func(w http.ResponseWriter, r *http.Request, n int) {
						<-ask
						asksRoots(answered)(w, r, n)
					},
					"": func(w http.ResponseWriter, _ *http.Request, _ int) {
						close(answered)
						w.WriteHeader(http.StatusAccepted)
					},
				}, nil)
				c.Send(request(300, "prompts/get", ""))
				e.await(http.MethodPost, "prompts/get")
				question := func() {
					close(ask)
					if got := c.Receive(); !strings.Contains(got, `"id":"q"`) {
						t.Fatalf("asked: %s", got)
					}
				}
				if !askedLast {
					question()
				}
				c.fill("")
				c.Send(large(301))
				c.Send(large(302))
				if askedLast {
					synctest.Wait()
					question()
				}
				c.failed(c.Receive(), "302", "OVERLOADED")
				if got := c.Ask(rootsAnswer); !strings.Contains(got, `"id":300,"result"`) {
					t.Errorf("answered: %s", got)
				}
				release()
				for range slots + 1 {
					c.Receive()
				}
			})
		})
	}
}

// A question that its server has withdrawn is not open, and requests wait.
func TestQueueBoundAndAskedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		withdrawn := make(chan struct{})
		c, _, release := bubble(t, map[string]handler{"prompts/get": func(w http.ResponseWriter, r *http.Request, _ int) {
			begin(w, `data: {"jsonrpc":"2.0","id":"q","method":"roots/list"}`+"\n\n", `data: {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}`+"\n\n")
			<-withdrawn
			begin(w, `data: {"jsonrpc":"2.0","id":`+r.Header.Get("Id")+`,"result":{}}`+"\n\n")
		}}, nil)
		c.Send(request(300, "prompts/get", ""))
		c.Receive()
		c.Receive()
		c.fill("")
		c.Send(large(301))
		c.Send(large(302))
		synctest.Wait()
		close(withdrawn)
		release()
		for range slots + 3 {
			if got := c.Receive(); !strings.Contains(got, `"result"`) {
				t.Errorf("got %.200s", got)
			}
		}
	})
}

// At the end of input the requests that wait are answered too, each in the time that one
// has to end. What is left then was never sent.
func TestQueueEnd(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		want  string
		sent  int
	}{
		"in time": {8 * time.Second, `"result"`, 3 * slots},
		"late":    {11 * time.Second, "TOOL_FAILED", slots},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e, _ := bubble(t, map[string]handler{"prompts/get": func(w http.ResponseWriter, r *http.Request, _ int) {
					select {
					case <-time.After(test.takes):
						answerJSON(w, json.RawMessage(r.Header.Get("Id")), `{}`)
					case <-r.Context().Done():
					}
				}}, func(o *bridge.Options) { o.Drain = 10 * time.Second })
				c.open()
				for id := 1; id <= 3*slots; id++ {
					c.Send(request(id, "prompts/get", ""))
				}
				rest, err := c.End()
				if err != nil || strings.Count(rest, "\n") != 3*slots || strings.Count(rest, test.want) != test.sent {
					t.Errorf("%v, %d answers, %d with %s: %.300s", err, strings.Count(rest, "\n"), strings.Count(rest, test.want), test.want, rest)
				}
				if n := strings.Count(rest, `"reason":"the bridge closed before the request was sent"`); n != 3*slots-test.sent {
					t.Errorf("%d requests were never sent, by the answers", n)
				}
				if n := e.count(http.MethodPost, "prompts/get"); n != test.sent {
					t.Errorf("%d requests were sent", n)
				}
				if n := e.count(http.MethodPost, "notifications/cancelled"); n != strings.Count(rest, "TOOL_FAILED") {
					t.Errorf("%d cancellations were sent", n)
				}
			})
		})
	}
}
