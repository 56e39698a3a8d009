package front

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	headTimeout = 10 * time.Second // from the first byte of a request to the end of its head
	idleTimeout = 2 * time.Minute  // of a connection between requests, and before the first
	bodyPause   = 30 * time.Second // without a byte of a request's body
	bodyTimeout = 60 * time.Second // from the head of a request to the end of its body
)

// The most connections of each listener, where the process may open as many files.
const (
	mostAgents = 16_384
	mostPeople = 1_024
	leastFiles = 256 // that a process can open, when the limit cannot be read
)

// Shares returns how many connections agents, people and replicas may have of a
// process that can open so many files. What is left is for state, upstreams and their
// connections; people have a share of their own, so that /readyz answers whatever
// agents do.
func Shares(files int) (agents, people, replicas int) {
	return min(mostAgents, files/2), min(mostPeople, files/8), min(mostAgents, files/8)
}

// listener bounds the connections of one address. Beyond most, a new connection
// replaces one whose request has not arrived yet, of the address that has the most of
// them: the oldest that never had an answer, or else the oldest. So clients that send
// slowly, or nothing, keep nobody out. It is safe for concurrent use.
//
// A connection may wait for its first byte as long as an idle one for its next
// request. net/http counts headTimeout from the moment that it accepts a connection;
// clients keep connections that they opened and did not need, and Go's does not repeat
// a request whose connection is closed before its first use.
type listener struct {
	net.Listener
	most    int
	secure  bool   // connections begin with a TLS handshake
	dropped func() // called for each connection that is closed for another one; it must not block

	mu      sync.Mutex // protects the fields below
	open    map[*connection]struct{}
	next    uint64
	closing bool // closeUnused was called

	stopping atomic.Int64 // how long Accept waits for one more connection, a time.Duration; 0 = for ever, as before stop
}

func newListener(l net.Listener, most int, dropped func()) *listener {
	return &listener{Listener: l, most: max(1, most), dropped: dropped, open: make(map[*connection]struct{})}
}

// acceptedWithin is how long a listener that stops waits for the rest of handshakes, which takes as long as
// to the client and back. Where new ones begin all the same, it looks only for connections that are there.
const acceptedWithin, thereWithin = 200 * time.Millisecond, time.Millisecond

// Accept implements net.Listener. After stop, the error is http.ErrServerClosed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		stopping := time.Duration(l.stopping.Load())
		if stopping > 0 {
			l.setDeadline(time.Now().Add(stopping))
		}
		accepted, err := l.Listener.Accept()
		switch {
		case err != nil && stopping > 0:
			_ = l.Close() // it is of no use either way
			return nil, http.ErrServerClosed
		case errors.Is(err, os.ErrDeadlineExceeded): // stop sets it, and then stopping
			continue
		case err != nil:
			return nil, err
		}
		c := &connection{Conn: accepted, of: l}
		c.shaking.Store(l.secure)
		if remote, ok := accepted.RemoteAddr().(*net.TCPAddr); ok {
			c.from = remote.AddrPort().Addr()
		}
		victim := l.add(c)
		if victim != nil {
			l.dropped()
			_ = victim.Close() // it is of no use either way
		}
		if victim != c {
			return c, nil
		}
	}
}

// add adds c and returns the connection that has to go: nil while there is room, c
// itself when every other one is being served.
func (l *listener) add(c *connection) (victim *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	c.order = l.next
	l.open[c] = struct{}{}
	switch {
	case l.closing:
		return c
	case len(l.open) <= l.most:
		return nil
	}
	waiting := make(map[netip.Addr]int)
	for other := range l.open {
		if !other.serving.Load() {
			waiting[other.from]++
		}
	}
	for other := range l.open {
		if !other.serving.Load() && other != c && (victim == nil ||
			cmp.Or(waiting[other.from]-waiting[victim.from], int(victim.answered.Load()-other.answered.Load()), cmp.Compare(victim.order, other.order)) > 0) {
			victim = other
		}
	}
	return cmp.Or(victim, c)
}

// stop has Accept return what has connected so far, then close l and end. From now on, the
// kernel does not answer clients that connect; when l is closed, it refuses them. A close alone resets connections
// that the kernel has accepted, and their clients have sent requests that a balancer does not repeat.
func (l *listener) stop() {
	within := thereWithin
	if refuseNew(l.Listener) {
		within = acceptedWithin
	}
	l.setDeadline(time.Unix(1, 0)) // ends Accept
	l.stopping.Store(int64(within))
}

// setDeadline sets the deadline of Accept, for a listener that has one.
func (l *listener) setDeadline(t time.Time) {
	if d, ok := l.Listener.(interface{ SetDeadline(t time.Time) error }); ok {
		_ = d.SetDeadline(t) // fails only for a listener that is closed
	}
}

// closeUnused closes the connections that have carried no byte, and those that are
// accepted later.
func (l *listener) closeUnused() {
	l.mu.Lock()
	l.closing = true
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, c := range open {
		if !c.used.Load() {
			_ = c.Close() // it is of no use either way
		}
	}
}

// connection is one connection of a listener.
type connection struct {
	net.Conn
	of       *listener
	from     netip.Addr
	order    uint64       // counts what the listener has accepted
	shaking  atomic.Bool  // its TLS handshake has not ended
	used     atomic.Bool  // it has carried a byte, of HTTP once the handshake has ended
	serving  atomic.Bool  // a whole request is being answered
	answered atomic.Int32 // 1: a request was answered
}

// SetReadDeadline implements net.Conn. net/http gives the TLS handshake headTimeout, and
// removes that deadline at its end: then the connection waits for its first request.
func (c *connection) SetReadDeadline(t time.Time) error {
	if t.IsZero() && c.shaking.CompareAndSwap(true, false) {
		c.used.Store(false)
	}
	if !t.IsZero() && !c.used.Load() {
		t = t.Add(idleTimeout - headTimeout)
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.used.CompareAndSwap(false, true) {
		if err := c.Conn.SetReadDeadline(time.Now().Add(headTimeout)); err != nil {
			return n, err
		}
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom, which net/http looks for: the parts of a large answer
// are one system call, and are not copied.
func (c *connection) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite lets net/http send an error to a client that still writes.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
