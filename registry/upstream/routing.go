package upstream

import (
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

// hearer says whom a message of the server's concerns that is no answer: the
// peer of the request in whose course it came, or else the home of the
// session; and behind what else it has to wait its turn. The peer is nil where
// nobody is to hear it, as on the shared connection.
func (c *conn) hearer(during *mcpclient.Call) (peer Peer, order *queue, course *pending) {
	if c.client == nil {
		return nil, nil, nil
	}
	if p := c.course(during); p != nil && p.from.Peer != nil {
		return p.from.Peer, &p.queue, p
	}
	return c.client.peer(), &c.queue, nil
}

// course finds the request of a client in whose course a message came: that of
// the stream, or, on a stream that many share, the only one that is under way.
func (c *conn) course(during *mcpclient.Call) *pending {
	if during == nil {
		return c.pendings.sole()
	}
	if p := pendingOf(during); p != nil && p.ofClient && !p.Answered() {
		return p
	}
	return nil
}

// notice deals with a notification: progress goes to its call, a changed tool
// list marks the connection, and the rest is told to whom it concerns.
func (c *conn) notice(msg *jsonrpc.Message, during *mcpclient.Call) {
	switch msg.Method {
	case "notifications/progress":
		c.progressed(msg.Params)
	case "notifications/cancelled":
		id, _ := msg.Param("requestId")
		c.asks.withdraw(id)
	case methodTools:
		c.announced.Store(true)
		c.signal()
	case "notifications/resources/list_changed", "notifications/prompts/list_changed":
		c.listChanged(msg)
	default:
		peer, order, _ := c.hearer(during)
		c.tell(peer, order, msg)
	}
}

// listChanged tells of a list that the catalogue does not hold: to the session
// that has the connection, or, where all share it, to whoever wants to know.
func (c *conn) listChanged(msg *jsonrpc.Message) {
	if c.client != nil {
		c.tell(c.client.peer(), &c.queue, msg)
	} else if !c.queue.offer(heard(func() { c.opts.ListChanged(msg.Method) })) {
		c.dropped.Add(1)
	}
}

// tell passes a notification on, or drops and counts it.
func (c *conn) tell(peer Peer, order *queue, msg *jsonrpc.Message) {
	if peer == nil || !order.offer(heard(func() { peer.Tell(msg.Method, msg.Params) })) {
		c.dropped.Add(1)
	}
}

// heard makes f something that is not done when nobody is to hear of it.
func heard(f func()) func(muted bool) {
	return func(muted bool) {
		if !muted {
			f()
		}
	}
}

// progressed hands params to the call that its token names, without the token.
func (c *conn) progressed(params json.RawMessage) {
	token, _ := jsonrpc.Get(params, "progressToken")
	id, ok := jsonrpc.Text(token)
	if !ok {
		return
	}
	order, tell := &c.queue, c.after.find(id, c.opts.Now())
	if p := pendingOf(c.Lookup(id)); p != nil {
		order, tell = &p.queue, p.progress
	}
	if tell == nil {
		return
	}
	rest, err := jsonrpc.Delete(params, "progressToken")
	if err != nil || !order.offer(heard(func() { tell(rest) })) {
		c.dropped.Add(1)
	}
}

// signal says that the tools have to be listed again.
func (c *conn) signal() {
	select {
	case c.changed <- struct{}{}:
	default: // one is waiting already
	}
}
