package plainhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/plainhttp"
)

// BenchmarkRequest is one request of a client whose heads are the same, and one whose length changes.
func BenchmarkRequest(b *testing.B) {
	kind, store := []string{"application/json"}, []string{"no-store"}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = io.ReadFull(r.Body, body)
		h := w.Header()
		h["Content-Type"], h["Cache-Control"], h["Content-Length"] = kind, store, []string{strconv.Itoa(len(body))}
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(30 * time.Second))
		_, _ = w.Write(body)
		_ = rc.Flush()
	})
	for _, step := range []int{0, 1} {
		b.Run(fmt.Sprintf("lengths=%d", step+1), func(b *testing.B) {
			c := dial(b, start(b, &plainhttp.Server{HTTP: settings(h, io.Discard)}))
			r := bufio.NewReader(c)
			var requests [2][]byte
			for i := range requests {
				requests[i] = []byte(post("/mcp", `{"jsonrpc":"2.0","id":1}`+"     "[:i*step], "Accept: application/json, text/event-stream", "Content-Type: application/json", "Authorization: Bearer agent", "Mcp-Session-Id: 0123456789abcdef"))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, _ = c.Write(requests[i%2])
				if _, err := r.Peek(1); err != nil {
					b.Fatal(err)
				}
				_, _ = r.Discard(r.Buffered())
			}
		})
	}
}

// TestHeadersThatAreShared: what a request has stays as it is while later ones are served.
func TestHeadersThatAreShared(t *testing.T) {
	var seen []http.Header
	var lives []context.Context
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := r.Context().Err(); err != nil {
			t.Errorf("the context of a request began with %v", err)
		}
		seen, lives = append(seen, r.Header), append(lives, r.Context())
	})
	address := start(t, &plainhttp.Server{HTTP: settings(h, io.Discard)})
	bodies := []string{"a", "b", "three", "four", "c", strings.Repeat("d", 20)}
	raw := ""
	for _, body := range bodies {
		raw += post("/", body, "Authorization: Bearer agent")
	}
	converse(t, address, raw+post("/", "a", "Authorization: Bearer other"))
	if len(seen) != len(bodies)+1 {
		t.Fatalf("%d requests", len(seen))
	}
	for i, body := range bodies {
		if got := seen[i].Get("Content-Length"); got != fmt.Sprint(len(body)) || seen[i].Get("Authorization") != "Bearer agent" {
			t.Errorf("request %d with a body of %d has %v", i, len(body), seen[i])
		}
	}
	if got := seen[len(bodies)].Get("Authorization"); got != "Bearer other" {
		t.Errorf("the last request has %q", got)
	}
	for i, life := range lives {
		if !errors.Is(life.Err(), context.Canceled) {
			t.Errorf("the context of request %d ended with %v", i, life.Err())
		}
	}
}

// TestWriteDeadlines: a deadline that a handler sets holds, whatever an earlier request has set, and ends
// with its request.
func TestWriteDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		within := make(chan time.Duration, 1) // 0 = no deadline
		failed := make(chan error, 1)
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			rc := http.NewResponseController(w)
			if d := <-within; d > 0 {
				_ = rc.SetWriteDeadline(time.Now().Add(d))
			}
			_, err := w.Write([]byte("answer"))
			failed <- errors.Join(err, rc.Flush())
		})
		s := &plainhttp.Server{HTTP: settings(h, io.Discard)}
		client, server := net.Pipe()
		l := pipes{make(chan net.Conn, 1)}
		l.conns <- server
		go func() { _ = s.Serve(l) }() // ends with s
		for _, step := range []struct {
			after, within time.Duration // the client reads after a time
			fails         bool
		}{
			{0, 30 * time.Second, false},
			{29 * time.Second, 30 * time.Second, false},
			{2 * time.Second, 30 * time.Second, false}, // half of the time of the one in force
			{40 * time.Second, 0, false},
			{0, 30 * time.Second, false},
			{50 * time.Second, time.Minute, false},
			{0, time.Hour, false},
			{12 * time.Second, 10 * time.Second, true},
		} {
			within <- step.within
			_, _ = io.WriteString(client, get("/"))
			time.Sleep(step.after)
			synctest.Wait()
			if step.fails {
				if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a write that waits for %s with a deadline of %s: %v", step.after, step.within, err)
				}
				continue
			}
			res, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatalf("an answer read after %s with a deadline of %s: %v", step.after, step.within, err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			if err := <-failed; err != nil {
				t.Errorf("a write that waits for %s with a deadline of %s: %v", step.after, step.within, err)
			}
		}
		_ = client.Close()
		_ = s.Close()
		synctest.Wait()
	})
}

// pipes is a listener of connections that were made before.
type pipes struct{ conns chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error   { close(p.conns); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// brokenConn panics when it is read from.
type brokenConn struct{ net.Conn }

func (brokenConn) Read([]byte) (int, error) { panic("odd connection") }

// TestPanicOutsideOfHandlers: a panic while a head is read ends its connection, is logged, and others go on.
func TestPanicOutsideOfHandlers(t *testing.T) {
	var logged syncBuffer
	s := &plainhttp.Server{HTTP: settings(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "fine")
	}), &logged)}
	l := pipes{make(chan net.Conn, 2)}
	odd, oddServer := net.Pipe()
	fine, fineServer := net.Pipe()
	l.conns <- brokenConn{oddServer}
	l.conns <- fineServer
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	if n, err := odd.Read(make([]byte, 1)); err == nil {
		t.Errorf("the odd connection has an answer of %d bytes", n)
	}
	go func() { _, _ = io.WriteString(fine, post("/", "a")) }() // the answer shows whether it arrived
	res, err := http.ReadResponse(bufio.NewReader(fine), nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("another connection: %v, %v", res, err)
	}
	res.Body.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-served
	if text := logged.String(); !strings.Contains(text, "panic: odd connection") {
		t.Errorf("log: %s", text)
	}
}
