package upstream

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
)

const (
	methodListen       = "subscriptions/listen"
	methodAcknowledged = "notifications/subscriptions/acknowledged"
	methodTools        = "notifications/tools/list_changed"
	methodPrompts      = "notifications/prompts/list_changed"
	methodResources    = "notifications/resources/list_changed"

	// leastFresh and mostFresh bound how often a list is asked for again of
	// which nobody announces the changes.
	leastFresh = 30 * time.Second
	mostFresh  = 24 * time.Hour
)

// listened are the lists whose changes a server may announce: the capability,
// the member of the filter, and the notification (MCP 2026-07-28
// basic/patterns/subscriptions).
var listened = []struct{ capability, filter, method string }{
	{"tools", "toolsListChanged", methodTools},
	{"prompts", "promptsListChanged", methodPrompts},
	{"resources", "resourcesListChanged", methodResources},
}

// changes gives the filter that asks for all changes of lists that an offer
// announces, nil for none, and whether those of the tools are among them.
func changes(offer json.RawMessage) (filter json.RawMessage, tools bool) {
	var members []member
	for _, l := range listened {
		capability, _ := jsonrpc.Get(offer, l.capability)
		if announced, _ := jsonrpc.Get(capability, "listChanged"); string(announced) == "true" {
			members = append(members, member{l.filter, announced})
			tools = tools || l.capability == "tools"
		}
	}
	if members == nil {
		return nil, false
	}
	return object(members...), tools
}

// follow keeps the catalogue up to date with a server without a handshake, for
// as long as the shared connection lives: by listening, where it announces
// that its lists changed, or else by asking again when the tools are no longer
// fresh.
func (s *Server) follow(sess *session) {
	_, tools := changes(sess.conn.offer)
	if !tools {
		sess.conn.Go(func() { s.poll(sess) })
	}
	if !s.hear(sess.conn) && tools {
		s.log.Warn("the server does not say when its tools change, though it offers to")
		s.poll(sess)
	}
}

// hear listens to the changes of lists until the connection ends, again and
// again. It gives up, and reports false, when the server announces none or does
// not let itself be listened to.
func (s *Server) hear(c *conn) bool {
	filter, _ := changes(c.offer)
	for n, again := 0, false; filter != nil; n++ {
		began := s.opts.Now()
		var granted, acknowledged atomic.Bool
		_, e := c.do(c.Life(), request{method: methodListen, params: object(member{"notifications", filter}), heard: func(msg *jsonrpc.Message) {
			if msg.Method != methodAcknowledged {
				s.changed(c, msg)
				return
			}
			acknowledged.Store(true)
			granted.Store(grants(msg.Params))
			if again { // who knows what changed meanwhile
				for _, l := range listened {
					s.changed(c, &jsonrpc.Message{Method: l.method})
				}
			}
		}})
		switch {
		case c.Dead():
			return true
		case e != nil && c.judge(e).Lost:
			c.Fail(e)
			return true
		case !acknowledged.Load() && e != nil && e.RPC != nil, acknowledged.Load() && !granted.Load():
			return false
		}
		again = again || acknowledged.Load()
		if s.opts.Now().Sub(began) >= stableAfter {
			n = 0
		}
		select {
		case <-s.opts.After(pause(n)):
		case <-c.Life().Done():
			return true
		}
	}
	return false
}

// grants reports whether an acknowledgement promises anything.
func grants(params json.RawMessage) bool {
	promised, _ := jsonrpc.Get(params, "notifications")
	for _, value := range jsonrpc.Members(promised) {
		switch {
		case string(value) == "true":
			return true
		case value[0] == '[':
			for range jsonrpc.Elements(value) {
				return true
			}
		}
	}
	return false
}

// changed deals with the announcement that a list changed. Every connection has
// tools of its own, and over HTTP the shared one is told for all.
func (s *Server) changed(c *conn, msg *jsonrpc.Message) {
	c.notice(msg, nil)
	if msg.Method == methodTools && c.client == nil {
		s.relistOwn()
	}
}

// relistOwn has the tools of all sessions' connections listed again.
func (s *Server) relistOwn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.slots {
		select {
		case <-sl.ready:
			if sl.s != nil {
				sl.s.conn.signal()
			}
		default: // it lists them anyway
		}
	}
}

// poll has the tools listed again whenever they are no longer fresh. It ends
// with the connection, or when the server does not say how long its list holds.
func (s *Server) poll(sess *session) {
	for {
		d := sess.holds()
		if d == 0 {
			return
		}
		select {
		case <-s.opts.After(d + rand.N(d/10)):
			sess.conn.signal()
			s.relistOwn()
		case <-sess.conn.Life().Done():
			return
		}
	}
}

// expect keeps how long the server takes its list to hold, from the result of
// tools/list (MCP 2026-07-28 server/utilities/caching).
func (s *session) expect(ttl json.RawMessage) {
	ms, err := strconv.ParseInt(string(ttl), 10, 64)
	d := time.Duration(0)
	if err == nil && ms > 0 {
		d = min(max(time.Duration(min(ms, mostFresh.Milliseconds()))*time.Millisecond, leastFresh), mostFresh)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = d
}

// holds gives what expect kept, 0 for nothing.
func (s *session) holds() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fresh
}

// parametersOf returns the parameters of a tool that headers repeat.
func (s *session) parametersOf(tool string) []paramheader.Parameter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.headers[tool]
}
