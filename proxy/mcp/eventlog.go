package mcp

import (
	"cmp"
	"container/list"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// EventLog bounds the events kept for clients that lost their connection (SSE
// resumption). Zero fields have their default. Bytes include the cost of
// keeping an event. Beyond a bound the oldest is dropped: first streams that
// are over, then the beginning of the stream that grows; the newest event of a
// call in flight is always kept.
type EventLog struct {
	Events  int           // of one stream; 0 = 256
	Stream  int           // bytes of one stream; 0 = 1 MiB
	Session int           // bytes of all streams of one session; 0 = 8 MiB
	Total   int           // bytes of all streams; 0 = 64 MiB
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
	limits EventLog
	now    func() time.Time

	mu    sync.Mutex // protects the fields below, session.streams, and all of stream and reader
	bytes int        // kept, of all streams
	over  *list.List // of *stream: nobody reads and nothing more will come, the oldest first
}

func newEventLog(opts Options) *eventLog {
	return &eventLog{limits: opts.EventLog.withDefaults(), now: opts.Now, over: list.New()}
}

// streams are the event streams of one session. eventLog.mu protects them.
type streams struct {
	byID    map[string]*stream
	over    []*stream // those in eventLog.over, in its order
	bytes   int       // kept
	flying  []*stream // of requests that have no answer yet, the oldest first
	listen  *stream   // the one that no call began; nil = none
	mailbox mailbox
	ended   bool // the session is over: nothing can be asked for

	waiting atomic.Bool // whether the mailbox holds something; read without the lock
}

// open begins a stream of s, moves the mailbox onto it, and returns its first
// reader. A stream that belongs to no call replaces the previous one of its
// kind.
func (log *eventLog) open(s *session, call bool) *reader {
	log.mu.Lock()
	defer log.mu.Unlock()
	t := log.addLocked(&stream{owner: &s.streams, id: rand.Text(), call: call, prime: primes(s)})
	if s.streams.byID == nil {
		s.streams.byID = make(map[string]*stream)
	}
	s.streams.byID[t.id] = t
	if t.prime {
		t.pushLocked(outgoing{})
	}
	if call {
		s.streams.flying = append(s.streams.flying, t)
	} else {
		t.followLocked()
	}
	t.drainMailboxLocked()
	return t.attachLocked()
}

// followLocked makes t the stream of its session that belongs to no call.
// Unread events of the previous one move to t. The caller must hold mu.
func (t *stream) followLocked() {
	was := t.owner.listen
	t.begun, t.owner.listen = true, t
	if was == nil {
		return
	}
	left := was.events[min(max(was.unread, was.first)-was.first, uint64(len(was.events))):]
	was.unread = was.nextLocked()
	was.dropLocked()
	for _, l := range left {
		if l.message != nil {
			t.addLocked(l)
		}
	}
}

// openQueue begins a stream of o that drops each event once it is read, and
// returns its first reader. With call, the stream ends with the answer to a
// call.
func (log *eventLog) openQueue(o *streams, call bool) *reader {
	log.mu.Lock()
	defer log.mu.Unlock()
	return log.addLocked(&stream{owner: o, call: call, begun: !call, once: true}).attachLocked()
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

// resumption is the result of resuming a stream.
type resumption uint8

const (
	resumed resumption = iota
	unknown            // no such stream of this session, or no longer
	drained            // the stream is over and its reader has had it all
)

// resume continues the stream of s after the one event that ids names, and
// drops the events before it.
func (log *eventLog) resume(s *session, ids []string) (*reader, resumption) {
	name, n, ok := parseEventID(ids[0])
	if !ok || len(ids) > 1 {
		return nil, unknown
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	t := s.streams.byID[name]
	switch {
	case t == nil || n >= t.nextLocked() || n+1 < t.first:
		return nil, unknown
	case t.done && n+1 == t.nextLocked():
		return nil, drained
	}
	for t.first <= n {
		t.dropHeadLocked()
	}
	if t.prime && !t.done && t.fitsLocked(eventCost) {
		t.pushLocked(outgoing{}) // clients give up on a stream whose connections bring no new id
	}
	return t.attachLocked(), resumed
}

// forget drops the kept streams of s. Streams of calls in flight continue for
// their current readers.
func (log *eventLog) forget(s *session) {
	log.mu.Lock()
	defer log.mu.Unlock()
	s.streams.ended = true
	for len(s.streams.mailbox.messages) > 0 {
		log.removeFromMailboxLocked(&s.streams, 0)
	}
	for _, t := range s.streams.byID {
		if t.reader == nil && (t.done || !t.call) {
			t.dropLocked()
		}
	}
}

// sweep drops streams of calls that ended longer than EventLog.Keep ago.
func (log *eventLog) sweep() {
	log.mu.Lock()
	defer log.mu.Unlock()
	for e := log.over.Front(); e != nil; {
		t, next := e.Value.(*stream), e.Next()
		if log.now().Sub(t.since) <= log.limits.Keep {
			return
		}
		if t.call {
			t.dropLocked()
		}
		e = next
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
	t.place = r.over.PushBack(t)
	t.owner.over = append(t.owner.over, t)
	r.shedLocked(t.owner, 0)
}

// unparkLocked ends what parkLocked began, for a reader. The caller must hold
// mu.
func (t *stream) unparkLocked() {
	if t.place == nil {
		return
	}
	t.log.over.Remove(t.place)
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
	for log.bytes+cost > log.limits.Total && log.over.Len() > 0 {
		log.over.Front().Value.(*stream).dropLocked()
	}
	return o.bytes+cost <= log.limits.Session && log.bytes+cost <= log.limits.Total
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
	t.log.bytes -= t.bytes
	t.owner.bytes -= t.bytes
	t.events, t.bytes = nil, 0
	delete(t.owner.byID, t.id)
	if t.owner.listen == t {
		t.owner.listen = nil
	}
}
