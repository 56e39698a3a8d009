package app

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
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
func (p pipes) Close() error   { return nil }
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
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := make(pipes)
				srv := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
				go func() { _ = serveHTTP(srv, l) }() // ends with srv
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
				close(l)
				srv.Close()
			})
		})
	}
}
