package upstream

import (
	"encoding/json"
	"sync"
)

// client is one downstream session as this server knows it, whatever becomes
// of its connections. It is safe for concurrent use.
type client struct {
	waiting // its requests

	uses  int // requests and connections that have it; protected by Server.mu
	ended int // connections in a row that soon ended; protected by Server.mu

	mu            sync.Mutex // protects the fields below
	home          Peer
	capabilities  json.RawMessage
	level         string         // that it has set, "" for none
	subscriptions []subscription // in the order of their beginning
	over          bool
}

// seen takes what a request tells of its session.
func (c *client) seen(from Downstream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from.Home != nil && !c.over {
		c.home = from.Home
	}
	if from.Capabilities != nil {
		c.capabilities = from.Capabilities
	}
}

// peer gives the home of the session, nil when there is none any more.
func (c *client) peer() Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.home
}

// can gives what the client can do, an object.
func (c *client) can() json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isEmpty(c.capabilities) {
		return json.RawMessage(`{}`)
	}
	return c.capabilities
}

// remembers reports whether something is known that a new connection needs.
func (c *client) remembers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level != "" || len(c.subscriptions) > 0
}

// end forgets the client: nothing is told to it and asked of it any more.
func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.home, c.level, c.subscriptions, c.over = nil, "", nil, true
}

// visit finds or makes the client of a request and counts it as in use. It is
// nil for one that goes over the shared connection.
func (s *Server) visit(from Downstream) *client {
	if from.Session == "" || s.cfg.Isolation == "shared" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[from.Session]
	if c == nil {
		c = &client{}
		s.clients[from.Session] = c
	}
	c.uses++
	c.seen(from)
	return c
}

// part counts a use of the client out, and forgets it when nothing is known of
// it that has to be kept.
func (s *Server) part(key string, c *client) {
	if c == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.uses--; c.uses == 0 && s.clients[key] == c && !c.remembers() {
		delete(s.clients, key)
	}
}
