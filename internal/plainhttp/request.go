package plainhttp

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"

	"github.com/toolgate/toolgate/internal/wait"
)

// maxBody bounds the body of a plain request, in bytes. The server reads the part that
// a handler leaves, so that the connection can carry another request.
const maxBody = 256 << 10

// request is a plain request, with all that is made for it alone.
type request struct {
	http     http.Request
	life     life
	url      url.URL
	body     body
	response response
}

// life is the context of a request. It ends when the request does, or its client has gone.
type life struct {
	wait.Context
	values context.Context
}

// Value implements context.Context.
func (l *life) Value(key any) any { return l.values.Value(key) }

// usualHeaders is the most headers that most clients send.
const usualHeaders = 12

// target is a request line that was parsed.
type target struct {
	line   string
	method string // POST or GET
	text   string // of the target
	url    *url.URL
}

// head is the head of a plain request. Requests have its header, which nobody changes.
type head struct {
	target target
	host   string
	header http.Header
	length int64 // of the body, -1 = it is not said

	text       []byte // as it arrived; nil = there is none
	start, end int    // of the length in text
}

var crlf = []byte("\r\n")

// decisive are headers that change what a message or its connection means, and those
// that net/http rewrites.
var decisive = []string{"Transfer-Encoding", "Trailer", "Te", "Expect", "Upgrade", "Pragma"}

// readRequest reads the head of a plain request. It returns nil, and reads nothing
// from c.r, for any other: each head that it takes means the same to net/http.
func (c *conn) readRequest() *request {
	buf, _ := c.r.Peek(c.r.Buffered())
	n := c.seen.again(buf)
	if n < 0 {
		if n = c.readHead(buf); n < 0 {
			return nil
		}
	}
	_, _ = c.r.Discard(n) // these bytes are there
	h, left := &c.seen, max(c.seen.length, 0)
	r := &request{body: body{conn: c, left: left}, url: *h.target.url} // the handler's own
	r.life.values = c.ctx
	r.life.Begin(nil)
	r.body.done.Store(left == 0)
	r.http = *r.http.WithContext(&r.life)
	built := &r.http
	built.Method, built.URL, built.RequestURI, built.Host = h.target.method, &r.url, h.target.text, h.host
	built.Proto, built.ProtoMajor, built.ProtoMinor = "HTTP/1.1", 1, 1
	built.Header, built.Body, built.ContentLength, built.RemoteAddr = h.header, &r.body, left, c.remote
	if left == 0 {
		built.Body = http.NoBody
	}
	return r
}

// again reads a head that is h but for the length, and returns its size, -1 for another one.
func (h *head) again(buf []byte) int {
	switch {
	case h.text == nil || !bytes.HasPrefix(buf, h.text[:h.start]):
		return -1
	case h.length < 0:
		return len(h.text)
	}
	end := h.start
	for end < len(buf) && '0' <= buf[end] && buf[end] <= '9' {
		end++
	}
	digits, rest := buf[h.start:end], h.text[h.end:]
	if !bytes.HasPrefix(buf[end:], rest) {
		return -1
	}
	if !bytes.Equal(digits, h.text[h.start:h.end]) {
		length, ok := readLength(string(digits))
		if !ok {
			return -1
		}
		h.length, h.header = length, maps.Clone(h.header) // others have the header as it was
		h.header["Content-Length"] = []string{string(digits)}
		h.text = append(append(h.text[:h.start], digits...), buf[end:end+len(rest)]...)
		h.end = end
	}
	return len(h.text)
}

// readHead reads the head of a plain request into c.seen and returns its size, -1 for any other.
func (c *conn) readHead(buf []byte) int {
	end := bytes.Index(buf, []byte("\r\n\r\n"))
	if end < 0 {
		return -1
	}
	line, _, _ := bytes.Cut(buf, crlf)
	h := head{target: c.seen.target, length: -1}
	if h.target.url == nil || h.target.line != string(line) { // else it means what it meant in the last request
		var ok bool
		if h.target, ok = readTarget(string(line)); !ok {
			return -1
		}
	}
	if !h.readHeader(buf[:end+2], len(line)+len(crlf), &c.fields) || h.host == "" || (h.target.method == http.MethodPost) != (h.length >= 0) { // a POST names its length, a GET has no body
		return -1
	}
	if h.text = append(c.seen.text[:0], buf[:end+4]...); h.length < 0 {
		h.start = len(h.text)
	}
	c.seen = h
	return end + 4
}

// readTarget reads a request line. It returns false for one that is not of a plain request.
func readTarget(line string) (target, bool) {
	method, text, _ := strings.Cut(line, " ")
	text, ok := strings.CutSuffix(text, " HTTP/1.1")
	if !ok || method != http.MethodPost && method != http.MethodGet || !strings.HasPrefix(text, "/") || strings.Contains(text, " ") {
		return target{}, false
	}
	u, err := url.ParseRequestURI(text)
	return target{line, method, text, u}, err == nil
}

// A field is a header line that was read.
type field struct{ line, name, value string }

// readField reads a header line. It returns false for one that is not of a plain request.
func readField(line string) (field, bool) {
	name, value, ok := strings.Cut(line, ":")
	if value = strings.Trim(value, " \t"); !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return field{}, false
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	switch {
	case name == "Host" && (value == "" || !httpguts.ValidHostHeader(value)), name == "Connection" && !strings.EqualFold(value, "keep-alive"), slices.Contains(decisive, name):
		return field{}, false
	}
	return field{line, name, value}, true
}

// readLength reads a Content-Length. It returns false for one that is not of a plain request.
func readLength(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int64(n), err == nil && n <= maxBody //nolint:gosec // at most maxBody
}

// readHeader reads the header lines from at in text. Those that are as in the last request of the connection,
// whose fields are last, are not read again: most clients change few of them.
func (h *head) readHeader(text []byte, at int, last *[usualHeaders]field) bool {
	n := bytes.Count(text[at:], crlf)
	values := make([]string, 0, n)
	h.header = make(http.Header, n)
	for i := 0; at < len(text); i++ {
		line, _, _ := bytes.Cut(text[at:], crlf)
		at += len(line) + len(crlf)
		var f field
		if i < len(last) {
			f = last[i]
		}
		if f.line != string(line) {
			var ok bool
			if f, ok = readField(string(line)); !ok {
				return false
			}
			if i < len(last) {
				last[i] = f
			}
		}
		switch f.name {
		case "Host":
			if h.host != "" {
				return false
			}
			h.host = f.value
			continue
		case "Content-Length":
			var ok bool
			if h.length, ok = readLength(f.value); !ok {
				return false
			}
			value := line[bytes.IndexByte(line, ':')+1:]
			h.start = at - len(crlf) - len(bytes.TrimLeft(value, " \t"))
			h.end = h.start + len(f.value)
		}
		if h.header[f.name] != nil {
			return false
		}
		values = append(values, f.value)
		h.header[f.name] = values[len(values)-1 : len(values) : len(values)]
	}
	return true
}

// body is the body of a request.
type body struct {
	conn *conn
	left int64       // bytes to read
	done atomic.Bool // left is 0
}

// Read implements io.Reader. The last bytes come with io.EOF.
func (b *body) Read(p []byte) (n int, err error) {
	if b.left > 0 {
		n, err = b.conn.r.Read(p[:min(int64(len(p)), b.left)])
		b.left -= int64(n)
	}
	switch {
	case b.left == 0:
		b.done.Store(true)
		return n, io.EOF
	case err == io.EOF:
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// Arrived reports whether Read does not wait for the client: what is left is in the buffer. Such a
// body needs no deadline.
func (b *body) Arrived() bool { return b.left <= int64(b.conn.r.Buffered()) }

// Close implements io.Closer.
func (b *body) Close() error { return nil }

// rest is a connection whose first bytes were read.
type rest struct {
	net.Conn
	first []byte
}

// NetConn returns the connection below.
func (r *rest) NetConn() net.Conn { return r.Conn }

// Read implements io.Reader.
func (r *rest) Read(p []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.first)
	r.first = r.first[n:]
	return n, nil
}

// ReadFrom implements io.ReaderFrom, which net/http looks for.
func (r *rest) ReadFrom(from io.Reader) (int64, error) { return io.Copy(r.Conn, from) }

// CloseWrite lets net/http send an error to a client that still writes.
func (r *rest) CloseWrite() error {
	if c, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
