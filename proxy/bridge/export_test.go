package bridge

import (
	"errors"
	"io"
)

// ReadEvents gives the messages of an event stream, the id of its last event
// and why it could not be read to its end.
func ReadEvents(in io.Reader, most int) (all []string, last string, err error) {
	var at place
	events := newEvents(in, most, &at)
	for {
		data, err := events.next()
		if errors.Is(err, io.EOF) {
			return all, at.last, nil
		}
		if err != nil {
			return all, at.last, err
		}
		all = append(all, string(data))
	}
}

// ReadLines gives the messages of one JSON text as lines.
func ReadLines(data []byte) (lines []string, ok bool) {
	all, ok := read(data)
	for _, m := range all {
		lines = append(lines, string(m.line))
	}
	return lines, ok
}
