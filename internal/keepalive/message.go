package keepalive

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Requests and responses of the usual form are written and read here; all others
// by net/http, from the same buffers. Either way the bytes of a request and the
// meaning of a response are those of net/http.

// userAgent is net/http's own.
const userAgent = "Go-http-client/1.1"

// maxHeaders is how many headers a request of the usual form has at most.
const maxHeaders = 16

// errBodyLength reports a request whose body is not as long as its ContentLength.
var errBodyLength = errors.New("the body of the request is not as long as its ContentLength")

// writeRequest writes req to c.w, which it does not flush, and closes its body.
func (c *conn) writeRequest(req *http.Request) error {
	head, ok := appendHead(c.w.AvailableBuffer(), req)
	if !ok {
		return req.Write(c.w)
	}
	if _, err := c.w.Write(head); err != nil || req.Body == nil {
		return err
	}
	defer func() { _ = req.Body.Close() }() // the contract of RoundTripper; what was read counts
	rest := io.LimitedReader{R: req.Body, N: req.ContentLength}
	if _, err := c.w.ReadFrom(&rest); err != nil {
		return err
	}
	var more [1]byte
	if n, err := req.Body.Read(more[:]); rest.N != 0 || n != 0 || !errors.Is(err, io.EOF) {
		return errBodyLength
	}
	return nil
}

// appendHead appends the request line and the headers of req. It reports false
// for a request that does not have the usual form.
func appendHead(b []byte, req *http.Request) ([]byte, bool) {
	target, host := req.URL.RequestURI(), req.Host
	if host == "" {
		host = req.URL.Host
	}
	usual := (req.Method == http.MethodPost || req.Method == http.MethodGet || req.Method == http.MethodDelete) &&
		(req.Body == nil) == (req.ContentLength == 0) && req.ContentLength >= 0 &&
		req.TransferEncoding == nil && req.Trailer == nil && !req.Close &&
		host != "" && isHost(host) && isText(target) && !strings.Contains(target, " ") && len(req.Header) <= maxHeaders
	if !usual {
		return nil, false
	}
	b = append(append(append(append(b, req.Method...), ' '), target...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, host...), "\r\nUser-Agent: "+userAgent+"\r\n"...)
	if req.ContentLength > 0 || req.Method == http.MethodPost {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), req.ContentLength, 10), "\r\n"...)
	}
	names := make([]string, 0, maxHeaders)
	for name := range req.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch name {
		case "Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer":
			return nil, false
		}
		for _, value := range req.Header[name] {
			if !isToken(name) || !isText(value) {
				return nil, false
			}
			b = append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
		}
	}
	return append(b, "\r\n"...), true
}

// response is a response of the usual form with its body.
type response struct {
	http.Response
	body body
	rest counted
}

// readHead reads the head of the response to req.
func (c *conn) readHead(req *http.Request) (*response, error) {
	if req.Method != http.MethodHead { // a response to HEAD has no body, whatever its length
		if res := c.parseHead(); res != nil {
			res.Request = req
			return res, nil
		}
	}
	res, err := http.ReadResponse(c.r, req) //nolint:bodyclose // the caller of RoundTrip closes it
	if err != nil {
		return nil, err
	}
	return &response{Response: *res}, nil
}

// parseHead reads the head of a response of the usual form: HTTP/1.1, all within
// the buffer, with a body of known length, no header that appears twice and none
// that changes what the body or the connection means. It returns nil, and reads
// nothing from c.r, for any other.
func (c *conn) parseHead() *response {
	_, _ = c.r.Peek(1) // fills the buffer; without a byte there is no head
	buf, _ := c.r.Peek(c.r.Buffered())
	end := bytes.Index(buf, []byte("\r\n\r\n"))
	if end < 0 {
		return nil
	}
	line, rest, _ := strings.Cut(string(buf[:end+2]), "\r\n")
	code, ok := statusOf(line)
	if !ok {
		return nil
	}
	header, length := parseHeaders(rest)
	if length < 0 {
		return nil
	}
	_, _ = c.r.Discard(end + 4) // these bytes are there
	res := &response{Response: http.Response{
		Proto: line[:8], ProtoMajor: 1, ProtoMinor: 1, Status: line[9:], StatusCode: code,
		Header: header, ContentLength: length, Body: http.NoBody,
	}}
	if length > 0 {
		res.rest = counted{c.r, length}
		res.Body = &res.rest
	}
	return res
}

// statusOf returns the code in a status line. It reports false for a line that
// does not have the usual form, and for codes of responses without a body.
func statusOf(line string) (int, bool) {
	const digits = len("HTTP/1.1 ")
	if len(line) < digits+4 || line[:digits] != "HTTP/1.1 " || line[digits+3] != ' ' || !isText(line) {
		return 0, false
	}
	code, err := strconv.ParseUint(line[digits:digits+3], 10, 16)
	return int(code), err == nil && code >= 200 && code != http.StatusNoContent && code != http.StatusNotModified
}

// parseHeaders returns the headers in lines, each of which ends with CR LF, and
// the value of Content-Length. The length is -1 for headers that do not have the
// usual form.
func parseHeaders(lines string) (http.Header, int64) {
	n := strings.Count(lines, "\r\n")
	header, values, length := make(http.Header, n), make([]string, n), int64(-1)
	for i := range n {
		var line string
		line, lines, _ = strings.Cut(lines, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if len(name) == len(line) || !isToken(name) || value != "" && !isText(value) {
			return nil, -1
		}
		switch name = http.CanonicalHeaderKey(name); name {
		case "Content-Length":
			var err error
			if length, err = parseLength(value); err != nil {
				return nil, -1
			}
		case "Connection":
			if !strings.EqualFold(value, "keep-alive") {
				return nil, -1
			}
		case "Transfer-Encoding", "Trailer", "Pragma":
			return nil, -1
		}
		if header[name] != nil {
			return nil, -1
		}
		values[i] = value
		header[name] = values[i : i+1 : i+1]
	}
	return header, length
}

// parseLength reads a Content-Length, which consists of digits alone.
func parseLength(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err //nolint:gosec // at most 63 bits
}

// isToken reports whether s can be the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if !tokens[c] {
			return false
		}
	}
	return s != ""
}

// tokens are the bytes that a token may have.
var tokens = func() (set [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		set[c] = true
	}
	return set
}()

// isText reports whether s has only printable ASCII characters, and no space at
// its ends.
func isText(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return s == "" || s[0] != ' ' && s[len(s)-1] != ' '
}

// isHost reports whether net/http sends s in a Host header as it stands: a name or
// an address, with or without a port, and without a zone.
func isHost(s string) bool {
	for _, c := range []byte(s) {
		if !tokens[c] && c != ':' && c != '[' && c != ']' || c == '%' {
			return false
		}
	}
	return true
}

// counted is the body of a response with a known length.
type counted struct {
	r    *bufio.Reader
	left int64
}

// Read implements io.Reader. Like net/http's, it returns io.EOF with the last
// byte, and io.ErrUnexpectedEOF when the connection ends before.
func (b *counted) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case b.left == 0:
		err = io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements io.Closer. The body that has it closes the connection.
func (b *counted) Close() error { return nil }
