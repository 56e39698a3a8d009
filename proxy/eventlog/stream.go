package eventlog

import (
	"container/list"
	"encoding/json"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// SendTimeout bounds how long an event waits for a reader that is behind by a
// whole buffer. The reader then loses its connection, so that it does not hold
// up the upstream that reports.
const SendTimeout = 2 * time.Second

// A Stream is a row of events for one client. It outlives its connections: a
// client that shows the id of an event gets the events after it. Log.mu
// protects the fields that change.
type Stream struct {
	log   *Log
	owner *Streams
	id    string
	call  bool // it ends with the answer to a call
	prime bool // its connections begin with an event without data
	once  bool // it cannot be resumed, so that an event is dropped once it is read

	request          json.RawMessage // the ID of the one request that it is for, nil without a Keeper
	keptFrom, keptTo uint64          // the numbers of the events that the Keeper was given, keptTo excluded

	events  []Message // kept
	first   uint64    // number of events[0]
	unread  uint64    // number of the first event that no connection has carried
	bytes   int       // cost of keeping them
	begun   bool      // the client may know the stream
	done    bool      // no event will follow
	dropped bool
	early   bool          // its call ended before the stream had begun
	reader  *Reader       // nil = nobody is connected
	place   *list.Element // in holding.over
	since   time.Time     // when it was put there
}

// nextLocked returns the number of the next event. The caller must hold mu.
func (t *Stream) nextLocked() uint64 { return t.first + uint64(len(t.events)) }

// Send adds one message, which must not be changed afterwards; a stream that has
// ended drops it. It waits for a reader that is behind by the whole buffer, but
// not for long.
func (t *Stream) Send(message []byte) {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	t.begun = true
	t.addLocked(Message{Text: message})
}

// Post is Send for a message that can take another way: it returns false when
// nobody can ever read t, because its client left before it heard of t.
func (t *Stream) Post(l Message) bool {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	return t.postLocked(l)
}

// postLocked is Post. The caller must hold mu.
func (t *Stream) postLocked(l Message) bool {
	if !t.openLocked() {
		return false
	}
	t.begun = true
	return t.addLocked(l)
}

// openLocked reports whether t accepts messages and has, or may get, a reader.
// The caller must hold mu.
func (t *Stream) openLocked() bool { return !t.done && !t.dropped && (t.begun || t.reader != nil) }

// Finish ends the stream of a call with what answer returns, nil for no answer. If the client has
// not heard of the stream, answer is not called: Begin returns false, and the call is answered in
// another form.
func (t *Stream) Finish(answer func() []byte) {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if !t.begun {
		t.early = true
	} else if message := answer(); message != nil {
		t.addLocked(Message{Text: message, Last: true})
	}
	t.done = true
	t.owner.flying = slices.DeleteFunc(t.owner.flying, func(other *Stream) bool { return other == t })
	t.signalLocked()
	t.parkLocked()
}

// addLocked makes room for l and adds it, or returns false when the stream has
// ended. The caller must hold mu; addLocked releases it while it waits for a
// reader.
func (t *Stream) addLocked(l Message) bool {
	var limit <-chan time.Time
	for len(t.events) > 0 && !t.fitsLocked(l.cost()) {
		if rd := t.reader; rd != nil && rd.next <= t.first {
			if limit == nil {
				limit = time.After(SendTimeout)
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
func (t *Stream) awaitLocked(rd *Reader, limit <-chan time.Time) {
	t.log.mu.Unlock()
	late := false
	select {
	case <-rd.taken:
	case <-rd.gone:
	case <-limit:
		late = true
		t.log.opts.Slow(t.owner.Owner)
	}
	t.log.mu.Lock()
	if late && t.reader == rd {
		t.cutLocked()
	}
}

// fitsLocked reports whether there is room for cost more bytes. The caller must
// hold mu.
func (t *Stream) fitsLocked(cost int) bool {
	lim := t.log.opts.Limits
	return len(t.events) < lim.Events && t.bytes+cost <= lim.Stream && t.log.shedLocked(t.owner, cost)
}

// pushLocked adds l as the next event. The caller must hold mu.
func (t *Stream) pushLocked(l Message) {
	t.events = append(t.events, l)
	t.countLocked(l.cost())
	t.signalLocked()
	if t.log.keeper != nil {
		t.keepLocked()
	}
}

// dropHeadLocked drops the oldest event. A question that nobody has read fails.
// The caller must hold mu.
func (t *Stream) dropHeadLocked() {
	l := t.removeLocked(0)
	if t.first <= t.unread {
		return
	}
	l.lose()
	if l.Text != nil {
		t.log.opts.Crowded()
	}
}

// removeLocked removes and returns one of the events. The caller must hold mu.
func (t *Stream) removeLocked(i int) Message {
	l := t.events[i]
	t.countLocked(-l.cost())
	t.events = slices.Delete(t.events, i, i+1)
	t.first++
	if t.keptTo > 0 {
		t.unkeepLocked(min(t.first, t.keptTo-1))
	}
	return l
}

// countLocked adds n bytes to the size of t, of its session, of its principal and of
// the log. The caller must hold mu.
func (t *Stream) countLocked(n int) {
	t.bytes += n
	t.owner.bytes += n
	t.log.bytes += n
	by := t.owner.Owner
	h := t.log.held[by]
	if h == nil {
		h = &holding{}
		t.log.held[by] = h
	}
	if h.bytes += n; h.bytes == 0 {
		delete(t.log.held, by)
	}
}

// signalLocked wakes the reader. The caller must hold mu.
func (t *Stream) signalLocked() {
	if t.reader != nil {
		wait.Signal(t.reader.wake)
	}
}

// attachLocked makes a new connection the reader of t, from the oldest event on.
// It cuts off the reader before: a client that connects again must not wait for
// its dead connection to be noticed. The caller must hold mu.
func (t *Stream) attachLocked() *Reader {
	t.unparkLocked()
	t.cutLocked()
	rd := &Reader{
		Stream: t, next: t.first,
		wake: make(chan struct{}, 1), taken: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	t.reader = rd
	return rd
}

// cutLocked disconnects the reader of t. The caller must hold mu.
func (t *Stream) cutLocked() {
	if t.reader != nil {
		close(t.reader.gone)
		t.reader = nil
	}
}

// parkLocked keeps t for a client that may resume it, if nobody reads t and it
// is complete. The caller must hold mu.
func (t *Stream) parkLocked() {
	r := t.log
	switch {
	case t.dropped || t.reader != nil || t.call && !t.done:
		return
	case t.owner.ended || t.once || !t.begun: // nobody can ask for it
		t.dropLocked()
		return
	}
	t.since = r.opts.Now()
	t.place = r.held[t.owner.Owner].over.PushBack(t)
	t.owner.over = append(t.owner.over, t)
	r.shedLocked(t.owner, 0)
}

// unparkLocked ends what parkLocked began, for a reader. The caller must hold
// mu.
func (t *Stream) unparkLocked() {
	if t.place == nil {
		return
	}
	t.log.held[t.owner.Owner].over.Remove(t.place)
	t.place = nil
	if i := slices.Index(t.owner.over, t); i >= 0 {
		t.owner.over = slices.Delete(t.owner.over, i, i+1)
	}
}

// dropLocked drops t and its events. The caller must hold mu.
func (t *Stream) dropLocked() {
	if t.dropped {
		return
	}
	t.dropped = true
	for i, l := range t.events {
		if t.first+uint64(i) >= t.unread {
			l.lose()
		}
	}
	t.unparkLocked()
	t.cutLocked()
	t.unkeepLocked(t.keptTo)
	t.countLocked(-t.bytes)
	t.events = nil
	delete(t.owner.byID, t.id)
	switch t {
	case t.owner.listen:
		t.owner.listen = nil
	case t.owner.mailbox:
		t.owner.mailbox = nil
		t.owner.Waiting.Store(false)
	}
}
