package mcpclient

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

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
	Data []byte // not empty, nil where Long is set
	// Long is the outline of data beyond the limit, which was read and not kept; nil
	// for any other event.
	Long *jsonrpc.Outline
}

// isMessage reports whether the event carries a JSON-RPC message.
func (v *Event) isMessage() bool { return v.Kind == "" || v.Kind == "message" }

// Events reads an event stream. It is not safe for concurrent use.
type Events struct {
	in    *bufio.Reader
	most  int // bytes of one event
	at    *Position
	begun bool // a line was read
	lf    bool // a line feed belongs to the line before

	// eager returns an event that is too long, and no request or notification, before
	// its end; skips is set while the rest of it is to be passed over, and cut while
	// that begins within a line.
	eager, skips, cut bool
}

// ErrEndless is the error of an event of more than 1 GiB.
var ErrEndless = errors.New("an event without an end")

// NewEvents reads in and keeps at up to date. The data of an event of more than most
// bytes is not kept.
func NewEvents(in io.Reader, most int, at *Position) *Events {
	return &Events{in: bufio.NewReader(in), most: most, at: at}
}

// partial is an event that is being read.
type partial struct {
	Event
	id         string
	has, hasID bool
}

// Next returns the next event that has data. At the end, io.EOF, an event
// without its last line still counts if its data is valid JSON, or is too long.
func (e *Events) Next() (Event, error) {
	var v partial
	for {
		isBlank, err := e.line(&v)
		hasData := v.Long != nil || len(v.Data) > 0
		switch {
		case e.skips && err == nil:
			e.skips, v = !isBlank, partial{}
			continue
		case err != nil && (!errors.Is(err, io.EOF) || e.skips || v.Long == nil && !(v.has && json.Valid(v.Data))):
			return Event{}, err
		case err == nil && e.eager && v.Long != nil && !v.Long.Asks():
			e.skips = !isBlank
		case err == nil && !isBlank:
			continue
		}
		if v.hasID {
			e.at.Last = v.id
		}
		if hasData {
			return v.Event, nil
		}
		v = partial{}
	}
}

// line reads one line into v and reports whether it is empty. Lines end with LF, CR or
// both; the first may follow a byte order mark. With an error it has read what there was
// of a line.
func (e *Events) line(v *partial) (isBlank bool, err error) {
	if !e.begun {
		e.skip("\ufeff")
	} else if e.lf {
		e.skip("\n")
	}
	var line []byte
	cut := e.cut
	e.cut = false
	isKept, isData := true, false // whether line has all that was read; else whether that is data
	for {
		if _, err := e.in.Peek(1); err != nil {
			if isKept && len(line) > 0 {
				e.field(v, line)
			}
			return false, err
		}
		piece, _ := e.in.Peek(e.in.Buffered())
		end := bytes.IndexAny(piece, "\r\n")
		if end >= 0 {
			e.begun, e.lf, e.at.fresh = true, piece[end] == '\r', true
			piece = piece[:end]
		}
		switch {
		case isKept:
			line = append(line, piece...)
			isKept = len(line) <= e.most+len("data: ")
			if isKept && end >= 0 || !isKept && bytes.HasPrefix(line, []byte("data:")) {
				isData = e.field(v, line)
			}
		case isData:
			_, _ = v.Long.Write(piece) // it never fails
		}
		_, _ = e.in.Discard(len(piece) + min(end+1, 1))
		switch {
		case end >= 0:
			return len(line) == 0 && !cut, nil
		case v.Long != nil && v.Long.Endless():
			return false, ErrEndless
		case v.Long != nil && e.eager && !v.Long.Asks():
			e.cut = true
			return false, nil
		}
	}
}

// skip reads over text, if it comes next.
func (e *Events) skip(text string) {
	if next, _ := e.in.Peek(len(text)); string(next) == text {
		_, _ = e.in.Discard(len(text))
	}
}

// field reads one field of an event, or the beginning of a field that is too long, and
// reports whether it is data.
func (e *Events) field(v *partial, line []byte) (isData bool) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(name) {
	case "data":
		if v.has {
			value = append([]byte{'\n'}, value...)
		}
		v.has = true
		e.add(v, value)
		return true
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
	return false
}

// add adds data to v.
func (e *Events) add(v *partial, data []byte) {
	switch {
	case v.Long != nil:
		_, _ = v.Long.Write(data)
	case len(v.Data)+len(data) > e.most:
		v.Long, v.Data = jsonrpc.OutlineOf(slices.Concat(v.Data, data)), nil
	default:
		v.Data = append(v.Data, data...)
	}
}
