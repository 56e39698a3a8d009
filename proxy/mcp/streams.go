package mcp

import (
	"container/list"
	"slices"
	"time"
)

// sendTimeout bounds how long an event waits for a reader that is behind by a
// whole buffer. The reader then loses its connection, so that it does not hold
// up the upstream that reports.
const sendTimeout = 2 * time.Second

// A stream is a row of events for one client. It outlives its connections: a
// client that shows the id of an event gets the events after it. eventLog.mu
// protects the fields that change.
type stream struct {
	log   *eventLog
	owner *streams
	id    string
	call  bool // it ends with the answer to a call
	prime bool // its connections begin with an event without data
	once  bool // it cannot be resumed, so that an event is dropped once it is read

	events  []outgoing // kept
	first   uint64     // number of events[0]
	unread  uint64     // number of the first event that no connection has carried
	bytes   int        // cost of keeping them
	begun   bool       // the client may know the stream
	done    bool       // no event will follow
	dropped bool
	answer  *answer       // of a call that ended before the stream had begun
	reader  *reader       // nil = nobody is connected
	place   *list.Element // in eventLog.over
	since   time.Time     // when it was put there
}

// A reader is the position of one connection in a stream.
type reader struct {
	stream *stream
	next   uint64        // number of the event to read
	wake   chan struct{} // holds a token when there may be something to read
	taken  chan struct{} // holds a token when something was read
	gone   chan struct{} // closed when the stream is another reader's
}

// nextLocked returns the number of the next event. The caller must hold mu.
func (t *stream) nextLocked() uint64 { return t.first + uint64(len(t.events)) }

// send adds one message, which must not be changed afterwards; a stream that has
// ended drops it. It waits for a reader that is behind by the whole buffer, but
// not for long.
func (t *stream) send(message []byte) {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	t.begun = true
	t.addLocked(outgoing{message: message})
}

// post is send for a message that can take another way: it returns false when
// nobody can ever read t, because its client left before it heard of t.
func (t *stream) post(l outgoing) bool {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	return t.postLocked(l)
}

// postLocked is post. The caller must hold mu.
func (t *stream) postLocked(l outgoing) bool {
	if !t.openLocked() {
		return false
	}
	t.begun = true
	return t.addLocked(l)
}

// openLocked reports whether t accepts messages and has, or may get, a reader.
// The caller must hold mu.
func (t *stream) openLocked() bool { return !t.done && !t.dropped && (t.begun || t.reader != nil) }

// finish ends the stream of a call with its answer. If the client has not heard
// of the stream, its reader sends the answer in another form.
func (t *stream) finish(a answer) {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	switch {
	case !t.begun:
		t.answer = &a
	case a.body != nil && !a.silent:
		t.addLocked(outgoing{message: a.body})
	}
	t.doneLocked()
	t.signalLocked()
	t.parkLocked()
}

// doneLocked marks t as complete. The caller must hold mu.
func (t *stream) doneLocked() {
	t.done = true
	if i := slices.Index(t.owner.flying, t); i >= 0 {
		t.owner.flying = slices.Delete(t.owner.flying, i, i+1)
	}
}

// addLocked makes room for l and adds it, or returns false when the stream has
// ended. The caller must hold mu; addLocked releases it while it waits for a
// reader.
func (t *stream) addLocked(l outgoing) bool {
	var limit <-chan time.Time
	for len(t.events) > 0 && !t.fitsLocked(l.cost()) {
		if rd := t.reader; rd != nil && rd.next <= t.first {
			if limit == nil {
				timer := time.NewTimer(sendTimeout)
				defer timer.Stop()
				limit = timer.C
			}
			t.awaitLocked(rd, limit)
			continue
		}
		t.dropHeadLocked()
	}
	if t.dropped || t.done {
		return false
	}
	t.pushLocked(l)
	return true
}

// awaitLocked waits until rd has read an event, and disconnects rd when that
// takes too long. The caller must hold mu; awaitLocked releases it meanwhile.
func (t *stream) awaitLocked(rd *reader, limit <-chan time.Time) {
	t.log.mu.Unlock()
	late := false
	select {
	case <-rd.taken:
	case <-rd.gone:
	case <-limit:
		late = true
	}
	t.log.mu.Lock()
	if late && t.reader == rd {
		t.cutLocked()
	}
}

// fitsLocked reports whether there is room for cost more bytes. The caller must
// hold mu.
func (t *stream) fitsLocked(cost int) bool {
	lim := t.log.limits
	return len(t.events) < lim.Events && t.bytes+cost <= lim.Stream && t.log.shedLocked(t.owner, cost)
}

// pushLocked adds l as the next event. The caller must hold mu.
func (t *stream) pushLocked(l outgoing) {
	t.events = append(t.events, l)
	t.countLocked(l.cost())
	t.signalLocked()
}

// dropHeadLocked drops the oldest event. A question that nobody has read fails.
// The caller must hold mu.
func (t *stream) dropHeadLocked() {
	t.countLocked(-t.events[0].cost())
	if t.first >= t.unread {
		t.events[0].fail()
	}
	t.events[0] = outgoing{}
	t.events = t.events[1:]
	t.first++
}

// countLocked adds n bytes to the size of t, of its owner and of the log. The
// caller must hold mu.
func (t *stream) countLocked(n int) {
	t.bytes += n
	t.owner.bytes += n
	t.log.bytes += n
}

// signalLocked wakes the reader. The caller must hold mu.
func (t *stream) signalLocked() {
	if t.reader != nil {
		token(t.reader.wake)
	}
}

// token puts a token into c unless one is there.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// attachLocked makes a new connection the reader of t, from the oldest event on.
// It cuts off the reader before: a client that connects again must not wait for
// its dead connection to be noticed. The caller must hold mu.
func (t *stream) attachLocked() *reader {
	t.unparkLocked()
	t.cutLocked()
	rd := &reader{
		stream: t, next: t.first,
		wake: make(chan struct{}, 1), taken: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	t.reader = rd
	return rd
}

// cutLocked disconnects the reader of t. The caller must hold mu.
func (t *stream) cutLocked() {
	if t.reader != nil {
		close(t.reader.gone)
		t.reader = nil
	}
}

// detach leaves the stream because the connection has ended.
func (rd *reader) detach() {
	t := rd.stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.reader == rd {
		t.cutLocked()
		t.parkLocked()
	}
}

// begin marks the stream as known to the client. If the call ended before that,
// begin returns its answer, and the stream is not needed.
func (rd *reader) begin() *answer {
	t := rd.stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.answer == nil {
		t.begun = true
	}
	return t.answer
}

// read returns the next event and its id, which is "" for a stream that cannot
// be resumed. ok is false when there is no event yet, and over is true when
// there will be none.
func (rd *reader) read() (id string, message []byte, ok, over bool) {
	t := rd.stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.reader != rd {
		return "", nil, false, true
	}
	at := rd.next - t.first
	if at >= uint64(len(t.events)) {
		return "", nil, false, t.done
	}
	message = t.events[at].message
	t.unread = max(t.unread, rd.next+1)
	if t.once {
		t.dropHeadLocked()
	} else {
		id = eventID(t.id, rd.next)
	}
	rd.next++
	token(rd.taken)
	return id, message, true, false
}
