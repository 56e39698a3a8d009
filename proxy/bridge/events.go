package bridge

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

// errTooLong is reported for an event beyond the limit.
var errTooLong = errors.New("an event is too large")

const (
	maxPause = 30 * time.Second // of our own doubling
	maxRetry = time.Hour        // of what an endpoint may ask for
)

// place is how far a stream was read, across the connections that carried it.
type place struct {
	last  string        // id of the last event that had one
	retry time.Duration // the pause that the endpoint asked for, 0 = none
	fresh bool          // something has come since it was last opened
}

// pause is how long to wait before the n-th attempt, from 1, to go on reading:
// what the endpoint said, else first doubled each time, less some chance so
// that the clients of one endpoint do not come back together.
func (p *place) pause(first time.Duration, n int) time.Duration {
	if p.retry > 0 {
		return max(p.retry, first/10)
	}
	d := min(first<<min(n-1, 16), maxPause)
	return d - rand.N(d/4+1)
}

// events reads an event stream (HTML, server-sent events).
type events struct {
	in   *bufio.Reader
	most int // bytes of one event
	at   *place
	text []byte // the line being read
	lf   bool   // a line feed belongs to the line before
	head bool   // nothing was read yet
}

// newEvents reads in and keeps at up to date. An event of more than most bytes
// is an error.
func newEvents(in io.Reader, most int, at *place) *events {
	return &events{in: bufio.NewReader(in), most: most, at: at, head: true}
}

// event is one being read.
type event struct {
	data       []byte
	kind, id   string
	has, hasID bool
}

// next gives the data of the next event that is a message. At the end, io.EOF,
// an event without its last line still counts if its data is whole.
func (e *events) next() ([]byte, error) {
	var v event
	for {
		line, err := e.line()
		if err == nil {
			e.at.fresh = true
		}
		if len(line) > 0 {
			e.field(&v, line)
		}
		switch {
		case len(v.data) > e.most:
			return nil, errTooLong
		case err != nil && !(errors.Is(err, io.EOF) && v.has && json.Valid(v.data)):
			return nil, err
		case err == nil && len(line) > 0:
			continue
		}
		if v.hasID {
			e.at.last = v.id
		}
		if len(v.data) > 0 && (v.kind == "" || v.kind == "message") {
			return v.data, nil
		}
		v = event{}
		if err != nil {
			return nil, err
		}
	}
}

// line gives the next line without its end: LF, CR or both.
func (e *events) line() ([]byte, error) {
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
			return nil, errTooLong
		}
		if end >= 0 {
			return e.text, nil
		}
	}
}

// chunk peeks at what has arrived, past a byte order mark at the beginning and
// the second half of a line end.
func (e *events) chunk() ([]byte, error) {
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

// field takes one field of an event.
func (e *events) field(v *event, line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(name) {
	case "data":
		if v.has {
			v.data = append(v.data, '\n')
		}
		v.has, v.data = true, append(v.data, value...)
	case "event":
		v.kind = string(value)
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
