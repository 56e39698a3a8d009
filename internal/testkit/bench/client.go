package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"net"
	"strconv"
	"time"
)

// The protocol revisions that clients speak: with sessions, and without.
const (
	withSessions = "2025-11-25"
	stateless    = "2026-07-28"
)

// statelessMeta is what a client of 2026-07-28 says of itself in each request.
const statelessMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// answerTime bounds one request and its answer.
const answerTime = 60 * time.Second

// idleTime is how long a connection to a neighbour is used again: Node and uvicorn close an
// idle one after five seconds.
const idleTime = 3 * time.Second

// A caller is one MCP client. It has one request in flight and is not safe for
// concurrent use.
type caller interface {
	// call sends a request and returns the JSON-RPC answer, valid until the next
	// call. params is the text between the braces of params.
	call(method, tool, params string) ([]byte, error)
	close()
}

// An endpoint is where a peer answers, and how its callers introduce themselves.
type endpoint struct {
	address  string // host:port
	path     string // "" = /mcp
	extra    string // further header lines
	foreign  bool   // a neighbour: an event stream may answer, an idle connection may be closed
	token    string // bearer token; "" = none
	prefix   string // of tool names
	revision string
}

// A session is a caller over Streamable HTTP on one connection that is kept alive.
// After a failure the next call dials again.
type session struct {
	endpoint
	conn   net.Conn // nil after a failure
	read   *bufio.Reader
	used   time.Time // when conn was last used
	stream net.Conn  // the GET stream, when listen was called
	id     int
	name   []byte // Mcp-Session-Id
	head   []byte // of every POST, up to the headers that change
	body   []byte
	out    []byte
	answer message
}

// dial connects a client; one of a revision with sessions initializes.
func dial(e endpoint) (*session, error) {
	s := &session{endpoint: e}
	if err := s.connect(); err != nil {
		return nil, err
	}
	s.head = s.headers("POST")
	if e.revision == withSessions {
		if err := s.initialize(); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *session) connect() error {
	conn, err := net.DialTimeout("tcp", s.address, answerTime)
	if err == nil {
		s.conn, s.read = conn, bufio.NewReaderSize(conn, 16<<10)
	}
	return err
}

func (s *session) initialize() error {
	_, err := s.call("initialize", "", `"protocolVersion":"`+withSessions+`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}`)
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	s.name = bytes.Clone(s.answer.session)
	s.head = s.headers("POST")
	s.body = append(s.body[:0], `{"jsonrpc":"2.0","method":"notifications/initialized"}`...)
	return s.exchange("notifications/initialized", "", "202")
}

// headers returns the beginning of every request with the method.
func (s *session) headers(method string) []byte {
	b := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nMcp-Protocol-Version: %s\r\n%s", method, cmp.Or(s.path, "/mcp"), s.address, s.revision, s.extra)
	if method == "GET" {
		b = append(b, "Accept: text/event-stream\r\n"...)
	} else {
		b = append(b, "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"...)
	}
	if len(s.name) > 0 {
		b = fmt.Appendf(b, "Mcp-Session-Id: %s\r\n", s.name)
	}
	if s.token != "" {
		b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", s.token)
	}
	return b
}

func (s *session) call(method, tool, params string) ([]byte, error) {
	s.id++
	s.body = request(s.body[:0], s.endpoint, s.id, method, tool, params)
	if err := s.exchange(method, tool, "200"); err != nil {
		return nil, err
	}
	if s.answer.events && !s.foreign {
		return nil, fmt.Errorf("an event stream answers %s", method)
	}
	return s.answer.body, nil
}

// request appends one JSON-RPC request to b.
func request(b []byte, e endpoint, id int, method, tool, params string) []byte {
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = strconv.AppendInt(b, int64(id), 10)
	b = append(append(append(b, `,"method":"`...), method...), `","params":{`...)
	if tool != "" {
		b = append(append(append(append(b, `"name":"`...), e.prefix...), tool...), `",`...)
	}
	b = append(b, params...)
	if e.revision == stateless {
		if params != "" {
			b = append(b, ',')
		}
		b = append(b, statelessMeta...)
	}
	return append(b, "}}"...)
}

// exchange posts the body and reads the answer, which has to have the status.
func (s *session) exchange(method, tool, status string) error {
	if s.foreign && s.conn != nil && time.Since(s.used) > idleTime {
		_ = s.conn.Close() // everything was read
		s.conn = nil
	}
	if s.conn == nil {
		if err := s.connect(); err != nil {
			return err
		}
	}
	s.used = time.Now()
	if err := s.post(method, tool); err != nil {
		_ = s.conn.Close() // err says more
		s.conn = nil
		return err
	}
	if _, got, _ := bytes.Cut(s.answer.start, []byte(" ")); !bytes.HasPrefix(got, []byte(status)) {
		return fmt.Errorf("%s: %s: %.200s", method, s.answer.start, s.answer.body)
	}
	return nil
}

// post sends the body in one write and reads the answer.
func (s *session) post(method, tool string) error {
	b := append(s.out[:0], s.head...)
	if s.revision == stateless {
		b = append(append(append(b, "Mcp-Method: "...), method...), "\r\n"...)
		if tool != "" {
			b = append(append(append(append(b, "Mcp-Name: "...), s.prefix...), tool...), "\r\n"...)
		}
	}
	b = strconv.AppendInt(append(b, "Content-Length: "...), int64(len(s.body)), 10)
	s.out = append(append(b, "\r\n\r\n"...), s.body...)
	if err := s.conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := s.conn.Write(s.out); err != nil {
		return err
	}
	return s.answer.read(s.read)
}

// listen opens the session's GET stream, whose messages are not read.
func (s *session) listen() error {
	conn, err := net.DialTimeout("tcp", s.address, answerTime)
	if err != nil {
		return err
	}
	s.stream = conn
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := conn.Write(append(s.headers("GET"), "\r\n"...)); err != nil {
		return err
	}
	var m message
	if err := m.readHead(bufio.NewReader(conn)); err != nil {
		return err
	}
	if !bytes.Contains(m.start, []byte(" 200")) {
		return fmt.Errorf("GET: %s", m.start)
	}
	return nil
}

// close ends the session and its connections.
func (s *session) close() {
	if s.conn != nil {
		if len(s.name) > 0 {
			if _, err := s.conn.Write(append(s.headers("DELETE"), "\r\n"...)); err == nil {
				_ = s.answer.read(s.read) // the connection is closed either way
			}
		}
		_ = s.conn.Close() // it was read to its end
	}
	if s.stream != nil {
		_ = s.stream.Close() // it is not read
	}
}
