package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http/httputil"
	"strconv"
)

// A message is one HTTP/1.1 request or answer, read by the load client and by the
// upstream. Both are on plain sockets, because what they cost is a part of every
// figure: net/http on both sides would take more CPU than the peers under test. A
// message's slices are valid until its next read.
type message struct {
	start   []byte // request line or status line
	session []byte // Mcp-Session-Id
	events  bool   // the body is an event stream
	chunked bool
	length  int // of the body; -1 = not said
	body    []byte
}

// read reads the head and the body.
func (m *message) read(r *bufio.Reader) error {
	if err := m.readHead(r); err != nil {
		return err
	}
	if m.chunked {
		return m.readChunks(r)
	}
	n := max(m.length, 0)
	if cap(m.body) < n {
		m.body = make([]byte, n)
	}
	m.body = m.body[:n]
	_, err := io.ReadFull(r, m.body)
	return err
}

func (m *message) readHead(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	*m = message{start: append(m.start[:0], bytes.TrimRight(line, "\r\n")...), session: m.session[:0], body: m.body[:0], length: -1}
	for {
		line, err = r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if err := m.header(name, bytes.TrimSpace(value)); err != nil {
			return err
		}
	}
}

// header keeps what matters of one header line.
func (m *message) header(name, value []byte) (err error) {
	switch {
	case is(name, "Content-Length"):
		m.length, err = strconv.Atoi(string(value))
	case is(name, "Mcp-Session-Id"):
		m.session = append(m.session, value...)
	case is(name, "Transfer-Encoding"):
		m.chunked = is(value, "chunked")
	case is(name, "Content-Type"):
		m.events = bytes.HasPrefix(value, []byte("text/event-stream"))
	}
	return err
}

func (m *message) readChunks(r *bufio.Reader) error {
	body := bytes.NewBuffer(m.body[:0])
	_, err := body.ReadFrom(httputil.NewChunkedReader(r))
	m.body = body.Bytes()
	if err == nil {
		_, err = r.ReadSlice('\n') // the empty line that ends the trailer
	}
	return err
}

func is(name []byte, want string) bool {
	return len(name) == len(want) && bytes.EqualFold(name, []byte(want))
}
