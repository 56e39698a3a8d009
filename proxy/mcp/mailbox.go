package mcp

import "slices"

// Bounds of a mailbox. It serves the time between two streams, so it is
// small; its messages count as kept for the session (EventLog).
const (
	maxMailbox      = 64
	maxMailboxBytes = 256 << 10
)

// outgoing is one message on its way to a client.
type outgoing struct {
	message  []byte    // on one line; nil = an event without data
	question *question // that the message asks; nil = none
}

// cost returns the bytes that keeping o takes.
func (l outgoing) cost() int { return eventCost + len(l.message) }

// fail ends o's question: the client will never read it.
func (l outgoing) fail() {
	if l.question != nil {
		l.question.fail(unreachable)
	}
}

// mailbox holds messages for a client of Streamable HTTP while no stream can
// carry them. It is protected by eventLog.mu.
type mailbox struct {
	messages []outgoing
	bytes    int
}

// post sends o outside the streams of requests and returns false when there is
// no way.
func (s *session) post(l outgoing) bool {
	if s.direct != nil {
		return s.direct(l)
	}
	return s.events.postToSession(s, l)
}

// recall removes the question q from the mailbox of s. It returns true when q
// was there, so that the client never received it.
func (s *session) recall(q *question) bool {
	if s.events == nil {
		return false
	}
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	o := &s.streams
	i := slices.IndexFunc(o.mailbox.messages, func(l outgoing) bool { return l.question == q })
	if i >= 0 {
		s.events.removeFromMailboxLocked(o, i)
	}
	return i >= 0
}

// postToSession adds o to the GET stream of s, whose reader may be
// reconnecting, or to the newest request stream. Otherwise o waits in the
// mailbox for the next stream.
func (log *eventLog) postToSession(s *session, l outgoing) bool {
	log.mu.Lock()
	defer log.mu.Unlock()
	o := &s.streams
	for t := o.listen; t != nil; t = o.listen {
		if t.postLocked(l) {
			return true
		}
	}
	if t := o.newestLocked(); t != nil && t.postLocked(l) {
		return true
	}
	return log.addToMailboxLocked(o, l)
}

// newestLocked is the stream that the newest request in flight has with its
// client, nil for none. The caller must hold mu.
func (o *streams) newestLocked() *stream {
	for _, t := range slices.Backward(o.flying) {
		if t.openLocked() {
			return t
		}
	}
	return nil
}

// addToMailboxLocked puts o into the mailbox. The oldest notification makes
// room, then the oldest question. The caller must hold mu.
func (log *eventLog) addToMailboxLocked(o *streams, l outgoing) bool {
	if o.ended || l.cost() > maxMailboxBytes {
		return false
	}
	for len(o.mailbox.messages) == maxMailbox || o.mailbox.bytes+l.cost() > maxMailboxBytes || !log.shedLocked(o, l.cost()) {
		if len(o.mailbox.messages) == 0 {
			return false
		}
		i := slices.IndexFunc(o.mailbox.messages, func(l outgoing) bool { return l.question == nil })
		log.removeFromMailboxLocked(o, max(i, 0)).fail()
	}
	o.mailbox.messages = append(o.mailbox.messages, l)
	log.countMailboxLocked(o, l.cost())
	o.waiting.Store(true)
	return true
}

// removeFromMailboxLocked removes message i from the mailbox. The caller must
// hold mu.
func (log *eventLog) removeFromMailboxLocked(o *streams, i int) outgoing {
	l := o.mailbox.messages[i]
	o.mailbox.messages = slices.Delete(o.mailbox.messages, i, i+1)
	log.countMailboxLocked(o, -l.cost())
	o.waiting.Store(len(o.mailbox.messages) > 0)
	return l
}

// countMailboxLocked adds n bytes to what is kept. The caller must hold mu.
func (log *eventLog) countMailboxLocked(o *streams, n int) {
	o.mailbox.bytes += n
	o.bytes += n
	log.bytes += n
}

// drainMailboxLocked moves the mailbox of the session onto t, which is new. The
// caller must hold mu.
func (t *stream) drainMailboxLocked() {
	o := t.owner
	for len(o.mailbox.messages) > 0 {
		t.begun = true
		t.addLocked(t.log.removeFromMailboxLocked(o, 0))
	}
}
