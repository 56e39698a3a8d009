package mcp

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
)

// errTwice is reported for a second initialize on one connection.
var errTwice = errors.New("this connection is initialized already")

// duplex is a client with one connection for everything that is sent to it:
// stdio, or HTTP+SSE. Its requests are admitted in order, run side by side, and
// are answered as they finish. It has one session, from initialize on.
type duplex struct {
	door    *Door
	session *session
	send    func(message []byte) // sends one message
	spawn   func(work func())    // runs the work of one request
	arrays  bool                 // the answers to a batch are sent as one message
	flying  atomic.Int64

	mu             sync.Mutex // protects the fields below
	initialized    bool       // initialize has been answered, and session says what was agreed
	ready          bool       // the client has sent notifications/initialized
	pendingChanges bool       // lists changed before that
}

// openSession stores what initialize negotiated.
func (c *duplex) openSession(made *session) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.initialized {
		return nil, errTwice
	}
	c.initialized = true
	c.session.version, c.session.client, c.session.capabilities = made.version, made.client, made.capabilities
	return c.session, nil
}

// current returns the session of c, nil before initialize.
func (c *duplex) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.initialized {
		return nil
	}
	return c.session
}

// noteInitialized notes that the client accepts notifications, if x says so.
func (c *duplex) noteInitialized(x *exchange) {
	if x.session == nil || x.call.Message == nil || x.call.Message.Method != "notifications/initialized" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = true
	if c.pendingChanges {
		c.pendingChanges = false
		token(c.session.changes.wake)
	}
}

// flushChanges sends the pending list changes once the client accepts
// notifications.
func (c *duplex) flushChanges() {
	c.mu.Lock()
	ready := c.ready
	c.pendingChanges = c.pendingChanges || !ready
	c.mu.Unlock()
	if ready {
		c.session.flushChanges()
	}
}

// reply sends the answer a, if it has a body.
func (c *duplex) reply(a answer) {
	if a.body != nil && !a.silent {
		c.send(a.body)
	}
}

// serve serves one message and calls reply with its answer.
func (c *duplex) serve(x *exchange, reply func(answer)) {
	c.door.session.serveAsync(x, &c.flying, c.spawn, func(a answer) {
		c.door.observe(x, a)
		reply(a)
	})
	c.noteInitialized(x)
}

// serveBatch serves a batch of x's session and returns the transport's answer.
func (c *duplex) serveBatch(x *exchange, data []byte) answer {
	d := c.door
	parts, ok := d.session.split(x, data)
	if !ok {
		a := d.refuseFault(x)
		d.observe(x, a)
		return a
	}
	all, tell := &replies{}, c.reply
	if c.arrays {
		tell = all.add
	}
	wait := d.session.runBatch(parts, &c.flying, tell)
	for _, x := range parts {
		c.noteInitialized(x)
	}
	c.spawn(func() {
		wait()
		c.reply(answer{body: all.array()})
	})
	return answer{status: http.StatusAccepted}
}
