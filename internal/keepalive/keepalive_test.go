package keepalive_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/keepalive"
	"github.com/toolgate/toolgate/internal/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting serves handler and counts its connections.
func counting(t *testing.T, handler http.HandlerFunc) (url string, conns *atomic.Int64, server *httptest.Server) {
	t.Helper()
	conns = new(atomic.Int64)
	server = httptest.NewUnstartedServer(handler)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, conns, server
}

func newTransport(t *testing.T, settings *http.Transport) *keepalive.Transport {
	t.Helper()
	if settings == nil {
		settings = &http.Transport{}
	}
	tr := keepalive.New(settings)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// post sends text and returns status and body.
func post(ctx context.Context, tr http.RoundTripper, url, text string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(text))
	if err != nil {
		return 0, "", err
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	return res.StatusCode, string(out), err
}

// echo answers with the body, once it has read all: a server that answers
// earlier closes the connection.
func echo(w http.ResponseWriter, r *http.Request) {
	data, _ := io.ReadAll(r.Body)
	_, _ = w.Write(data)
}

// TestSequence: requests one after the other share a connection, whatever the
// form of their responses.
func TestSequence(t *testing.T) {
	url, conns, _ := counting(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/chunked":
			for range 3 {
				_, _ = io.WriteString(w, "part ")
				_ = http.NewResponseController(w).Flush()
			}
		case "/empty":
			w.WriteHeader(http.StatusAccepted)
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "hinted")
		default:
			echo(w, r)
		}
	})
	tr := newTransport(t, nil)
	large := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		path, send string
		status     int
		want       string
	}{
		{"/", "one", 200, "one"}, {"/chunked", "", 200, "part part part "}, {"/empty", "x", 202, ""}, {"/none", "", 204, ""},
		{"/hints", "", 200, "hinted"}, {"/", large, 200, large}, {"/", "last", 200, "last"},
	} {
		status, got, err := post(t.Context(), tr, url+test.path, test.send)
		if err != nil || status != test.status || got != test.want {
			t.Errorf("%s: %d, %d bytes, %v", test.path, status, len(got), err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// TestCrowd: requests side by side get their own answers.
func TestCrowd(t *testing.T) {
	url, conns, _ := counting(t, echo)
	tr := newTransport(t, &http.Transport{MaxIdleConnsPerHost: 64})
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for n := range 50 {
				text := fmt.Sprintf("%d-%d", worker, n)
				if _, got, err := post(t.Context(), tr, url, text); err != nil || got != text {
					t.Errorf("sent %q, got %q, %v", text, got, err)
				}
			}
		})
	}
	all.Wait()
	if n := conns.Load(); n > 32 {
		t.Errorf("%d connections for 16 workers", n)
	}
}

// TestClosedByServer: a connection that the server closed while it was idle is
// not used, so no request is lost to it.
func TestClosedByServer(t *testing.T) {
	url, conns, server := counting(t, echo)
	tr := newTransport(t, nil)
	for range 5 {
		if _, got, err := post(t.Context(), tr, url, "hello"); err != nil || got != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
		server.CloseClientConnections()
	}
	if n := conns.Load(); n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}

// TestUnaskedBytes: a connection on which the server sent something of its own
// accord is not used again.
func TestUnaskedBytes(t *testing.T) {
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	url, sent := scripted(t, answer+"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
	tr := newTransport(t, nil)
	for range 3 {
		if _, got, err := post(t.Context(), tr, url, "x"); err != nil || got != "ok" {
			t.Fatalf("%q, %v", got, err)
		}
		<-sent
	}
}

// scripted serves every request with answer, byte for byte, and tells when it
// has written it.
func scripted(t *testing.T, answer string) (url string, sent <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 16)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = io.WriteString(c, answer)
					told <- struct{}{}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	t.Cleanup(func() { _ = l.Close(); work.Wait() })
	return "http://" + l.Addr().String(), told
}

// TestBrokenResponses: what is no response, ends early or has too large a header
// is an error, and nothing is sent twice.
func TestBrokenResponses(t *testing.T) {
	for name, answer := range map[string]string{
		"no http":        "hello\r\n\r\n",
		"early end":      "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nfive",
		"large header":   "HTTP/1.1 200 OK\r\nX-Fill: " + strings.Repeat("x", 70<<10) + "\r\n\r\n",
		"two lengths":    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"broken chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
		"endless header": "HTTP/1.1 200 OK\r\nA: b",
	} {
		t.Run(name, func(t *testing.T) {
			url, sent := scripted(t, answer)
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			if name == "early end" || name == "endless header" {
				go func() { <-sent; stop() }() // the server keeps the connection open
			}
			if _, got, err := post(ctx, newTransport(t, nil), url, "x"); err == nil {
				t.Errorf("got %q without an error", got)
			}
			if len(sent) > 1 {
				t.Error("the request was sent twice")
			}
		})
	}
}

// TestCancel: the end of the context ends the request while it waits for the
// head of the response and while its body is read, with the cause as the error.
func TestCancel(t *testing.T) {
	begun := make(chan struct{}, 2)
	url, conns, _ := counting(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server watches the connection from then on
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(w, "begin")
			_ = http.NewResponseController(w).Flush()
		}
		begun <- struct{}{}
		<-r.Context().Done() // the client has hung up
	})
	tr := newTransport(t, nil)
	reason := errors.New("no longer needed")
	for n, path := range []string{"/head", "/body"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-begun; cancel(reason) }()
		if _, got, err := post(ctx, tr, url+path, "x"); !errors.Is(err, reason) {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
		if c := conns.Load(); c != int64(n+1) {
			t.Errorf("%s: %d connections: a cancelled one was used again", path, c)
		}
	}
}

// TestCloseEarly: closing a body that was not read to its end costs the
// connection, and never shows a later request what was left.
func TestCloseEarly(t *testing.T) {
	url, conns, _ := counting(t, echo)
	tr := newTransport(t, nil)
	for n := range 3 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(strings.Repeat("left over", 10_000)))
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadFull(res.Body, make([]byte, 4))
		_ = res.Body.Close()
		if _, got, err := post(t.Context(), tr, url, "mine"); err != nil || got != "mine" {
			t.Fatalf("%q, %v", got, err)
		}
		if c := conns.Load(); c != int64(2*n+2) && n == 0 {
			t.Errorf("%d connections after round %d", c, n)
		}
	}
}

// TestConnectionClose: a server that says so is believed.
func TestConnectionClose(t *testing.T) {
	url, conns, _ := counting(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		echo(w, r)
	})
	tr := newTransport(t, nil)
	for range 3 {
		if _, got, err := post(t.Context(), tr, url, "x"); err != nil || got != "x" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n := conns.Load(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

// TestEarlyAnswer: a server that refuses before it has read a large request is
// heard, or the request fails; it never hangs and is never sent twice.
func TestEarlyAnswer(t *testing.T) {
	var requests atomic.Int64
	url, _, _ := counting(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	status, _, err := post(t.Context(), newTransport(t, nil), url, strings.Repeat("x", 8<<20))
	if err == nil && status != http.StatusRequestEntityTooLarge || requests.Load() != 1 {
		t.Errorf("status %d, %v, %d requests", status, err, requests.Load())
	}
}

// TestUnreachable: the error of a server that is not there is that of the dialer.
func TestUnreachable(t *testing.T) {
	url, _, server := counting(t, echo)
	server.Close()
	_, _, err := post(t.Context(), newTransport(t, nil), url, "x")
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
		t.Errorf("got %v", err)
	}
}

// TestSecure: https is left to the other transport.
func TestSecure(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(echo))
	t.Cleanup(server.Close)
	tr := newTransport(t, server.Client().Transport.(*http.Transport))
	if _, got, err := post(t.Context(), tr, server.URL, "sealed"); err != nil || got != "sealed" {
		t.Errorf("%q, %v", got, err)
	}
}

// BenchmarkPost compares one request with that of net/http.
func BenchmarkPost(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	b.Cleanup(server.Close)
	plain := &http.Transport{MaxIdleConnsPerHost: 256}
	kept := keepalive.New(&http.Transport{MaxIdleConnsPerHost: 256})
	b.Cleanup(plain.CloseIdleConnections)
	b.Cleanup(kept.CloseIdleConnections)
	text := strings.Repeat("x", 300)
	for name, tr := range map[string]http.RoundTripper{"net-http": plain, "keepalive": kept} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, _, err := post(b.Context(), tr, server.URL, text); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// TestContextOfACall: a wait.Context cuts off the request that it is of, and none that has its connection
// later.
func TestContextOfACall(t *testing.T) {
	began, release := make(chan struct{}, 1), make(chan struct{})
	url, conns, _ := counting(t, func(w http.ResponseWriter, r *http.Request) {
		if text, _ := io.ReadAll(r.Body); string(text) == "slow" {
			began <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	})
	tr := newTransport(t, &http.Transport{})
	cause := errors.New("the call is over")
	var first, second, third wait.Context
	for _, c := range []*wait.Context{&first, &second, &third} {
		c.Begin(nil)
	}
	if _, _, err := post(&first, tr, url, "quick"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, _, err := post(&second, tr, url, "slow")
		done <- err
	}()
	<-began
	first.End(cause)
	release <- struct{}{}
	if err := <-done; err != nil || conns.Load() != 1 {
		t.Fatalf("the second request: %v, over %d connections", err, conns.Load())
	}
	go func() {
		_, _, err := post(&third, tr, url, "slow")
		done <- err
	}()
	<-began
	third.End(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("the third request: %v", err)
	}
	if _, _, err := post(&third, tr, url, "quick"); !errors.Is(err, cause) {
		t.Errorf("a request of a call that is over: %v", err)
	}
	if _, _, err := post(&second, tr, url, "quick"); err != nil {
		t.Errorf("the next request: %v", err)
	}
}
