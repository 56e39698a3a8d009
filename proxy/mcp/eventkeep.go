package mcp

import (
	"encoding/binary"
	"encoding/json"
)

// keptEvent is an event as a Keeper has it.
type keptEvent struct {
	number  uint64
	request json.RawMessage // the ID of the request whose stream it is, nil for a stream of no request
	last    bool            // it answers the request
	message []byte          // nil = an event without data
}

// keptHead is the length of what precedes the ID of the request: a byte for last, the number of the
// event, and the length of that ID.
const keptHead = 1 + 8 + 4

// head returns the bytes of e before its message.
func (e *keptEvent) head() []byte {
	head := make([]byte, keptHead, keptHead+len(e.request))
	if e.last {
		head[0] = 1
	}
	binary.BigEndian.PutUint64(head[1:], e.number)
	binary.BigEndian.PutUint32(head[9:], uint32(len(e.request)))
	return append(head, e.request...)
}

// readKept reads an event. It returns false for bytes that are none.
func readKept(data []byte) (e keptEvent, ok bool) {
	if len(data) < keptHead || data[0] > 1 {
		return e, false
	}
	size := uint64(binary.BigEndian.Uint32(data[9:]))
	e.number, e.last = binary.BigEndian.Uint64(data[1:]), data[0] == 1
	if data = data[keptHead:]; size > uint64(len(data)) {
		return keptEvent{}, false
	}
	if size > 0 {
		e.request = data[:size:size]
	}
	if e.message = data[size:]; len(e.message) == 0 {
		e.message = nil
	}
	return e, true
}

// keptEvents reads the events of one stream. It returns the last one and those before it, back to the
// first gap.
func keptEvents(parts [][]byte) (kept []keptEvent) {
	for _, part := range parts {
		e, ok := readKept(part)
		if !ok {
			return nil
		}
		if len(kept) > 0 && e.number != kept[len(kept)-1].number+1 {
			kept = nil
		}
		kept = append(kept, e)
	}
	return kept
}

// keepLocked keeps the events of t that are not kept, if its client may ask another replica for
// them. The caller must hold mu, and there must be a Keeper.
func (t *stream) keepLocked() {
	k := t.log.keeper
	if !t.begun || t.owner.kept == "" || t.once || t.call && t.request == nil {
		return
	}
	for t.keptTo = max(t.keptTo, t.first); t.keptTo < t.nextLocked(); t.keptTo++ {
		l := t.events[t.keptTo-t.first]
		e := keptEvent{number: t.keptTo, request: t.request, last: l.last}
		k.KeepEvent(t.owner.kept, t.id, e.number, e.head(), l.message)
	}
}

// unkeepLocked drops the kept events of t before number n. The newest is dropped only with t: it says
// what the stream is. The caller must hold mu.
func (t *stream) unkeepLocked(n uint64) {
	for ; t.keptFrom < n; t.keptFrom++ {
		if k := t.log.keeper; k != nil && t.owner.kept != "" {
			k.KeepEvent(t.owner.kept, t.id, t.keptFrom)
		}
	}
}

// leave ends the keeping of events of s: another replica has it.
func (log *eventLog) leave(s *session) {
	log.mu.Lock()
	defer log.mu.Unlock()
	s.streams.kept = ""
}

// stopKeeping ends the keeping of events: what is kept is for other replicas from now on.
func (log *eventLog) stopKeeping() {
	log.mu.Lock()
	defer log.mu.Unlock()
	log.keeper = nil
}

// restore makes a stream of s, which another replica began, from the kept events that its client has
// not had, those after n, and the answer that is sent in place of a lost one; nil = none. It does nothing when
// there is such a stream.
func (log *eventLog) restore(s *session, name string, n uint64, kept []keptEvent, answer []byte) {
	log.mu.Lock()
	defer log.mu.Unlock()
	o, newest := &s.streams, kept[len(kept)-1]
	if o.byID[name] != nil || o.ended {
		return
	}
	t := log.addLocked(&stream{
		owner: o, id: name, request: newest.request, call: newest.request != nil, begun: true, prime: primes(s),
		first: n + 1, unread: n + 1, keptFrom: kept[0].number, keptTo: max(newest.number, n) + 1,
	})
	if o.byID == nil {
		o.byID = make(map[string]*stream)
	}
	o.byID[name] = t
	for _, e := range kept {
		if e.number > n {
			t.pushLocked(outgoing{message: e.message, last: e.last})
		}
	}
	if answer != nil {
		t.pushLocked(outgoing{message: answer, last: true})
	}
	if t.done = t.call; !t.call {
		was := o.listen
		o.listen = t
		t.inheritLocked(was)
		t.inheritLocked(o.mailbox)
	}
}
