package eventlog

import "slices"

// Bounds of a mailbox. It serves the time between two streams, so it is
// small; its messages count as kept for the session (Limits).
const (
	maxMailbox      = 64
	maxMailboxBytes = 256 << 10
)

// Recall removes the question q from the mailbox of o. It returns true when q
// was there, so that the client never received it.
func (log *Log) Recall(o *Streams, q Question) bool {
	log.mu.Lock()
	defer log.mu.Unlock()
	m := o.mailbox
	if m == nil {
		return false
	}
	i := slices.IndexFunc(m.events, func(l Message) bool { return l.Question == q })
	if i >= 0 {
		m.removeLocked(i)
	}
	if len(m.events) == 0 {
		m.dropLocked()
	}
	return i >= 0
}

// Post adds l to the stream of o that no call began, whose reader may be
// reconnecting, or to the newest request stream. Otherwise l waits in the
// mailbox for the next stream. Post returns false when there is no room.
func (log *Log) Post(o *Streams, l Message) bool {
	log.mu.Lock()
	defer log.mu.Unlock()
	var tried *Stream // it has ended, unless another took its place while it waited for its reader
	for t := o.listen; t != nil && t != tried; t = o.listen {
		if t.postLocked(l) {
			return true
		}
		tried = t
	}
	for _, t := range slices.Backward(o.flying) {
		if t.openLocked() {
			return t.postLocked(l) || log.addToMailboxLocked(o, l)
		}
	}
	return log.addToMailboxLocked(o, l)
}

// addToMailboxLocked puts l into the mailbox. The oldest notification makes
// room, then the oldest question. The caller must hold mu.
func (log *Log) addToMailboxLocked(o *Streams, l Message) bool {
	if o.ended || l.cost() > maxMailboxBytes {
		return false
	}
	if o.mailbox == nil {
		o.mailbox = &Stream{log: log, owner: o}
	}
	m := o.mailbox
	for len(m.events) == maxMailbox || m.bytes+l.cost() > maxMailboxBytes || !log.shedLocked(o, l.cost()) {
		if len(m.events) == 0 {
			return false
		}
		i := slices.IndexFunc(m.events, func(l Message) bool { return l.Question == nil })
		m.removeLocked(max(i, 0)).lose()
		log.opts.Crowded()
	}
	m.pushLocked(l)
	o.Waiting.Store(true)
	return true
}
