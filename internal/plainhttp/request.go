package plainhttp

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
)

// maxBody bounds the body of a plain request, in bytes. The server reads the part that
// a handler leaves, so that the connection can carry another request.
const maxBody = 256 << 10

// request is a plain request, with all that is made for it alone.
type request struct {
	target target
	host   string
	header http.Header
	body   body

	values   [usualHeaders]string // of header, as far as there is room
	url      url.URL              // of the handler
	response response
}

// usualHeaders is the most headers that most clients send.
const usualHeaders = 12

// target is a request line that was parsed.
type target struct {
	line   string
	method string // POST or GET
	text   string // of the target
	url    *url.URL
}

var crlf = []byte("\r\n")

// decisive are headers that change what a message or its connection means, and those
// that net/http rewrites.
var decisive = []string{"Transfer-Encoding", "Trailer", "Te", "Expect", "Upgrade", "Pragma"}

// readRequest reads the head of a plain request. It returns nil, and reads nothing
// from c.r, for any other: each head that it takes means the same to net/http.
func (c *conn) readRequest() *request {
	buf, _ := c.r.Peek(c.r.Buffered())
	end := bytes.Index(buf, []byte("\r\n\r\n"))
	if end < 0 {
		return nil
	}
	line, lines, _ := bytes.Cut(buf[:end+2], crlf)
	if c.seen.url == nil || c.seen.line != string(line) { // else it means what it meant in the last request
		to, ok := readTarget(string(line))
		if !ok {
			return nil
		}
		c.seen = to
	}
	r := &request{target: c.seen, body: body{conn: c, left: -1}}
	if !r.readHeader(lines, &c.fields) || r.host == "" || (r.target.method == http.MethodPost) != (r.body.left >= 0) { // a POST names its length, a GET has no body
		return nil
	}
	r.body.left = max(r.body.left, 0)
	_, _ = c.r.Discard(end + 4) // these bytes are there
	r.body.done.Store(r.body.left == 0)
	return r
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

// readHeader reads the header lines. Those that are as in the last request of the connection,
// whose fields are last, are not read again: most clients change the length at most.
func (r *request) readHeader(lines []byte, last *[usualHeaders]field) bool {
	n := bytes.Count(lines, crlf)
	values := r.values[:0]
	if n > len(r.values) {
		values = make([]string, 0, n)
	}
	r.header = make(http.Header, n)
	for i := 0; len(lines) > 0; i++ {
		var line []byte
		line, lines, _ = bytes.Cut(lines, crlf)
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
			if r.host != "" {
				return false
			}
			r.host = f.value
			continue
		case "Content-Length":
			n, err := strconv.ParseUint(f.value, 10, 31)
			if err != nil || n > maxBody {
				return false
			}
			r.body.left = int64(n) //nolint:gosec // at most maxBody
		}
		if r.header[f.name] != nil {
			return false
		}
		values = append(values, f.value)
		r.header[f.name] = values[len(values)-1 : len(values) : len(values)]
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
