package upstream

import (
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/wait"
)

// recipient returns whom a request or notification of the server concerns: the
// peer of the request in whose course it came, or else the session's own peer;
// and the queue in which it waits its turn. The peer is nil where nobody may
// receive it, as on the shared connection.
func (c *conn) recipient(during *mcpclient.Call) (peer Peer, order *queue, course *pending) {
	if c.client == nil {
		return nil, nil, nil
	}
	if p := c.requestDuring(during); p != nil && p.request.From.Peer != nil {
		return p.request.From.Peer, &p.queue, p
	}
	return c.client.peer(), &c.queue, nil
}

// requestDuring returns the client request in whose course a message came: that
// of the stream, or, on a shared stream, the only one under way.
func (c *conn) requestDuring(during *mcpclient.Call) *pending {
	ofClient := func(call *mcpclient.Call) bool { p := pendingOf(call); return p != nil && p.request.ofClient }
	switch {
	case during == nil:
		return pendingOf(c.Only(ofClient))
	case ofClient(during) && !during.Answered():
		return pendingOf(during)
	}
	return nil
}

// notice handles a notification. Progress goes to its call, a changed tool list
// marks the connection, and everything else goes to whom it concerns.
func (c *conn) notice(msg *jsonrpc.Message, during *mcpclient.Call) {
	switch msg.Method {
	case "notifications/progress":
		c.progressed(msg.Params)
	case "notifications/cancelled":
		id, _ := msg.Param("requestId")
		if a, ok := c.asked.Match(id, nil); ok {
			a.end()
		}
	case methodTools:
		c.announced.Store(true)
		c.signal()
	case methodResources, methodPrompts:
		wait.Signal(c.relist)
		c.listChanged(msg)
	default:
		peer, order, _ := c.recipient(during)
		c.notifyPeer(peer, order, msg)
	}
}

// listChanged reports a changed list that the catalogue does not hold: to the
// session that has the connection, or, on the shared one, to
// Options.ListChanged.
func (c *conn) listChanged(msg *jsonrpc.Message) {
	if c.client != nil {
		c.notifyPeer(c.client.peer(), &c.queue, msg)
	} else {
		c.enqueue(&c.queue, queued{run: func() { c.opts.ListChanged(msg.Method) }})
	}
}

// notifyPeer queues a notification for a peer. What cannot be queued is dropped
// and counted.
func (c *conn) notifyPeer(peer Peer, order *queue, msg *jsonrpc.Message) {
	if peer == nil {
		c.dropped.Add(1)
		return
	}
	c.enqueue(order, queued{run: func() { peer.Tell(msg.Method, msg.Params) }})
}

// enqueue puts n into a queue, counts what is dropped, and reports whether n is queued.
func (c *conn) enqueue(q *queue, n queued) bool {
	ok, crowded := q.put(c.Life(), n)
	if !ok || crowded {
		c.dropped.Add(1)
	}
	if crowded {
		c.opts.Crowded()
		if q.lossy.CompareAndSwap(false, true) {
			c.opts.Logger.Warn("a client is too slow for the notifications of the server: the oldest are dropped", "waiting", queueDepth, "after", patience)
		}
	}
	return ok
}

// progressed hands progress to the call that its token names, without the
// token, and starts the call's idle time again.
func (c *conn) progressed(params json.RawMessage) {
	id, ok := jsonrpc.TextAt(params, "progressToken")
	if !ok {
		return
	}
	order, tell := &c.queue, (func(json.RawMessage))(nil)
	if p := pendingOf(c.Lookup(id)); p != nil {
		order, tell = &p.queue, p.request.Progress
		if p.request.clock != nil {
			p.request.clock.progress()
		}
	} else if l, ok := c.taskListeners.Get(id); ok && (l.until.IsZero() || !c.opts.Now().After(l.until)) {
		tell = l.tell
	}
	if tell == nil {
		return
	}
	rest, err := jsonrpc.Delete(params, "progressToken")
	if err != nil {
		c.dropped.Add(1)
		return
	}
	c.enqueue(order, queued{run: func() { tell(rest) }, token: id})
}

// signal asks for the tools to be listed again.
func (c *conn) signal() { wait.Signal(c.changed) }
