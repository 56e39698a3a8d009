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
	methodSetLevel    = "logging/setLevel"
	methodSubscribe   = "resources/subscribe"
	methodUnsubscribe = "resources/unsubscribe"

	// maxSubscriptions bounds the resources of one server that one downstream
	// session is subscribed to.
	maxSubscriptions = 256
	// levelTimeout bounds one logging/setLevel of ours, which a request waits for.
	levelTimeout = 5 * time.Second
)

// subscription is a resource that a session is subscribed to. It is renewed on
// the session's next connection.
type subscription struct {
	uri    string
	params json.RawMessage // of resources/subscribe, as they were sent
}

// reserveSubscription makes room for the subscription that a request asks for,
// and refuses the request when there is none.
func (c *client) reserveSubscription(r *request) *Error {
	if r.method != methodSubscribe {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.subscriptions)+c.subscribing >= maxSubscriptions && c.indexLocked(textParam(r, "uri")) < 0 {
		return &Error{Kind: Unavailable, Err: fmt.Errorf("the session is subscribed to %d resources of the server, which is the most\nhint: unsubscribe from some", maxSubscriptions)}
	}
	c.subscribing++
	return nil
}

// recordOutcome records the outcome of a request that changes the state of its
// connection. It follows reserveSubscription.
func (c *client) recordOutcome(r *request, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.method == methodSubscribe {
		c.subscribing--
	}
	if !done || c.over {
		return
	}
	uri := textParam(r, "uri")
	switch i := c.indexLocked(uri); {
	case r.method == methodSetLevel:
		c.level = textParam(r, "level")
	case r.method == methodUnsubscribe && i >= 0:
		c.subscriptions = slices.Delete(c.subscriptions, i, i+1)
	case r.method == methodSubscribe && i >= 0:
		c.subscriptions[i].params = r.params
	case r.method == methodSubscribe && uri != "":
		c.subscriptions = append(c.subscriptions, subscription{uri, r.params})
	}
}

// indexLocked returns the index of a subscription, -1 for none. The caller must
// hold c.mu.
func (c *client) indexLocked(uri string) int {
	return slices.IndexFunc(c.subscriptions, func(s subscription) bool { return s.uri == uri })
}

// remembered returns the log level and the subscriptions that a new connection
// needs.
func (c *client) remembered() (level string, held []subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level, slices.Clone(c.subscriptions)
}

// subscribed reports whether the client is subscribed to resources.
func (c *client) subscribed() bool {
	_, held := c.remembered()
	return len(held) > 0
}

// textParam returns the string that a request has as a parameter, "" for none.
func textParam(r *request, name string) string {
	value, _ := jsonrpc.TextAt(r.params, name)
	return value
}

// setLevel makes the server log from a level on, if it supports logging. A
// server that refuses is asked once for each change.
func (s *session) setLevel(ctx context.Context, level string) {
	if level == "" {
		return
	}
	if _, logs := jsonrpc.Get(s.conn.offer, "logging"); !logs {
		return
	}
	s.levelMu.Lock()
	defer s.levelMu.Unlock()
	if s.level == level {
		return
	}
	ctx, stop := context.WithTimeout(ctx, levelTimeout)
	defer stop()
	_, e := s.conn.do(ctx, &request{method: methodSetLevel, params: object(member{"level", jsonrpc.Quote(level)})})
	if e != nil && (e.Lost || e.Kind == Cancelled) {
		return // the request that waits for it meets with the same
	}
	if e != nil {
		s.conn.opts.Logger.Warn("setting the log level", "level", level, "error", e)
	}
	s.level = level
}

// restore applies the client's log level and subscriptions to a new
// connection. Resources may have changed meanwhile, so the client is notified
// of an update of each.
func (s *session) restore(ctx context.Context, cl *client) {
	level, held := cl.remembered()
	if s.conn.Stateless() {
		s.listenAgain(ctx, held)
	} else {
		s.setLevel(ctx, level)
		for _, sub := range held {
			if _, e := s.conn.do(ctx, &request{method: methodSubscribe, params: sub.params}); e != nil {
				s.conn.opts.Logger.Warn("subscribing again", "uri", sub.uri, "error", e)
			}
		}
	}
	home := cl.peer()
	if len(held) == 0 || home == nil {
		return
	}
	s.conn.enqueue(&s.conn.queue, queued{run: func() {
		for _, sub := range held {
			home.Tell(methodUpdated, object(member{"uri", jsonrpc.Quote(sub.uri)}))
		}
	}})
}

// reopenSubscribed reopens the connection of every client that has
// subscriptions, after the server was away.
func (s *Server) reopenSubscribed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, cl := range s.clients {
		if !cl.subscribed() {
			continue
		}
		sl := s.slots[key]
		if sl == nil {
			s.reopenLocked(key, cl)
			continue
		}
		s.tasks.Go(func() { // the server may have forgotten the session
			if <-sl.ready; sl.s != nil {
				ctx, stop := context.WithTimeout(s.life, s.cfg.Timeout)
				defer stop()
				sl.s.conn.Ping(ctx)
			}
		})
	}
}

// reopenLocked opens a client's connection without a request, if there is room: the
// client's next request opens it otherwise. The caller must hold s.mu.
func (s *Server) reopenLocked(key string, cl *client) {
	if !s.places.Full() {
		_, _ = s.slotLocked(key, cl) // fails when the server is being stopped
	}
}

// reopenAfterPause reopens the connection of a client that has subscriptions.
// Number n counts the connections that ended soon, from 0, and lengthens the
// pause. While the server is away it does nothing: reopenSubscribed does that
// later.
func (s *Server) reopenAfterPause(key string, cl *client, n int) {
	if !cl.subscribed() {
		return
	}
	if !s.opts.sleep(s.life, pause(n)) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[key] == nil && s.clients[key] == cl && s.shared != nil && s.life.Err() == nil {
		s.reopenLocked(key, cl)
	}
}

// errShared refuses a request that needs a connection of the session's own.
var errShared = errors.New("the server has one connection for all sessions\nhint: set isolation to session")

// ofSession are the methods that change the state of their connection.
var ofSession = map[string]bool{methodSetLevel: true, methodSubscribe: true, methodUnsubscribe: true}
