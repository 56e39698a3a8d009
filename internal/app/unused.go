package app

import (
	"net"
	"sync/atomic"
	"time"
)

const (
	headTimeout = 10 * time.Second // from the first byte of a request to the end of its head
	idleTimeout = 2 * time.Minute  // of a connection between requests, and before the first
)

// unusedListener gives a connection as long for its first byte as an idle one has for
// the next. net/http counts headTimeout from the moment that it accepts a connection;
// clients keep connections that they opened and did not need, and Go's does not repeat
// a request whose connection is closed before its first use.
type unusedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l unusedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unusedConn{Conn: c}, nil
}

// unusedConn is a connection that may not have carried a byte yet.
type unusedConn struct {
	net.Conn
	used atomic.Bool
}

// SetReadDeadline implements net.Conn.
func (c *unusedConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && !c.used.Load() {
		t = t.Add(idleTimeout - headTimeout)
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *unusedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.used.CompareAndSwap(false, true) {
		if err := c.Conn.SetReadDeadline(time.Now().Add(headTimeout)); err != nil {
			return n, err
		}
	}
	return n, err
}
