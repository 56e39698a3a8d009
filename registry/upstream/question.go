package upstream

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

const (
	// maxAsking bounds the questions of one connection that are under way.
	maxAsking = 64
	// maxQuestion bounds one question: the person may have gone home.
	maxQuestion = 10 * time.Minute
)

// asking is one request of the server that is put to a client.
type asking struct {
	id     json.RawMessage // the server's own
	peer   Peer
	course *pending // in whose course it came, nil for none
	round  []Question
	life   context.Context
	end    context.CancelFunc
	clock  interface {
		hold()
		release()
	}
	back queue // what the client reports meanwhile, all of it before the answer
}

// asks are the questions of one connection. The zero value is ready.
type asks struct {
	under atomic.Int64 // how many are asked or whose answer is being sent

	mu   sync.Mutex         // protects the fields below
	live map[string]*asking // :: server's id ⇒ question that wants an answer
}

// add adds a question. It reports whether there is room, and whether the
// question's id is free.
func (s *asks) add(a *asking) (room, free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		s.live = make(map[string]*asking)
	}
	key := jsonrpc.Key(a.id)
	if s.live[key] != nil {
		return true, false
	}
	if s.under.Load() >= maxAsking {
		return false, true
	}
	s.under.Add(1)
	s.live[key] = a
	return true, true
}

// remove removes a question, and reports whether the server still waits for its
// answer.
func (s *asks) remove(a *asking) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := jsonrpc.Key(a.id)
	if s.live[key] != a {
		return false
	}
	delete(s.live, key)
	return true
}

// withdraw ends a question that the server has cancelled.
func (s *asks) withdraw(id json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := jsonrpc.Key(id)
	if a := s.live[key]; a != nil {
		delete(s.live, key)
		a.end()
	}
}

// endFor ends the questions that came in the course of p.
func (s *asks) endFor(p *pending) {
	p.over.Store(true)
	if s.under.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.live {
		if a.course == p {
			a.end()
		}
	}
}

// respond answers a request of the server. A ping is answered at once, and
// everything else by the client that it concerns. Where there is no client the
// method does not exist. A stateless server has no requests.
func (c *conn) respond(msg *jsonrpc.Message, during *mcpclient.Call) {
	if c.Stateless() {
		c.dropped.Add(1)
		return
	}
	if msg.Method == "ping" {
		c.Offer(jsonrpc.NewSuccess(msg.ID, json.RawMessage(`{}`)))
		return
	}
	peer, order, course := c.recipient(during)
	if peer == nil {
		c.Offer(jsonrpc.NewFailure(msg.ID, -32601, "method not found", nil))
		return
	}
	a := c.newAsking(msg, peer, course)
	room, free := c.asks.add(a)
	switch {
	case !free:
		c.dropped.Add(1) // an answer would be taken for that to the first one
		a.end()
		return
	case !room:
		a.end()
		c.refuse(a)
		return
	}
	a.clock.hold()
	if course != nil && course.over.Load() {
		a.end()
	}
	if !order.offer(func(muted bool) { c.askClient(a, muted) }) {
		if c.endQuestion(a) {
			c.refuse(a)
		}
		c.asks.under.Add(-1)
	}
}

// refuse answers a question beyond the limit.
func (c *conn) refuse(a *asking) {
	c.Offer(jsonrpc.NewFailure(a.id, -32603, "too many requests at once", nil))
}

// newAsking makes a question of a request.
func (c *conn) newAsking(msg *jsonrpc.Message, peer Peer, course *pending) *asking {
	a := &asking{id: msg.ID, peer: peer, course: course, clock: &c.client.waiting}
	if course != nil && course.clock != nil {
		a.clock = course.clock
	}
	a.life, a.end = context.WithTimeout(c.Life(), maxQuestion)
	params, token := withoutToken(msg.Params)
	q := Question{Method: msg.Method, Params: params}
	if token != nil {
		q.Progress = func(params json.RawMessage) { c.report(a, token, params) }
	}
	a.round = []Question{q}
	return a
}

// askClient puts a question to its client, in a goroutine of the connection. A
// muted question ends at once.
func (c *conn) askClient(a *asking, muted bool) {
	if muted {
		a.end()
	}
	begun := c.Go(func() {
		defer c.asks.under.Add(-1)
		var answers []Answer
		if a.life.Err() == nil {
			answers = a.peer.Ask(a.life, a.round)
		}
		a.back.finish(false)
		if c.endQuestion(a) {
			_ = c.Post(c.Life(), a.line(answers)) // fails only when the connection has ended
		}
	})
	if !begun {
		c.endQuestion(a)
		c.asks.under.Add(-1)
	}
}

// endQuestion ends a question, and reports whether the server waits for its answer.
func (c *conn) endQuestion(a *asking) bool {
	a.end()
	a.clock.release()
	return c.asks.remove(a)
}

// line returns the answer to the server, with the client's bytes.
func (a *asking) line(answers []Answer) []byte {
	switch {
	case len(answers) == 0 || answers[0].Result == nil && answers[0].Error == nil:
		return jsonrpc.NewFailure(a.id, -32603, "the client did not answer", nil)
	case answers[0].Error != nil:
		return jsonrpc.NewFailureObject(a.id, answers[0].Error)
	}
	return jsonrpc.NewSuccess(a.id, answers[0].Result)
}

// report sends the client's progress on a question, under the token that the
// server gave.
func (c *conn) report(a *asking, token, params json.RawMessage) {
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	params, err := jsonrpc.Set(params, "progressToken", token)
	if err != nil {
		return
	}
	line := jsonrpc.NewNotification("notifications/progress", params)
	a.back.offer(func(bool) { _ = c.Post(c.Life(), line) })
}

// withoutToken removes the progress token from the params of a request, and an
// empty _meta with it. The token is nil when there is none.
func withoutToken(params json.RawMessage) (rest, token json.RawMessage) {
	meta, _ := jsonrpc.Get(params, "_meta")
	token, ok := jsonrpc.Get(meta, "progressToken")
	if !ok || string(token) == "null" {
		return params, nil
	}
	meta, err := jsonrpc.Delete(meta, "progressToken")
	if isEmpty(meta) {
		meta = nil
	}
	if err == nil {
		rest, err = jsonrpc.Edit(params, jsonrpc.Change{Name: "_meta", Value: meta})
	}
	if err != nil {
		return params, nil
	}
	return rest, token
}
