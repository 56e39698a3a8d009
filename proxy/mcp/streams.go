package mcp

import (
	"container/list"
	"slices"
	"time"
)

// sendTimeout bounds how long an event waits for a reader that is behind by a
// whole buffer. After that the reader loses its connection: it must not hold up
// the upstream that reports.
const sendTimeout = 2 * time.Second

// stream is a row of events for one client. It outlives its connections: who
// shows the id of an event gets what came after it. replay.mu protects all that
// changes.
type stream struct {
	log   *eventLog
	owner *streams
	id    string
	call  bool // it ends with the answer to a call
	prime bool // its connections begin with an event without data
	once  bool // nobody can ask again, so an event that was read is forgotten

	events  []outgoing // kept
	first   uint64     // number of events[0]
	unread  uint64     // number of the first event that no connection has carried
	bytes   int        // what keeping them costs
	begun   bool       // the client may know of it
	done    bool       // nothing more will come
	dropped bool
	answer  *answer       // of a call that ended before the stream had begun
	reader  *reader       // nil = nobody is connected
	place   *list.Element // in replay.over
	since   time.Time     // when it was put there
}

// reader is one connection's place in a stream.
type reader struct {
	stream *stream
	next   uint64        // number of the event to read
	wake   chan struct{} // holds a token when there may be something to read
	taken  chan struct{} // holds a token when something was read
	gone   chan struct{} // closed when the stream is another reader's
}

// nextLocked is the number of the event that comes next. The caller must hold mu.
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

// post is send for what may go another way: it also reports false when nobody
// can ever read t, because its client has gone before it heard of it.
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

// openLocked reports whether t takes messages and has, or may have again, a
// reader. The caller must hold mu.
func (t *stream) openLocked() bool { return !t.done && !t.dropped && (t.begun || t.reader != nil) }

// finish ends the stream of a call with its answer. If the stream had not
// begun, the answer is for its reader to give in another form.
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

// doneLocked says that nothing more will come. The caller must hold mu.
func (t *stream) doneLocked() {
	t.done = true
	if i := slices.Index(t.owner.flying, t); i >= 0 {
		t.owner.flying = slices.Delete(t.owner.flying, i, i+1)
	}
}

// addLocked makes room for l and adds it, or reports false when the stream
// has ended. The caller must hold mu, which is let go while a reader is waited
// for.
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

// awaitLocked waits until rd has read something, and cuts it off when that takes
// too long. The caller must hold mu, which is let go meanwhile.
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

// fitsLocked reports whether cost more bytes have room. The caller must hold mu.
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

// dropHeadLocked forgets the oldest event. A question that nobody has read is
// not answered any more. The caller must hold mu.
func (t *stream) dropHeadLocked() {
	t.countLocked(-t.events[0].cost())
	if t.first >= t.unread {
		t.events[0].fail()
	}
	t.events[0] = outgoing{}
	t.events = t.events[1:]
	t.first++
}

// countLocked adds n bytes to what is kept. The caller must hold mu.
func (t *stream) countLocked(n int) {
	t.bytes += n
	t.owner.bytes += n
	t.log.bytes += n
}

// signalLocked tells the reader to look. The caller must hold mu.
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

// cutLocked ends the connection of t's reader. The caller must hold mu.
func (t *stream) cutLocked() {
	if t.reader != nil {
		close(t.reader.gone)
		t.reader = nil
	}
}

// detach leaves the stream: the connection is over.
func (rd *reader) detach() {
	t := rd.stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.reader == rd {
		t.cutLocked()
		t.parkLocked()
	}
}

// begin says that the client is going to hear of the stream. It gives the
// answer of a call that has ended before that; then the stream is not needed.
func (rd *reader) begin() *answer {
	t := rd.stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.answer == nil {
		t.begun = true
	}
	return t.answer
}

// read gives the next event and its id, "" for a stream that nobody can ask
// for again. ok is false when there is none, and over when there will be none.
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
