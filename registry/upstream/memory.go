package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const (
	// maxSubscriptions bounds the resources of one server that one downstream
	// session is subscribed to.
	maxSubscriptions = 256
	// tuneTimeout bounds one logging/setLevel of ours, which a request waits for.
	tuneTimeout = 5 * time.Second
)

// subscription is a resource that a session is subscribed to, or is about to
// be. A new connection of the session subscribes to it again.
type subscription struct {
	uri    string
	params json.RawMessage // of resources/subscribe, as they were sent
	held   bool            // the server has agreed
}

// foresee takes note of what a request is about to ask for, or refuses it when
// that could not be remembered.
func (c *client) foresee(r request) *Error {
	uri, ok := uriOf(r, "resources/subscribe")
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.indexLocked(uri) >= 0:
		return nil
	case len(c.subscriptions) >= maxSubscriptions:
		return &Error{Kind: Unavailable, Err: fmt.Errorf("the session is subscribed to %d resources of the server, which is the most\nhint: unsubscribe from some", maxSubscriptions)}
	}
	c.subscriptions = append(c.subscriptions, subscription{uri: uri, params: r.params})
	return nil
}

// remember takes note of what became of a request that foresee has seen.
func (c *client) remember(r request, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if level, ok := levelOf(r); ok && done && !c.over {
		c.level = level
	}
	if uri, ok := uriOf(r, "resources/subscribe"); ok {
		switch i := c.indexLocked(uri); {
		case i < 0 && done && !c.over: // one that failed in between took it out
			c.subscriptions = append(c.subscriptions, subscription{uri: uri, params: r.params, held: true})
		case i < 0:
		case done:
			c.subscriptions[i].params, c.subscriptions[i].held = r.params, true
		case !c.subscriptions[i].held:
			c.subscriptions = slices.Delete(c.subscriptions, i, i+1)
		}
	}
	if uri, ok := uriOf(r, "resources/unsubscribe"); ok && done {
		c.subscriptions = slices.DeleteFunc(c.subscriptions, func(s subscription) bool { return s.uri == uri })
	}
}

// indexLocked finds a subscription, -1 when there is none.
func (c *client) indexLocked(uri string) int {
	return slices.IndexFunc(c.subscriptions, func(s subscription) bool { return s.uri == uri })
}

// remembered gives what a new connection has to say again.
func (c *client) remembered() (level string, held []subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		if s.held {
			held = append(held, s)
		}
	}
	return c.level, held
}

// subscribed reports whether the client waits to be told of resources.
func (c *client) subscribed() bool {
	_, held := c.remembered()
	return len(held) > 0
}

// uriOf gives the uri of a request of one method.
func uriOf(r request, method string) (string, bool) {
	if r.method != method {
		return "", false
	}
	raw, _ := jsonrpc.Get(r.params, "uri")
	return jsonrpc.Text(raw)
}

// levelOf gives the level that a request sets.
func levelOf(r request) (string, bool) {
	if r.method != "logging/setLevel" {
		return "", false
	}
	raw, _ := jsonrpc.Get(r.params, "level")
	return jsonrpc.Text(raw)
}

// tune makes sure that the server of this connection logs from a level on, if
// it logs at all. A server that will not is asked once for each change.
func (srv *Server) tune(ctx context.Context, s *session, level string) {
	if level == "" {
		return
	}
	if _, logs := jsonrpc.Get(s.conn.offer, "logging"); !logs {
		return
	}
	s.tuning.Lock()
	defer s.tuning.Unlock()
	if s.level == level {
		return
	}
	ctx, stop := context.WithTimeout(ctx, tuneTimeout)
	defer stop()
	_, e := s.conn.do(ctx, request{method: "logging/setLevel", params: object(member{"level", jsonrpc.Quote(level)})})
	if e != nil && (e.Lost || e.Kind == Cancelled) {
		return // the request that waits for it meets with the same
	}
	if e != nil {
		srv.log.Warn("setting the log level", "level", level, "error", e)
	}
	s.level = level
}

// tuned takes note of a level that the client has set itself.
func (s *session) tuned(r request) {
	if level, ok := levelOf(r); ok {
		s.tuning.Lock()
		defer s.tuning.Unlock()
		s.level = level
	}
}

// restore says on a new connection what its client said on earlier ones. What
// was subscribed to may have changed in between, so the client is told that it
// has.
func (srv *Server) restore(ctx context.Context, s *session, cl *client) {
	level, held := cl.remembered()
	if s.conn.Stateless() {
		s.listenAgain(ctx, held)
	} else {
		srv.tune(ctx, s, level)
		for _, sub := range held {
			if _, e := s.conn.do(ctx, request{method: "resources/subscribe", params: sub.params}); e != nil {
				srv.log.Warn("subscribing again", "uri", sub.uri, "error", e)
			}
		}
	}
	home := cl.peer()
	if len(held) == 0 || home == nil {
		return
	}
	s.conn.queue.offer(heard(func() {
		for _, sub := range held {
			home.Tell("notifications/resources/updated", object(member{"uri", jsonrpc.Quote(sub.uri)}))
		}
	}))
}

// revive gives every client that has subscriptions a connection again after
// the server was away.
func (s *Server) revive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, cl := range s.clients {
		if !cl.subscribed() {
			continue
		}
		if sl := s.slots[key]; sl != nil {
			s.tasks.Go(func() { s.probe(sl) })
		} else {
			s.reopenLocked(key, cl)
		}
	}
}

// reopenLocked opens a client's connection though no request asks for it.
func (s *Server) reopenLocked(key string, cl *client) {
	sl, e := s.slotLocked(key, cl)
	if e != nil {
		s.log.Warn("opening the connection of a session again", "error", e)
		return
	}
	sl.last = s.opts.Now()
}

// probe asks a connection whether its server still knows it, and ends it if
// not.
func (s *Server) probe(sl *slot) {
	<-sl.ready
	if sl.s == nil {
		return
	}
	ctx, stop := context.WithTimeout(s.life, s.cfg.Timeout)
	defer stop()
	sl.s.conn.Ping(ctx)
}

// renew opens the connection of a client again that has subscriptions, after a
// pause. Number n counts the connections that soon ended, from 0. While the
// server is away nothing is done: revive will.
func (s *Server) renew(key string, cl *client, n int) {
	if !cl.subscribed() {
		return
	}
	select {
	case <-s.opts.After(pause(n)):
	case <-s.life.Done():
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[key] == nil && s.clients[key] == cl && s.shared != nil && s.life.Err() == nil {
		s.reopenLocked(key, cl)
	}
}

// errShared is the error of a request for which a session needs a connection
// of its own.
var errShared = errors.New("the server has one connection for all sessions\nhint: set isolation to session")

// ofSession are the methods that leave something behind in the connection.
var ofSession = map[string]bool{"logging/setLevel": true, "resources/subscribe": true, "resources/unsubscribe": true}
