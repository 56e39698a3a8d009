package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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

// changes returns the subscription filter for all list changes that a server
// offers to announce, nil for none, and whether changes of the tools are among
// them.
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

// followLists keeps the catalogue up to date with a stateless server while the
// shared connection lives: through a subscription where the server announces
// changes, and otherwise by listing the tools again when they are no longer
// fresh.
func (s *session) followLists(others func()) {
	_, tools := changes(s.conn.offer)
	if !tools {
		s.conn.Go(func() { s.pollTools(others) })
	}
	if !s.conn.listenForChanges(others) && tools {
		s.conn.opts.Logger.Warn("the server does not say when its tools change, though it offers to")
		s.pollTools(others)
	}
}

// listenForChanges subscribes to changes of lists until the connection ends. It
// returns false when the server announces no changes, refuses the subscription or
// promises nothing.
func (c *conn) listenForChanges(others func()) bool {
	filter, _ := changes(c.offer)
	if filter == nil {
		return false
	}
	changed := func(msg *jsonrpc.Message) {
		if c.notice(msg, nil); msg.Method == methodTools && c.client == nil {
			others()
		}
	}
	again, refused := false, false
	c.listen(c.Life(), filter, func(msg *jsonrpc.Message) {
		switch {
		case msg.Method != methodAcknowledged:
			changed(msg)
		case again: // who knows what changed meanwhile
			for _, l := range listened {
				changed(&jsonrpc.Message{Method: l.method})
			}
		}
		again = true
	}, func(e *Error, acknowledged, granted bool) bool {
		refused = !c.Dead() && (acknowledged && !granted || !acknowledged && e != nil && e.RPC != nil)
		return refused
	})
	return !refused
}

// listen keeps a subscription open until life ends, and renews it when it ends.
// Notice handles every notification on it. Ended is called when the server has
// ended it, perhaps without an acknowledgement or granting nothing, and prevents
// the renewal by returning true.
func (c *conn) listen(life context.Context, filter json.RawMessage, notice func(*jsonrpc.Message), ended func(e *Error, acknowledged, granted bool) bool) {
	for n := 0; ; n++ {
		began := c.opts.Now()
		var acknowledged, granted atomic.Bool
		_, e := c.do(life, &request{method: methodListen, params: object(member{"notifications", filter}), onNotice: func(msg *jsonrpc.Message) {
			if msg.Method == methodAcknowledged {
				granted.Store(grants(msg.Params))
				acknowledged.Store(true)
			}
			notice(msg)
		}})
		if e != nil && c.markLost(e).Lost {
			c.Fail(e)
		}
		if c.opts.Now().Sub(began) >= stableAfter {
			n = 0
		}
		if ended(e, acknowledged.Load(), granted.Load()) || !c.opts.sleep(life, pause(n)) {
			return
		}
	}
}

// openListen opens the stream of a client's subscriptions/listen request and waits for the
// server's acknowledgement. The stream is a task of the connection.
func (c *conn) openListen(ctx context.Context, r *request) (json.RawMessage, *Error) {
	type opening struct {
		acknowledgement json.RawMessage
		refusal         *Error
	}
	filter, _ := jsonrpc.Get(r.params, "notifications")
	first := make(chan opening, 1)
	life, end := context.WithCancel(r.listen.Life)
	notice := func(msg *jsonrpc.Message) {
		if msg.Method != methodAcknowledged {
			c.notifyPeer(r.From.Peer, &c.queue, msg)
			return
		}
		select {
		case first <- opening{acknowledgement: msg.Params}:
		default:
		}
	}
	over := func(e *Error, acknowledged, _ bool) bool {
		switch {
		case acknowledged && life.Err() == nil, acknowledged && c.Dead():
			r.listen.Lost()
		case !acknowledged && e == nil:
			e = failed(errors.New("the server closed the subscription at once"))
		}
		select {
		case first <- opening{refusal: e}:
		default:
		}
		return true
	}
	if !c.Go(func() {
		defer end()
		defer context.AfterFunc(c.Life(), end)()
		c.listen(life, filter, notice, over)
	}) {
		end()
		return nil, c.Died(true)
	}
	select {
	case o := <-first:
		return o.acknowledgement, o.refusal
	case <-ctx.Done():
		end()
		e := ctxError(ctx)
		e.Sent = true
		return nil, e
	}
}

// grants reports whether an acknowledgement promises any notification.
func grants(params json.RawMessage) bool {
	promised, _ := jsonrpc.Get(params, "notifications")
	for _, value := range jsonrpc.Members(promised) {
		if string(value) == "true" || value[0] == '[' && len(slices.Collect(jsonrpc.Elements(value))) > 0 {
			return true
		}
	}
	return false
}

// relistOwn makes the connections of all sessions list their tools again.
func (s *Server) relistOwn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.slots {
		if sess := sl.opened(); sess != nil { // any other lists them anyway
			sess.conn.signal()
		}
	}
}

// pollTools makes the connections list their tools again whenever these are no
// longer fresh. It ends with the connection, or when the server gives no
// lifetime.
func (s *session) pollTools(others func()) {
	for {
		d := time.Duration(s.fresh.Load())
		if d == 0 || !s.conn.opts.sleep(s.conn.Life(), d+rand.N(d/10)) {
			return
		}
		s.conn.signal()
		others()
	}
}

// freshness returns how long a result of tools/list is valid (ttlMs, MCP
// 2026-07-28 server/utilities/caching): from 30 seconds to a day, or 0 when the
// server did not say.
func freshness(ttl json.RawMessage) time.Duration {
	ms, err := strconv.ParseInt(string(ttl), 10, 64)
	if err != nil || ms <= 0 {
		return 0
	}
	return max(time.Duration(min(ms, mostFresh.Milliseconds()))*time.Millisecond, leastFresh)
}
