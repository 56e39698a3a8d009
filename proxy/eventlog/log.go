// Package eventlog keeps the event streams of MCP clients, so that a client that lost its connection
// gets what it has not had (SSE resumption: Last-Event-ID). A Log has the streams of all sessions, a
// Stream is a row of messages for one client, and a Reader is the position of one connection in it:
//
//	rd := log.Open(&session.streams, true, nil)
//	defer rd.Detach()
//	rd.Stream.Send(message)
//	id, message, ok, over := rd.Read()
//
// A stream outlives its connections: a client that shows the ID of an event gets the events after it.
// What is kept is bounded by Limits. One lock serves all streams of a Log; it is held briefly. All types
// are safe for concurrent use.
package eventlog

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/share"
)

// Limits bound the events that are kept. Zero fields have their default. Bytes include the cost of
// keeping an event. Beyond a bound the oldest is dropped: first streams that
// are over, then the beginning of the stream that grows; the newest event of a
// call in flight is always kept. Beyond Total, principals that have more than an
// equal share of it lose events, and nobody else does.
type Limits struct {
	Events  int           // of one stream; 0 = 256
	Stream  int           // bytes of one stream; 0 = 1 MiB
	Session int           // bytes of all streams of one session; 0 = 8 MiB
	Total   int           // bytes of all streams, of which twice as many exist at the most; 0 = 64 MiB
	Keep    time.Duration // how long a stream that is over can be asked for; 0 = 5 minutes
}

// withDefaults returns l with zero fields set.
func (l Limits) withDefaults() Limits {
	l.Events = cmp.Or(l.Events, 256)
	l.Stream = cmp.Or(l.Stream, 1<<20)
	l.Session = cmp.Or(l.Session, 8<<20)
	l.Total = cmp.Or(l.Total, 64<<20)
	l.Keep = cmp.Or(l.Keep, 5*time.Minute)
	return l
}

// A Message is one message on its way to a client.
type Message struct {
	Text     []byte   // on one line; nil = an event without data
	Question Question // that the message asks; nil = none
	Last     bool     // it answers the request that its stream is for
}

// A Question waits for an answer of the client. Its dynamic type is comparable.
type Question interface {
	// Lose is called when the client will never read the question. It must not block.
	Lose()
}

// The cost of keeping an event or a stream, in bytes, in addition to its messages.
const (
	eventCost  = 64
	streamCost = 1 << 10
)

// cost returns the bytes that keeping m takes.
func (m Message) cost() int { return eventCost + len(m.Text) }

// lose ends m's question: the client will never read it.
func (m Message) lose() {
	if m.Question != nil {
		m.Question.Lose()
	}
}

// Options are the parts of a Log. All but Limits and Keeper are required.
type Options struct {
	Limits  Limits
	Now     func() time.Time
	Crowded func()               // called for each message that is dropped and was never sent; it must not block
	Slow    func(by share.Owner) // called for each client that did not read within SendTimeout
	Keeper  Keeper               // keeps events for other replicas; nil = there are none
}

// Log holds the event streams of all sessions.
type Log struct {
	opts Options

	mu     sync.Mutex // protects the fields below, and all of Streams, Stream and Reader
	keeper Keeper     // Options.Keeper until StopKeeping
	bytes  int        // kept, of all streams
	held   map[share.Owner]*holding
}

// New returns a Log without streams.
func New(opts Options) *Log {
	opts.Limits = opts.Limits.withDefaults()
	return &Log{opts: opts, keeper: opts.Keeper, held: make(map[share.Owner]*holding)}
}

// Streams are the event streams of one session. Owner, Prime and Kept are set before the first use.
type Streams struct {
	Owner share.Owner // whose session it is
	// Prime begins each connection with an event that has an id and no data, so that a client can
	// resume a stream before the first message.
	Prime bool
	Kept  string // the session under whose ID the Keeper keeps them; "" = none does

	byID    map[string]*Stream
	over    []*Stream // those in holding.over, in its order
	bytes   int       // kept
	flying  []*Stream // of requests that have no answer yet, the oldest first
	listen  *Stream   // the one that no call began; nil = none
	mailbox *Stream   // messages that wait for the next stream; nil = none
	ended   bool      // the session is over: nothing can be asked for

	// Waiting says whether messages wait for the next stream. The Log stores it; it is read without
	// the lock.
	Waiting atomic.Bool
}

// Open begins a stream of o, moves the mailbox onto it, and returns its first
// reader. A stream that belongs to no call replaces the previous one of its
// kind. The reader of an ended session is over at once. request is the ID of the one
// request that the stream is for, if it is.
func (log *Log) Open(o *Streams, call bool, request json.RawMessage) *Reader {
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.keeper == nil {
		request = nil
	}
	t := log.beginLocked(&Stream{owner: o, id: rand.Text(), call: call, request: bytes.Clone(request), begun: !call, done: o.ended && !call, prime: o.Prime})
	if t.prime {
		t.pushLocked(Message{})
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
func (t *Stream) inheritLocked(was *Stream) {
	if was == nil {
		return
	}
	left := was.events[min(max(was.unread, was.first)-was.first, uint64(len(was.events))):]
	was.unread = was.nextLocked()
	was.dropLocked()
	for _, l := range left {
		if l.Text != nil {
			t.begun = true
			t.addLocked(l)
		}
	}
}

// OpenQueue begins a stream of o that drops each event once it is read, and
// returns its first reader. With call, the stream ends with the answer to a
// call; without, it ends with the session.
func (log *Log) OpenQueue(o *Streams, call bool) *Reader {
	log.mu.Lock()
	defer log.mu.Unlock()
	t := log.beginLocked(&Stream{owner: o, call: call, begun: !call, once: true})
	if !call {
		o.listen = t
	}
	return t.attachLocked()
}

// beginLocked makes t a stream of log, which can be resumed if it has an id. The caller must hold mu.
func (log *Log) beginLocked(t *Stream) *Stream {
	t.log = log
	t.countLocked(streamCost)
	if t.id != "" {
		if t.owner.byID == nil {
			t.owner.byID = make(map[string]*Stream)
		}
		t.owner.byID[t.id] = t
	}
	return t
}

// Resume continues the stream of o after the one event that ids names, and
// drops the events before it. It returns false when o has no such stream, or no
// longer, and no reader when the stream is over and its reader has had it all.
func (log *Log) Resume(o *Streams, ids []string) (*Reader, bool) {
	name, n, ok := parseEventID(ids[0])
	if !ok || len(ids) > 1 {
		return nil, false
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	t := o.byID[name]
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
		t.pushLocked(Message{}) // clients give up on a stream whose connections bring no new id
	}
	return t.attachLocked(), true
}

// Forget drops the kept streams of o and ends the one that belongs to no call.
// Streams of calls in flight continue for their current readers.
func (log *Log) Forget(o *Streams) {
	log.mu.Lock()
	defer log.mu.Unlock()
	o.ended = true
	if log.keeper != nil && o.Kept != "" {
		log.keeper.KeepEvent(o.Kept, "", 0)
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

// Listening reports whether a client reads the stream of o that belongs to no
// call.
func (log *Log) Listening(o *Streams) bool {
	log.mu.Lock()
	defer log.mu.Unlock()
	return o.listen != nil && o.listen.reader != nil
}

// Sweep drops streams of calls that ended longer than Limits.Keep ago.
func (log *Log) Sweep() {
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, h := range log.held {
		for e := h.over.Front(); e != nil; {
			t, next := e.Value.(*Stream), e.Next()
			if log.opts.Now().Sub(t.since) <= log.opts.Limits.Keep {
				break
			}
			if t.call {
				t.dropLocked()
			}
			e = next
		}
	}
}
