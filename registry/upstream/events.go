package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// events filters an event stream (HTML, server-sent events): each message goes
// to the connection, and mcp-go gets to read an acknowledgement, or nothing.
// Ids and retry times pass, so that it can resume the stream, and to that end a
// stream of a call that breaks off after an id looks like one that was ended.
type events struct {
	c        *conn
	body     io.ReadCloser
	lines    *bufio.Reader
	from     source
	endpoint bool // "endpoint" events pass (HTTP+SSE)

	out   bytes.Buffer // for mcp-go
	err   error        // after out
	event string
	data  []byte
	has   bool   // there is data
	pass  []byte // lines that pass as they are
	named bool   // an event with an id has passed
}

// newEvents filters body.
func newEvents(c *conn, body io.ReadCloser, from source, endpoint bool) *events {
	return &events{c: c, body: body, lines: bufio.NewReader(body), from: from, endpoint: endpoint}
}

// Read implements io.Reader.
func (e *events) Read(buf []byte) (int, error) {
	for e.out.Len() == 0 && e.err == nil {
		e.err = e.next()
	}
	if e.out.Len() > 0 {
		return e.out.Read(buf)
	}
	return 0, e.err
}

// Close implements io.Closer.
func (e *events) Close() error { return e.body.Close() }

// next takes one line of the stream.
func (e *events) next() error {
	line, err := readLine(e.lines, e.c.limits.Bytes+len("data: "))
	if errors.Is(err, errTooLong) {
		return e.tooLarge(bytes.TrimPrefix(line, []byte("data:")))
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			e.field(line)
			e.dispatch()
		} else if e.named && e.from.only != nil {
			return io.EOF
		}
		return err
	}
	if len(line) == 0 {
		e.dispatch()
		return nil
	}
	e.field(line)
	if len(e.data) > e.c.limits.Bytes {
		return e.tooLarge(e.data)
	}
	return nil
}

// field takes one field of an event.
func (e *events) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(name) {
	case "data":
		if e.has {
			e.data = append(e.data, '\n')
		}
		e.has = true
		e.data = append(e.data, value...)
	case "event":
		e.event = string(value)
	case "id", "retry":
		e.named = e.named || string(name) == "id"
		e.pass = append(append(e.pass, line...), '\n')
	}
}

// dispatch ends an event.
func (e *events) dispatch() {
	data, event, has := e.data, e.event, e.has
	e.out.Write(e.pass)
	passed := len(e.pass) > 0
	e.data, e.event, e.has, e.pass = nil, "", false, nil
	var up []byte
	switch {
	case !has || len(data) == 0:
	case e.endpoint && event == "endpoint":
		e.out.WriteString("event: endpoint\n")
		up = data
	default:
		up = e.c.receive(data, e.from)
	}
	if up != nil {
		e.out.WriteString("data: ")
		e.out.Write(up)
		e.out.WriteByte('\n')
	}
	if passed || up != nil {
		e.out.WriteByte('\n')
	}
}

// tooLarge fails the request that the stream belongs to; where all share one
// stream, the connection.
func (e *events) tooLarge(head []byte) error {
	fault := tooLarge(e.c.limits.Bytes)
	p := e.from.only
	if e.from.any {
		p = e.c.table.named(head)
	}
	if p != nil && e.c.table.drop(p) {
		p.answer(nil, fault)
		e.out.WriteString("data: ")
		e.out.Write(acknowledgement(p))
		e.out.WriteString("\n\n")
	}
	if e.from.any {
		e.c.fail(&Error{Kind: Failed, Sent: true, Err: fault.Err})
	}
	e.body.Close()
	return fault
}
