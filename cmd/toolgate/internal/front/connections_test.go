package front

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/plainhttp"
)

// pipes is a listener whose connections are made by the test.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A connection may wait with its first request as long as between two, and has
// ten seconds for the head once it began.
func TestFirstRequest(t *testing.T) {
	for _, tc := range []struct {
		name     string
		wait     time.Duration // before the first byte
		pause    time.Duration // after it
		answered bool
	}{
		{"at once", 0, 0, true},
		{"after a minute", time.Minute, 0, true},
		{"after a minute, slowly", time.Minute, 9 * time.Second, true},
		{"never", 121 * time.Second, 0, false},
		{"head too slow", 0, 11 * time.Second, false},
		{"head too slow after a minute", time.Minute, 11 * time.Second, false},
	} {
		eachServer(t, tc.name, func(t *testing.T, newServer func(http.Handler) server) {
			synctest.Test(t, func(t *testing.T) {
				l := make(pipes)
				srv := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
				go func() { _ = srv.Serve(newListener(l, 10, func() {})) }() // ends with srv
				client, server := net.Pipe()
				l <- server
				time.Sleep(tc.wait)
				_, err := io.WriteString(client, "GET / HTTP/1.1\r\n")
				if err == nil {
					time.Sleep(tc.pause)
					_, err = io.WriteString(client, "Host: x\r\n\r\n")
				}
				var res *http.Response
				if err == nil {
					res, err = http.ReadResponse(bufio.NewReader(client), nil)
				}
				if answered := err == nil && res.StatusCode == http.StatusNoContent; answered != tc.answered {
					t.Errorf("answered: %v, error %v", answered, err)
				}
				client.Close()
				srv.Close()
			})
		})
	}
}

// A body has 30 seconds for its next byte and 60 in all, on every path: also where the
// handler refuses the request without reading it. Afterwards a call may take as long as
// it takes, and its client's leaving is still noticed.
func TestSlowBody(t *testing.T) {
	type step struct {
		after time.Duration
		bytes int
	}
	for _, tc := range []struct {
		name   string
		read   bool // by the handler
		work   time.Duration
		steps  []step // of a body of 4 bytes
		closed time.Duration
	}{
		{"at once", true, 0, []step{{0, 4}}, 0},
		{"in two parts", true, 0, []step{{0, 2}, {29 * time.Second, 2}}, 0},
		{"slowly", true, 0, []step{{19 * time.Second, 1}, {19 * time.Second, 2}, {19 * time.Second, 1}}, 0},
		{"never", true, 0, nil, 30 * time.Second},
		{"one byte", true, 0, []step{{0, 1}}, 30 * time.Second},
		{"a byte now and then", true, 0, []step{{25 * time.Second, 1}, {25 * time.Second, 1}}, 60 * time.Second},
		{"refused, never", false, 0, nil, 30 * time.Second},
		{"refused, one byte", false, 0, []step{{0, 1}}, 30 * time.Second},
		{"a long call", true, 10 * time.Minute, []step{{0, 4}}, 0},
	} {
		eachServer(t, tc.name, func(t *testing.T, newServer func(http.Handler) server) {
			synctest.Test(t, func(t *testing.T) {
				l := make(pipes)
				cancelled := false
				var handlers sync.WaitGroup
				srv := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					handlers.Add(1)
					defer handlers.Done()
					if tc.read {
						if _, err := io.ReadAll(r.Body); err != nil {
							w.WriteHeader(http.StatusBadRequest)
							return
						}
					}
					time.Sleep(tc.work)
					cancelled = r.Context().Err() != nil
					w.WriteHeader(http.StatusNoContent)
				}))
				go func() { _ = srv.Serve(newListener(l, 10, func() {})) }() // ends with srv
				client, server := net.Pipe()
				l <- server
				begun := time.Now()
				if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				go func() {
					for _, s := range tc.steps {
						time.Sleep(s.after)
						_, _ = io.WriteString(client, "four"[:s.bytes])
					}
				}()
				in := bufio.NewReader(client)
				res, err := http.ReadResponse(in, nil)
				if tc.closed == 0 {
					if err != nil || res.StatusCode != http.StatusNoContent || cancelled {
						t.Errorf("%v, error %v, cancelled %v", res, err, cancelled)
					}
					if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
						t.Errorf("the next request: %v", err)
					}
				} else if _, err := in.ReadByte(); !errors.Is(err, io.EOF) || time.Since(begun) > tc.closed+time.Second {
					t.Errorf("after %s: %v, want the connection closed after %s", time.Since(begun), err, tc.closed)
				}
				client.Close()
				srv.Close()
				synctest.Wait()
				handlers.Wait() // of the next request
				synctest.Wait()
			})
		})
	}
}

// Beyond its share a listener closes connections whose request has not arrived: the
// oldest of the address that has the most of them. One that is being served stays.
func TestConnectionShares(t *testing.T) {
	drops := 0
	l := newListener(nil, 3, func() { drops++ })
	at := func(address string, serving bool) *connection {
		c := &connection{Conn: pipeEnd(t), of: l, from: netip.MustParseAddr(address)}
		c.serving.Store(serving)
		return c
	}
	patient, greedy := at("192.0.2.1", false), at("192.0.2.2", false)
	for _, c := range []*connection{patient, greedy, at("192.0.2.2", false)} {
		if victim := l.add(c); victim != nil {
			t.Fatal("a connection was closed while there was room")
		}
	}
	if victim := l.add(at("192.0.2.3", true)); victim != greedy {
		t.Error("not the oldest of the address with the most was closed")
	} else {
		victim.Close()
	}
	for c := range l.open {
		c.serving.Store(true)
	}
	last := at("192.0.2.1", false)
	if victim := l.add(last); victim != last {
		t.Error("a connection that is served was closed")
	}
	l = newListener(nil, 2, func() {})
	answered, silent := at("192.0.2.1", false), at("192.0.2.1", false)
	answered.answered.Store(1)
	l.add(answered)
	l.add(silent)
	if victim := l.add(at("192.0.2.1", false)); victim != silent {
		t.Error("a connection that has had an answer was closed before one that never had")
	}
	if agents, people, _ := Shares(1024); agents+people > 1024-leastFiles {
		t.Errorf("%d and %d connections leave too few files", agents, people)
	}
}

// A connection that a client dialled ahead and never used does not delay the end, and
// one whose request never arrives does not make the end an error.
func TestHangUp(t *testing.T) {
	for _, tc := range []struct {
		name, sent string
		cut        bool
	}{
		{"nothing sent", "", false},
		{"half a head", "GET / HT", true},
	} {
		eachServer(t, tc.name, func(t *testing.T, newServer func(http.Handler) server) {
			synctest.Test(t, func(t *testing.T) {
				in := make(pipes)
				var said bytes.Buffer
				served := &Server{listener: newListener(in, 10, func() {}), http: newServer(http.NotFoundHandler()), ended: make(chan struct{}), log: hclog.New(&hclog.LoggerOptions{Output: &said})}
				served.secured = served.listener
				go func() { _ = served.Serve() }() // ends with HangUp
				client, server := net.Pipe()
				in <- server
				if _, err := io.WriteString(client, tc.sent); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				served.HangUp()
				if cut := strings.Contains(said.String(), "connections were cut"); cut != tc.cut {
					t.Errorf("cut: %v, log: %s", cut, &said)
				}
				if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("the connection is open: %v", err)
				}
			})
		})
	}
}

// eachServer runs a test with net/http's server, which TLS has, and with plainhttp's.
func eachServer(t *testing.T, name string, test func(t *testing.T, newServer func(http.Handler) server)) {
	for kind, make := range map[string]func(http.Handler) server{
		"net/http":  func(h http.Handler) server { return newServer(h) },
		"plainhttp": func(h http.Handler) server { return &plainhttp.Server{HTTP: newServer(h)} },
	} {
		t.Run(name+", "+kind, func(t *testing.T) { test(t, make) })
	}
}

// pipeEnd returns a connection that nobody uses.
func pipeEnd(t *testing.T) net.Conn {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return a
}

// Parts that a handler hands over whole arrive in order, and the connection stays.
func TestPartsOfAnAnswer(t *testing.T) {
	eachServer(t, "parts", testPartsOfAnAnswer)
}

func testPartsOfAnAnswer(t *testing.T, newServer func(http.Handler) server) {
	parts := [][]byte{[]byte("head,"), bytes.Repeat([]byte("x"), 300_000), []byte(",end")}
	whole := string(bytes.Join(parts, nil))
	srv := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
		rest := net.Buffers(slices.Clone(parts))
		if _, err := w.(io.ReaderFrom).ReadFrom(&rest); err != nil {
			t.Error(err)
		}
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(newListener(l, 10, func() {})) })
	defer serving.Wait()
	defer srv.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	for range 2 {
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(res.Body); err != nil || string(got) != whole {
			t.Errorf("%d bytes of %d: %v", len(got), len(whole), err)
		}
	}
}
