package upstream

import (
	"context"
	"encoding/json"
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
	id    json.RawMessage // the server's own
	peer  Peer
	round []Question
	life  context.Context // ends with the request in whose course it came, too
	end   func()
	clock interface {
		hold()
		release()
	}
	back queue // what the client reports meanwhile, all of it before the answer
}

// respond answers a request of the server. A ping is answered at once, and
// everything else by the client that it concerns. Where there is no client the
// method does not exist. A stateless server has no requests. A request with the
// id of one that waits is dropped: an answer would be taken for that to the first.
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
	if !c.asked.Put(a.id, a) {
		c.dropped.Add(1)
		a.end()
		return
	}
	a.clock.hold()
	if c.asking.Add(1) > maxAsking || !c.enqueue(order, queued{run: func() { c.askClient(a) }, vital: true}) {
		if c.endQuestion(a) {
			c.Offer(jsonrpc.NewFailure(a.id, -32603, "too many requests at once", nil))
		}
		c.asking.Add(-1)
	}
}

// newAsking makes a question of a request.
func (c *conn) newAsking(msg *jsonrpc.Message, peer Peer, course *pending) *asking {
	a := &asking{id: msg.ID, peer: peer, clock: &c.client.waiting}
	life := c.Life()
	if course != nil {
		life = course.life
		if course.request.clock != nil {
			a.clock = course.request.clock
		}
	}
	ctx, stop := context.WithTimeout(life, maxQuestion)
	detach := context.AfterFunc(c.Life(), stop)
	a.life, a.end = ctx, func() { detach(); stop() }
	params, token := withoutMeta(msg.Params, "progressToken")
	q := Question{Method: msg.Method, Params: params}
	if token != nil {
		q.Progress = func(params json.RawMessage) { c.report(a, token, params) }
	}
	a.round = []Question{q}
	return a
}

// askClient puts a question to its client, in a goroutine of the connection.
func (c *conn) askClient(a *asking) {
	begun := c.Go(func() {
		defer c.asking.Add(-1)
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
		c.asking.Add(-1)
	}
}

// endQuestion ends a question, and reports whether the server waits for its answer.
func (c *conn) endQuestion(a *asking) bool {
	a.end()
	a.clock.release()
	_, waits := c.asked.Match(a.id, func(other *asking) bool { return other == a })
	return waits
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
	a.back.offer(func() { _ = c.Post(c.Life(), line) })
}

// withoutMeta removes a member of _meta from params, and an empty _meta with it.
// The value is nil when there is none.
func withoutMeta(params json.RawMessage, name string) (rest, value json.RawMessage) {
	meta, _ := jsonrpc.Get(params, "_meta")
	value, ok := jsonrpc.Get(meta, name)
	if !ok || string(value) == "null" {
		return params, nil
	}
	meta, err := jsonrpc.Delete(meta, name)
	if isEmpty(meta) {
		meta = nil
	}
	if err == nil {
		rest, err = jsonrpc.Edit(params, jsonrpc.Change{Name: "_meta", Value: meta})
	}
	if err != nil {
		return params, nil
	}
	return rest, value
}
