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
	method string // POST or GET
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

// target is a request target that was parsed.
type target struct {
	text string
	url  *url.URL
}

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
	line, lines, _ := strings.Cut(string(buf[:end+2]), "\r\n")
	method, text, _ := strings.Cut(line, " ")
	text, ok := strings.CutSuffix(text, " HTTP/1.1")
	if !ok || method != http.MethodPost && method != http.MethodGet || !strings.HasPrefix(text, "/") || strings.Contains(text, " ") {
		return nil
	}
	if c.seen.text != text { // else the last target is not parsed again
		u, err := url.ParseRequestURI(text)
		if err != nil {
			return nil
		}
		c.seen = target{strings.Clone(text), u}
	}
	r := &request{method: method, target: c.seen, body: body{conn: c, left: -1}}
	if !r.readHeader(lines) || r.host == "" || (r.method == http.MethodPost) != (r.body.left >= 0) { // a POST names its length, a GET has no body
		return nil
	}
	r.body.left = max(r.body.left, 0)
	_, _ = c.r.Discard(end + 4) // these bytes are there
	r.body.done.Store(r.body.left == 0)
	return r
}

// readHeader reads the header lines.
func (r *request) readHeader(lines string) bool {
	n := strings.Count(lines, "\r\n")
	values := r.values[:0]
	if n > len(r.values) {
		values = make([]string, 0, n)
	}
	r.header = make(http.Header, n)
	for len(lines) > 0 {
		var line string
		line, lines, _ = strings.Cut(lines, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		if value = strings.Trim(value, " \t"); !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return false
		}
		if known, ok := usual[name]; ok {
			name = known
		} else {
			name = textproto.CanonicalMIMEHeaderKey(name)
		}
		switch name {
		case "Host":
			if r.host != "" || value == "" || !httpguts.ValidHostHeader(value) {
				return false
			}
			r.host = value
			continue
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil || n > maxBody {
				return false
			}
			r.body.left = int64(n) //nolint:gosec // at most maxBody
		case "Connection":
			if !strings.EqualFold(value, "keep-alive") {
				return false
			}
		}
		if r.header[name] != nil || slices.Contains(decisive, name) {
			return false
		}
		values = append(values, value)
		r.header[name] = values[len(values)-1 : len(values) : len(values)]
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

// usual are spellings of headers that MCP clients send, with those of net/http.
var usual = func() map[string]string {
	all := make(map[string]string)
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Connection", "Content-Length", "Content-Type", "Host", "Origin",
		"Sec-Fetch-Mode", "Traceparent", "User-Agent", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id",
	} {
		all[name], all[strings.ToLower(name)] = name, name
	}
	return all
}()
