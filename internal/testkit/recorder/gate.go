package recorder

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A Gate holds stdio recorders at their start, as a server that takes long to start,
// until the test opens it. It is safe for concurrent use.
type Gate struct {
	// Address is the value of Config.Gate.
	Address string

	listener net.Listener
	mu       sync.Mutex // protects the fields below
	held     []net.Conn
	open     bool
}

// NewGate returns a closed gate, which opens at the end of the test at the latest.
func NewGate(t testing.TB) *Gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{Address: l.Addr().String(), listener: l}
	var accepting sync.WaitGroup
	accepting.Go(g.accept)
	t.Cleanup(func() {
		g.Open()
		l.Close()
		accepting.Wait()
	})
	return g
}

// accept holds those that come while the gate is closed.
func (g *Gate) accept() {
	for {
		c, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		if g.open {
			_ = c.Close() // which lets it pass
		} else {
			g.held = append(g.held, c)
		}
		g.mu.Unlock()
	}
}

// Held returns the number of recorders that have come to the closed gate.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held)
}

// Open lets waiting and later recorders pass.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	for _, c := range g.held {
		_ = c.Close()
	}
	g.held = nil
}

// Shut closes the gate again, for recorders that come later.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = false
}

// pass waits until the gate at address is open, and reports false when there is none.
func pass(address string) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, c) // until the gate closes it
	_ = c.Close()
	return true
}
