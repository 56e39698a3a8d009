package mcp

import "slices"

// Bounds of a mailbox. It is for what is said between two streams, so it is
// small; what it holds counts as kept for the session (Replay).
const (
	maxLetters = 64
	mailBytes  = 256 << 10
)

// letter is one message on its way to a client.
type letter struct {
	message  []byte    // on one line; nil = an event without data
	question *question // that it asks; nil = it asks nothing
}

// cost is what keeping l takes, in bytes.
func (l letter) cost() int { return eventCost + len(l.message) }

// lose tells whoever asks l's question that it will never be read.
func (l letter) lose() {
	if l.question != nil {
		l.question.fail(unreachable)
	}
}

// mailbox holds what a client of Streamable HTTP is told while no stream can
// carry it, for the next one that is opened. It is protected by replay.mu.
type mailbox struct {
	letters []letter
	bytes   int
}

// post sends l where it goes that belongs to no request of s, and reports false
// when it goes nowhere.
func (s *session) post(l letter) bool {
	if s.direct != nil {
		return s.direct(l)
	}
	return s.replay.home(s, l)
}

// recall takes the question q out of the mailbox of s and reports whether it was
// there, so that the client has never heard of it.
func (s *session) recall(q *question) bool {
	if s.replay == nil {
		return false
	}
	s.replay.mu.Lock()
	defer s.replay.mu.Unlock()
	o := &s.streams
	i := slices.IndexFunc(o.mail.letters, func(l letter) bool { return l.question == q })
	if i >= 0 {
		s.replay.removeLocked(o, i)
	}
	return i >= 0
}

// home sends l on the GET stream of s, which may be waiting for its reader to
// come back, or on that of the newest request in flight that has one. Else l
// waits for the next stream.
func (r *replay) home(s *session, l letter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := &s.streams
	for t := o.listen; t != nil; t = o.listen {
		if t.postLocked(l) {
			return true
		}
	}
	if t := o.newestLocked(); t != nil && t.postLocked(l) {
		return true
	}
	return r.mailLocked(o, l)
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

// mailLocked puts l into the mailbox. The oldest notification makes room for it,
// then the oldest question. The caller must hold mu.
func (r *replay) mailLocked(o *streams, l letter) bool {
	if o.ended || l.cost() > mailBytes {
		return false
	}
	for len(o.mail.letters) == maxLetters || o.mail.bytes+l.cost() > mailBytes || !r.shedLocked(o, l.cost()) {
		if len(o.mail.letters) == 0 {
			return false
		}
		i := slices.IndexFunc(o.mail.letters, func(l letter) bool { return l.question == nil })
		r.removeLocked(o, max(i, 0)).lose()
	}
	o.mail.letters = append(o.mail.letters, l)
	r.countMailLocked(o, l.cost())
	o.waiting.Store(true)
	return true
}

// removeLocked takes letter i out of the mailbox. The caller must hold mu.
func (r *replay) removeLocked(o *streams, i int) letter {
	l := o.mail.letters[i]
	o.mail.letters = slices.Delete(o.mail.letters, i, i+1)
	r.countMailLocked(o, -l.cost())
	o.waiting.Store(len(o.mail.letters) > 0)
	return l
}

// countMailLocked adds n bytes to what is kept. The caller must hold mu.
func (r *replay) countMailLocked(o *streams, n int) {
	o.mail.bytes += n
	o.bytes += n
	r.bytes += n
}

// collectLocked moves the mailbox of t's session onto t, which is new. The
// caller must hold mu.
func (t *stream) collectLocked() {
	o := t.owner
	for len(o.mail.letters) > 0 {
		t.begun = true
		t.addLocked(t.all.removeLocked(o, 0))
	}
}
