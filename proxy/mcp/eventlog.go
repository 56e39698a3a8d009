package mcp

import (
	"bytes"
	"cmp"
	"container/list"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// EventLog bounds the events kept for clients that lost their connection (SSE
// resumption). Zero fields have their default. Bytes include the cost of
// keeping an event. Beyond a bound the oldest is dropped: first streams that
// are over, then the beginning of the stream that grows; the newest event of a
// call in flight is always kept. Beyond Total, principals that have more than an
// equal share of it lose events, and nobody else does.
type EventLog struct {
	Events  int           // of one stream; 0 = 256
	Stream  int           // bytes of one stream; 0 = 1 MiB
	Session int           // bytes of all streams of one session; 0 = 8 MiB
	Total   int           // bytes of all streams, of which twice as many exist at the most; 0 = 64 MiB
	Keep    time.Duration // how long a stream that is over can be asked for; 0 = 5 minutes
}

// withDefaults returns l with zero fields set.
func (l EventLog) withDefaults() EventLog {
	l.Events = cmp.Or(l.Events, 256)
	l.Stream = cmp.Or(l.Stream, 1<<20)
	l.Session = cmp.Or(l.Session, 8<<20)
	l.Total = cmp.Or(l.Total, 64<<20)
	l.Keep = cmp.Or(l.Keep, 5*time.Minute)
	return l
}

// The cost of keeping an event or a stream, in bytes, in addition to its messages.
const (
	eventCost  = 64
	streamCost = 1 << 10
)

// eventLog holds the event streams of all sessions. One lock serves them all;
// it is held briefly, and calls answered as JSON never take it.
type eventLog struct {
	limits  EventLog
	now     func() time.Time
	crowded func()         // called for each event that is dropped and was never sent; it must not block
	slow    func(by owner) // called for each client that did not read in time

	mu     sync.Mutex // protects the fields below, session.streams, and all of stream and reader
	keeper Keeper     // keeps events for other replicas; nil = there are none
	bytes  int        // kept, of all streams
	held   map[owner]*holding
}

// streams are the event streams of one session. eventLog.mu protects them.
type streams struct {
	owner   owner
	byID    map[string]*stream
	over    []*stream // those in holding.over, in its order
	bytes   int       // kept
	flying  []*stream // of requests that have no answer yet, the oldest first
	listen  *stream   // the one that no call began; nil = none
	mailbox *stream   // messages that wait for the next stream; nil = none
	ended   bool      // the session is over: nothing can be asked for
	kept    string    // the session under whose ID a Keeper keeps them; "" = none does

	waiting atomic.Bool // whether there is a mailbox; read without the lock
}

// open begins a stream of s, moves the mailbox onto it, and returns its first
// reader. A stream that belongs to no call replaces the previous one of its
// kind. The reader of an ended session is over at once. request is the ID of the one
// request that the stream is for, if it is.
func (log *eventLog) open(s *session, call bool, request json.RawMessage) *reader {
	log.mu.Lock()
	defer log.mu.Unlock()
	o := &s.streams
	if log.keeper == nil {
		request = nil
	}
	t := log.addLocked(&stream{owner: o, id: rand.Text(), call: call, request: bytes.Clone(request), begun: !call, done: o.ended && !call, prime: primes(s)})
	if o.byID == nil {
		o.byID = make(map[string]*stream)
	}
	o.byID[t.id] = t
	if t.prime {
		t.pushLocked(outgoing{})
	}
	was := o.listen
	if call {
		o.flying = append(o.flying, t)
	} else {
		o.listen = t
		t.inheritLocked(was)
	}
	t.inheritLocked(o.mailbox)
	return t.attachLocked()
}

// inheritLocked moves what nobody has read of was, which may be nil, to t and
// drops was. The caller must hold mu.
func (t *stream) inheritLocked(was *stream) {
	if was == nil {
		return
	}
	left := was.events[min(max(was.unread, was.first)-was.first, uint64(len(was.events))):]
	was.unread = was.nextLocked()
	was.dropLocked()
	for _, l := range left {
		if l.message != nil {
			t.begun = true
			t.addLocked(l)
		}
	}
}

// openQueue begins a stream of o that drops each event once it is read, and
// returns its first reader. With call, the stream ends with the answer to a
// call; without, it ends with the session.
func (log *eventLog) openQueue(o *streams, call bool) *reader {
	log.mu.Lock()
	defer log.mu.Unlock()
	t := log.addLocked(&stream{owner: o, call: call, begun: !call, once: true})
	if !call {
		o.listen = t
	}
	return t.attachLocked()
}

// addLocked makes t a stream of log. The caller must hold mu.
func (log *eventLog) addLocked(t *stream) *stream {
	t.log = log
	t.countLocked(streamCost)
	return t
}

// primes reports whether the streams of s begin with an event that has an id
// and no data, so that a client can resume them before the first message (MCP
// 2025-11-25, transports: SEP-1699). Clients of older revisions take an empty
// event for a broken message.
func primes(s *session) bool { return s.version == "2025-11-25" }

// resume continues the stream of s after the one event that ids names, and
// drops the events before it. It returns false when s has no such stream, or no
// longer, and no reader when the stream is over and its reader has had it all.
func (log *eventLog) resume(s *session, ids []string) (*reader, bool) {
	name, n, ok := parseEventID(ids[0])
	if !ok || len(ids) > 1 {
		return nil, false
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	t := s.streams.byID[name]
	switch {
	case t == nil || n >= t.nextLocked() || n+1 < t.first:
		return nil, false
	case t.done && n+1 == t.nextLocked():
		return nil, true
	}
	for t.first <= n {
		t.dropHeadLocked()
	}
	if t.prime && !t.done && t.fitsLocked(eventCost) {
		t.pushLocked(outgoing{}) // clients give up on a stream whose connections bring no new id
	}
	return t.attachLocked(), true
}

// forget drops the kept streams of s and ends the one that belongs to no call.
// Streams of calls in flight continue for their current readers.
func (log *eventLog) forget(s *session) {
	log.mu.Lock()
	defer log.mu.Unlock()
	o := &s.streams
	o.ended = true
	if log.keeper != nil && o.kept != "" {
		log.keeper.KeepEvent(o.kept, "", 0)
	}
	if t := o.listen; t != nil {
		t.done = true
		t.signalLocked()
	}
	if o.mailbox != nil {
		o.mailbox.dropLocked()
	}
	for _, t := range o.byID {
		if t.reader == nil && t.done {
			t.dropLocked()
		}
	}
}

// listening reports whether a client reads the stream of s that belongs to no
// call.
func (log *eventLog) listening(s *session) bool {
	log.mu.Lock()
	defer log.mu.Unlock()
	return s.streams.listen != nil && s.streams.listen.reader != nil
}

// sweep drops streams of calls that ended longer than EventLog.Keep ago.
func (log *eventLog) sweep() {
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, h := range log.held {
		for e := h.over.Front(); e != nil; {
			t, next := e.Value.(*stream), e.Next()
			if log.now().Sub(t.since) <= log.limits.Keep {
				break
			}
			if t.call {
				t.dropLocked()
			}
			e = next
		}
	}
}

// parkLocked keeps t for a client that may resume it, if nobody reads t and it
// is complete. The caller must hold mu.
func (t *stream) parkLocked() {
	r := t.log
	switch {
	case t.dropped || t.reader != nil || t.call && !t.done:
		return
	case t.owner.ended || t.once || !t.begun: // nobody can ask for it
		t.dropLocked()
		return
	}
	t.since = r.now()
	t.place = r.held[t.owner.owner].over.PushBack(t)
	t.owner.over = append(t.owner.over, t)
	r.shedLocked(t.owner, 0)
}

// unparkLocked ends what parkLocked began, for a reader. The caller must hold
// mu.
func (t *stream) unparkLocked() {
	if t.place == nil {
		return
	}
	t.log.held[t.owner.owner].over.Remove(t.place)
	t.place = nil
	if i := slices.Index(t.owner.over, t); i >= 0 {
		t.owner.over = slices.Delete(t.owner.over, i, i+1)
	}
}

// shedLocked drops complete streams until cost more bytes of o fit, and reports
// whether they do. The caller must hold mu.
func (log *eventLog) shedLocked(o *streams, cost int) bool {
	for o.bytes+cost > log.limits.Session && len(o.over) > 0 {
		o.over[0].dropLocked()
	}
	for log.bytes+cost > log.limits.Total {
		hog := log.hogLocked(o, cost)
		if hog == nil {
			break
		}
		hog.over.Front().Value.(*stream).dropLocked()
	}
	return o.bytes+cost <= log.limits.Session && (log.bytes+cost <= log.limits.Total || log.sharedLocked(o.owner, cost))
}

// dropLocked drops t and its events. The caller must hold mu.
func (t *stream) dropLocked() {
	if t.dropped {
		return
	}
	t.dropped = true
	for i, l := range t.events {
		if t.first+uint64(i) >= t.unread {
			l.fail()
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
		t.owner.waiting.Store(false)
	}
}

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

	request          json.RawMessage // the ID of the one request that it is for, nil without a Keeper
	keptFrom, keptTo uint64          // the numbers of the events that the Keeper was given, keptTo excluded

	events  []outgoing // kept
	first   uint64     // number of events[0]
	unread  uint64     // number of the first event that no connection has carried
	bytes   int        // cost of keeping them
	begun   bool       // the client may know the stream
	done    bool       // no event will follow
	dropped bool
	answer  *answer       // of a call that ended before the stream had begun
	reader  *reader       // nil = nobody is connected
	place   *list.Element // in holding.over
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
		t.addLocked(outgoing{message: a.message(), last: true})
	}
	t.done = true
	t.owner.flying = slices.DeleteFunc(t.owner.flying, func(other *stream) bool { return other == t })
	t.signalLocked()
	t.parkLocked()
}

// addLocked makes room for l and adds it, or returns false when the stream has
// ended. The caller must hold mu; addLocked releases it while it waits for a
// reader.
func (t *stream) addLocked(l outgoing) bool {
	var limit <-chan time.Time
	for len(t.events) > 0 && !t.fitsLocked(l.cost()) {
		if rd := t.reader; rd != nil && rd.next <= t.first {
			if limit == nil {
				limit = time.After(sendTimeout)
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
		t.log.slow(t.owner.owner)
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
	if t.log.keeper != nil {
		t.keepLocked()
	}
}

// dropHeadLocked drops the oldest event. A question that nobody has read fails.
// The caller must hold mu.
func (t *stream) dropHeadLocked() {
	l := t.removeLocked(0)
	if t.first <= t.unread {
		return
	}
	l.fail()
	if l.message != nil {
		t.log.crowded()
	}
}

// removeLocked removes and returns one of the events. The caller must hold mu.
func (t *stream) removeLocked(i int) outgoing {
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
func (t *stream) countLocked(n int) {
	t.bytes += n
	t.owner.bytes += n
	t.log.bytes += n
	by := t.owner.owner
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
func (t *stream) signalLocked() {
	if t.reader != nil {
		wait.Signal(t.reader.wake)
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
		if t.log.keeper != nil {
			t.keepLocked()
		}
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
	wait.Signal(rd.taken)
	return id, message, true, false
}

// streamID is the length of a stream's name, which rand.Text makes.
const streamID = 26

// eventID returns the id of event n of a stream. A stream's name is random, so
// an id reveals only how many events its own reader has had.
func eventID(stream string, n uint64) string {
	return stream + "-" + strconv.FormatUint(n, 10)
}

// parseEventID splits an id that eventID made. It returns false for any other
// spelling.
func parseEventID(text string) (stream string, n uint64, ok bool) {
	stream, digits, _ := strings.Cut(text, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	return stream, n, err == nil && len(stream) == streamID && eventID(stream, n) == text
}
