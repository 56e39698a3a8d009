package mcpclient

import (
	"bufio"
	"bytes"
	"cmp"
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
	tries int           // in a row that brought nothing
}

// pause counts an attempt to continue the stream and returns how long to wait
// before it: what the server asked for, or else first, doubled each time and
// reduced at random so that clients do not return together.
func (p *Position) pause(first time.Duration) time.Duration {
	if p.tries++; p.fresh {
		p.tries, p.fresh = 1, false
	}
	if p.retry > 0 {
		return max(p.retry, first/10)
	}
	d := min(first<<min(p.tries-1, 16), maxPause)
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
	lines *bufio.Scanner
	most  int // bytes of one event
	at    *Position
	begun bool   // a line was read
	lf    bool   // a line feed belongs to the line before
	long  []byte // the beginning of a line beyond the limit
}

// NewEvents reads in and keeps at up to date. An event of more than most bytes
// is an error.
func NewEvents(in io.Reader, most int, at *Position) *Events {
	e := &Events{lines: bufio.NewScanner(in), most: most, at: at}
	e.lines.Buffer(nil, most+4096) // split refuses earlier what is too long
	e.lines.Split(e.split)
	return e
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
	for e.lines.Scan() {
		if line := e.lines.Bytes(); len(line) > 0 {
			e.field(&v, line)
			if len(v.Data) > e.most {
				return v.Event, ErrTooLong
			}
			continue
		}
		if e.end(&v); len(v.Data) > 0 {
			return v.Event, nil
		}
		v = partial{}
	}
	switch err := e.lines.Err(); {
	case errors.Is(err, ErrTooLong):
		e.field(&v, e.long)
		return v.Event, err
	case err == nil && v.has && json.Valid(v.Data):
		e.end(&v)
		return v.Event, nil
	default:
		return Event{}, cmp.Or(err, io.EOF)
	}
}

// end records the id of an event.
func (e *Events) end(v *partial) {
	if v.hasID {
		e.at.Last = v.id
	}
}

// split is a bufio.SplitFunc for lines that end with LF, CR or both. The first may
// follow a byte order mark.
func (e *Events) split(data []byte, atEnd bool) (advance int, line []byte, err error) {
	line = data
	if !e.begun {
		line = bytes.TrimPrefix(data, []byte("\ufeff"))
	} else if e.lf {
		line = bytes.TrimPrefix(data, []byte{'\n'})
	}
	skipped, end := len(data)-len(line), bytes.IndexAny(line, "\r\n")
	if end >= 0 {
		line = line[:end]
	}
	switch {
	case len(line) > e.most+len("data: "):
		e.long = bytes.Clone(line)
		return 0, nil, ErrTooLong
	case end >= 0:
		e.begun, e.lf, e.at.fresh = true, data[skipped+end] == '\r', true
		return skipped + end + 1, line, nil
	case atEnd && len(line) > 0:
		return len(data), line, nil
	}
	return 0, nil, nil
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
