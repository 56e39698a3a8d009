package mcpclient

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"time"
)

// ErrTooLong reports an event or a line beyond the size limit.
var ErrTooLong = errors.New("an event is too large")

const (
	maxPause = 30 * time.Second // between two attempts, unless the server asks for more
	maxRetry = time.Hour        // that a server may ask for
)

// Position is how far an event stream was read, across the connections that
// carried it. The zero value is the beginning. It is not safe for concurrent use.
type Position struct {
	// Last is the id of the last event that had one, "" for none.
	Last string

	retry time.Duration // the pause that the server asked for, 0 = none
	fresh bool          // something arrived since the stream was last opened
}

// pause returns how long to wait before the n-th attempt, from 1, to continue
// the stream: what the server asked for, or else first, doubled each time and
// reduced at random so that clients do not return together.
func (p *Position) pause(first time.Duration, n int) time.Duration {
	if p.retry > 0 {
		return max(p.retry, first/10)
	}
	d := min(first<<min(n-1, 16), maxPause)
	return d - rand.N(d/4+1)
}

// Event is one event of a stream (HTML, server-sent events).
type Event struct {
	Kind string // "" or "message" for a message
	Data []byte // never empty
}

// isMessage reports whether the event carries a JSON-RPC message.
func (v *Event) isMessage() bool { return v.Kind == "" || v.Kind == "message" }

// Events reads an event stream. It is not safe for concurrent use.
type Events struct {
	in   *bufio.Reader
	most int // bytes of one event
	at   *Position
	text []byte // the line being read
	lf   bool   // a line feed belongs to the line before
	head bool   // nothing was read yet
}

// NewEvents reads in and keeps at up to date. An event of more than most bytes
// is an error.
func NewEvents(in io.Reader, most int, at *Position) *Events {
	return &Events{in: bufio.NewReader(in), most: most, at: at, head: true}
}

// partial is an event that is being read.
type partial struct {
	Event
	id         string
	has, hasID bool
}

// Next returns the next event that has data. At the end, io.EOF, an event
// without its last line still counts if its data is valid JSON. With ErrTooLong
// the event holds the beginning of the data.
func (e *Events) Next() (Event, error) {
	var v partial
	for {
		line, err := e.line()
		if err == nil {
			e.at.fresh = true
		}
		if len(line) > 0 {
			e.field(&v, line)
		}
		switch {
		case len(v.Data) > e.most || errors.Is(err, ErrTooLong):
			return v.Event, ErrTooLong
		case err != nil && !(errors.Is(err, io.EOF) && v.has && json.Valid(v.Data)):
			return Event{}, err
		case err == nil && len(line) > 0:
			continue
		}
		if v.hasID {
			e.at.Last = v.id
		}
		if len(v.Data) > 0 {
			return v.Event, nil
		}
		v = partial{}
		if err != nil {
			return Event{}, err
		}
	}
}

// line returns the next line without its end: LF, CR or both.
func (e *Events) line() ([]byte, error) {
	e.text = e.text[:0]
	for {
		chunk, err := e.chunk()
		if err != nil {
			return e.text, err
		}
		end := bytes.IndexAny(chunk, "\r\n")
		if end < 0 {
			e.text = append(e.text, chunk...)
			_, _ = e.in.Discard(len(chunk)) // it was peeked
		} else {
			e.text = append(e.text, chunk[:end]...)
			e.lf = chunk[end] == '\r'
			_, _ = e.in.Discard(end + 1) // as above
		}
		if len(e.text) > e.most+len("data: ") {
			return e.text, ErrTooLong
		}
		if end >= 0 {
			return e.text, nil
		}
	}
}

// chunk peeks at what has arrived, after a byte order mark at the beginning and
// the second half of a line end.
func (e *Events) chunk() ([]byte, error) {
	for {
		first, err := e.in.Peek(1)
		if err != nil {
			return nil, err
		}
		skip := 0
		if e.head && first[0] == 0xef {
			if mark, _ := e.in.Peek(3); string(mark) == "\ufeff" {
				skip = 3
			}
		} else if e.lf && first[0] == '\n' {
			skip = 1
		}
		e.head, e.lf = false, false
		if skip == 0 {
			return e.in.Peek(e.in.Buffered())
		}
		_, _ = e.in.Discard(skip) // it was peeked
	}
}

// field reads one field of an event.
func (e *Events) field(v *partial, line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(name) {
	case "data":
		if v.has {
			v.Data = append(v.Data, '\n')
		}
		v.has, v.Data = true, append(v.Data, value...)
	case "event":
		v.Kind = string(value)
	case "id":
		if !bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			v.id, v.hasID = string(value), true
		}
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 63); err == nil {
			e.at.retry = min(time.Duration(min(ms, uint64(maxRetry/time.Millisecond)))*time.Millisecond, maxRetry)
		}
	}
}
