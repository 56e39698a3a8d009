package eventlog

import (
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/wait"
)

// A Reader is the position of one connection in a stream.
type Reader struct {
	Stream *Stream
	next   uint64        // number of the event to read
	wake   chan struct{} // holds a token when there may be something to read
	taken  chan struct{} // holds a token when something was read
	gone   chan struct{} // closed when the stream is another reader's
}

// Detach leaves the stream because the connection has ended.
func (rd *Reader) Detach() {
	t := rd.Stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.reader == rd {
		t.cutLocked()
		t.parkLocked()
	}
}

// Begin marks the stream as known to the client. It returns false if the call ended before that: then
// the stream is not needed.
func (rd *Reader) Begin() bool {
	t := rd.Stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.early {
		return false
	}
	t.begun = true
	if t.log.keeper != nil {
		t.keepLocked()
	}
	return true
}

// Wake holds a token when there may be something to read.
func (rd *Reader) Wake() <-chan struct{} { return rd.wake }

// Gone is closed when the stream is another reader's.
func (rd *Reader) Gone() <-chan struct{} { return rd.gone }

// OfCall reports whether the stream ends with the answer to a call.
func (rd *Reader) OfCall() bool { return rd.Stream.call }

// Primed reports whether the stream begins with an event without data, by which its client can come
// back.
func (rd *Reader) Primed() bool { return rd.Stream.prime }

// Read returns the next event and its id, which is "" for a stream that cannot
// be resumed. ok is false when there is no event yet, and over is true when
// there will be none.
func (rd *Reader) Read() (id string, message []byte, ok, over bool) {
	t := rd.Stream
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.reader != rd {
		return "", nil, false, true
	}
	at := rd.next - t.first
	if at >= uint64(len(t.events)) {
		return "", nil, false, t.done
	}
	message = t.events[at].Text
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
