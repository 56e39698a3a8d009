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

// Replay bounds what is kept of event streams for clients that lost their
// connection. Zero fields have their default. Bytes include what keeping an
// event costs. Beyond a bound the oldest is forgotten: first streams that are
// over, then the beginning of the stream that grows; the newest event of a call
// that is in flight is always kept.
type Replay struct {
	Events  int           // of one stream; 0 = 256
	Stream  int           // bytes of one stream; 0 = 1 MiB
	Session int           // bytes of all streams of one session; 0 = 8 MiB
	Total   int           // bytes of all streams; 0 = 64 MiB
	Keep    time.Duration // how long a stream that is over can be asked for; 0 = 5 minutes
}

// withDefaults gives r with zero fields filled in.
func (r Replay) withDefaults() Replay {
	r.Events = cmp.Or(r.Events, 256)
	r.Stream = cmp.Or(r.Stream, 1<<20)
	r.Session = cmp.Or(r.Session, 8<<20)
	r.Total = cmp.Or(r.Total, 64<<20)
	r.Keep = cmp.Or(r.Keep, 5*time.Minute)
	return r
}

// What keeping costs in bytes, beside the messages.
const (
	eventCost  = 64
	streamCost = 1 << 10
)

// replay holds the event streams of all sessions. One lock serves them all: it
// is held for a few steps at a time, and calls answered as JSON never take it.
type replay struct {
	lim Replay
	now func() time.Time

	mu    sync.Mutex // protects the fields below, session.streams, and all of stream and reader
	bytes int        // kept, of all streams
	over  *list.List // of *stream: nobody reads and nothing more will come, the oldest first
}

func newReplay(opts Options) *replay {
	return &replay{lim: opts.Replay.withDefaults(), now: opts.Now, over: list.New()}
}

// streams are the event streams of one session, protected by replay.mu.
type streams struct {
	byID   map[string]*stream
	over   []*stream // those in replay.over, in its order
	bytes  int       // kept
	flying []*stream // of requests that have no answer yet, the oldest first
	listen *stream   // the one that no call began; nil = none
	mail   mailbox
	ended  bool // the session is over: nothing can be asked for

	waiting atomic.Bool // whether the mailbox holds something; read without the lock
}

// open begins a stream of s, with what waited for one, and gives its first
// reader. One that belongs to no call takes the place of the one before.
func (r *replay) open(s *session, call bool) *reader {
	t := &stream{all: r, owner: &s.streams, id: rand.Text(), call: call, prime: primes(s), bytes: streamCost}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.streams.byID == nil {
		s.streams.byID = make(map[string]*stream)
	}
	s.streams.byID[t.id] = t
	t.owner.bytes += t.bytes
	r.bytes += t.bytes
	if t.prime {
		t.pushLocked(letter{})
	}
	if call {
		s.streams.flying = append(s.streams.flying, t)
	} else {
		t.followLocked()
	}
	t.collectLocked()
	return t.attachLocked()
}

// followLocked makes t the stream of its session that belongs to no call. What
// nobody has read of the one before moves to t. The caller must hold mu.
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

// queue begins a stream of s of which nothing is kept that was read.
func (r *replay) queue(s *session) *stream {
	t := &stream{all: r, owner: &s.streams, begun: true, once: true, bytes: streamCost}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.owner.bytes += t.bytes
	r.bytes += t.bytes
	return t
}

// primes reports whether s speaks a revision in which a stream begins with an
// event that has an id and no data, so that it can be continued before anything
// was said (MCP 2025-11-25, transports: SEP-1699). Older clients take an empty
// event for a broken message.
func primes(s *session) bool { return s.version == "2025-11-25" }

// resumption is what came of asking for a stream again.
type resumption uint8

const (
	resumed resumption = iota
	unknown            // no such stream of this session, or no longer
	told               // the stream is over and its reader has had it all
)

// resume continues the stream of s that has the one event of ids, after that
// event. What the client has had is forgotten.
func (r *replay) resume(s *session, ids []string) (*reader, resumption) {
	name, n, ok := parseEventID(ids[0])
	if !ok || len(ids) > 1 {
		return nil, unknown
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := s.streams.byID[name]
	switch {
	case t == nil || n >= t.nextLocked() || n+1 < t.first:
		return nil, unknown
	case t.done && n+1 == t.nextLocked():
		return nil, told
	}
	for t.first <= n {
		t.dropHeadLocked()
	}
	if t.prime && !t.done && t.fitsLocked(eventCost) {
		t.pushLocked(letter{}) // clients give up on a stream whose connections bring no new id
	}
	return t.attachLocked(), resumed
}

// forget ends what is kept of s. Streams of calls in flight go on for who
// reads them now.
func (r *replay) forget(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.streams.ended = true
	for len(s.streams.mail.letters) > 0 {
		r.removeLocked(&s.streams, 0)
	}
	for _, t := range s.streams.byID {
		if t.reader == nil && (t.done || !t.call) {
			t.dropLocked()
		}
	}
}

// sweep forgets the streams of calls that have been over for too long.
func (r *replay) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.over.Front(); e != nil; {
		t, next := e.Value.(*stream), e.Next()
		if r.now().Sub(t.since) <= r.lim.Keep {
			return
		}
		if t.call {
			t.dropLocked()
		}
		e = next
	}
}

// parkLocked puts t where it can be asked for until there is no more room, if
// nobody reads it and nothing more will come. The caller must hold mu.
func (t *stream) parkLocked() {
	r := t.all
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

// unparkLocked takes t back for a reader. The caller must hold mu.
func (t *stream) unparkLocked() {
	if t.place == nil {
		return
	}
	t.all.over.Remove(t.place)
	t.place = nil
	if i := slices.Index(t.owner.over, t); i >= 0 {
		t.owner.over = slices.Delete(t.owner.over, i, i+1)
	}
}

// shedLocked forgets streams that are over until cost more bytes of o have
// room, and reports whether they have. The caller must hold mu.
func (r *replay) shedLocked(o *streams, cost int) bool {
	for o.bytes+cost > r.lim.Session && len(o.over) > 0 {
		o.over[0].dropLocked()
	}
	for r.bytes+cost > r.lim.Total && r.over.Len() > 0 {
		r.over.Front().Value.(*stream).dropLocked()
	}
	return o.bytes+cost <= r.lim.Session && r.bytes+cost <= r.lim.Total
}

// dropLocked forgets t. The caller must hold mu.
func (t *stream) dropLocked() {
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
	t.all.bytes -= t.bytes
	t.owner.bytes -= t.bytes
	t.events, t.bytes = nil, 0
	delete(t.owner.byID, t.id)
	if t.owner.listen == t {
		t.owner.listen = nil
	}
}
