package upstream

import (
	"encoding/json"
	"sync"
)

// client is one downstream session as this server knows it, across its
// connections. It is safe for concurrent use.
type client struct {
	waiting   // its requests
	owner     owner
	handshake bool // its connection is initialized if the server allows that

	uses  int // requests and connections that have it; protected by Server.mu
	ended int // connections in a row that soon ended; protected by Server.mu

	mu            sync.Mutex // protects the fields below
	home          Peer
	capabilities  json.RawMessage
	info          json.RawMessage // clientInfo for the server, nil for toolgate's
	level         string          // that it has set, "" for none
	subscriptions []subscription  // in the order of their beginning
	subscribing   int             // requests for subscriptions that are under way
	over          bool
}

// owner names a principal.
type owner struct{ subject, tenant string }

// peer returns the session's own Peer, nil when the session has ended or has
// none.
func (c *client) peer() Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.home
}

// nothing is an object without members, which nobody changes.
var nothing = json.RawMessage(`{}`)

// clientCapabilities returns what the client can do, as an object.
func (c *client) clientCapabilities() json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isEmpty(c.capabilities) {
		return nothing
	}
	return c.capabilities
}

// clientInfo returns the clientInfo that the server gets, nil for toolgate's own.
func (c *client) clientInfo() json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info
}

// end clears the client's state. Nothing is sent to it any longer.
func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.home, c.level, c.subscriptions, c.over = nil, "", nil, true
}

// acquireClient returns the client of a session, creating it if needed. It counts
// one use, and records what the request says of its session.
func (s *Server) acquireClient(from Downstream) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[from.Session]
	if c == nil {
		c = &client{owner: owner{from.Subject, from.Tenant}, handshake: s.era.inSession(from)}
		s.clients[from.Session] = c
	}
	c.uses++
	c.mu.Lock()
	defer c.mu.Unlock()
	if from.Home != nil && !c.over {
		c.home = from.Home
	}
	if from.Capabilities != nil {
		c.capabilities = from.Capabilities
	}
	if s.cfg.ClientInfo == "client" && from.ClientInfo != nil {
		c.info = from.ClientInfo
	}
	return c
}

// releaseClient ends one use of a client. A client without uses and without state
// is removed.
func (s *Server) releaseClient(key string, c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.uses--
	if level, held := c.remembered(); c.uses == 0 && s.clients[key] == c && level == "" && len(held) == 0 {
		delete(s.clients, key)
	}
}
