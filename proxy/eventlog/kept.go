package eventlog

import (
	"encoding/binary"
	"encoding/json"
)

// A Keeper keeps events where the doors of other replicas find them. It is safe for concurrent use.
type Keeper interface {
	// KeepEvent keeps event n of a stream; the caller must not change data afterwards. Without
	// data it removes the event, and without a stream the record of the session. It does not wait.
	KeepEvent(session, stream string, n uint64, data ...[]byte)
}

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
func (t *Stream) keepLocked() {
	k := t.log.keeper
	if !t.begun || t.owner.Kept == "" || t.once || t.call && t.request == nil {
		return
	}
	for t.keptTo = max(t.keptTo, t.first); t.keptTo < t.nextLocked(); t.keptTo++ {
		l := t.events[t.keptTo-t.first]
		e := keptEvent{number: t.keptTo, request: t.request, last: l.Last}
		k.KeepEvent(t.owner.Kept, t.id, e.number, e.head(), l.Text)
	}
}

// unkeepLocked drops the kept events of t before number n. The newest is dropped only with t: it says
// what the stream is. The caller must hold mu.
func (t *Stream) unkeepLocked(n uint64) {
	for ; t.keptFrom < n; t.keptFrom++ {
		if k := t.log.keeper; k != nil && t.owner.Kept != "" {
			k.KeepEvent(t.owner.Kept, t.id, t.keptFrom)
		}
	}
}

// Leave ends the keeping of events of o: another replica has the session.
func (log *Log) Leave(o *Streams) {
	log.mu.Lock()
	defer log.mu.Unlock()
	o.Kept = ""
}

// StopKeeping ends the keeping of events: what is kept is for other replicas from now on.
func (log *Log) StopKeeping() {
	log.mu.Lock()
	defer log.mu.Unlock()
	log.keeper = nil
}

// mostEvents is beyond the number of any event of a stream.
const mostEvents = 1 << 40

// StreamOf returns the name of the stream whose event id names; "" = it names none.
func StreamOf(id string) string {
	name, n, ok := parseEventID(id)
	if !ok || n > mostEvents {
		return ""
	}
	return name
}

// Restore makes the stream of o that another replica began and whose event last names, from the events
// that its Keeper has: those that its client has not had. Lost returns the answer that is sent in place of
// one that was not kept, to the request with an ID. Restore returns false when the client has missed
// events that are not kept; it does nothing when there is such a stream.
func (log *Log) Restore(o *Streams, last string, parts [][]byte, lost func(request json.RawMessage) []byte) bool {
	name, n, _ := parseEventID(last)
	kept := keptEvents(parts)
	if len(kept) == 0 || kept[0].number > n+1 {
		return false
	}
	newest := kept[len(kept)-1]
	if newest.request != nil && !newest.last {
		kept = append(kept, keptEvent{number: max(newest.number, n) + 1, last: true, message: lost(newest.request)})
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if o.byID[name] != nil || o.ended {
		return true
	}
	t := log.beginLocked(&Stream{
		owner: o, id: name, request: newest.request, call: newest.request != nil, begun: true, prime: o.Prime,
		first: n + 1, unread: n + 1, keptFrom: kept[0].number, keptTo: max(newest.number, n) + 1,
	})
	for _, e := range kept {
		if e.number > n {
			t.pushLocked(Message{Text: e.message, Last: e.last})
		}
	}
	if t.done = t.call; !t.call {
		was := o.listen
		o.listen = t
		t.inheritLocked(was)
		t.inheritLocked(o.mailbox)
	}
	return true
}
