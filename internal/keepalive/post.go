package keepalive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/toolgate/toolgate/internal/share"
)

// errWithdrawn is the error of a request whose Claim returned false.
var errWithdrawn = errors.New("the request was given up before it was sent")

// Template is the head of all POST requests to one address, but for their length
// and the headers that each of them adds. It is immutable.
type Template struct {
	to     *url.URL
	before []byte // up to the value of Content-Length
	after  []byte // the rest
}

// reserved are the headers that net/http makes or that change what a message or its
// connection means.
var reserved = []string{"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Expect", "Upgrade"}

// NewTemplate returns the head of POST requests to the address to with the headers
// h, byte for byte as net/http would write it. It reports false for https, and for
// what only net/http writes or refuses, such as text that is not ASCII.
func NewTemplate(to *url.URL, h http.Header) (*Template, bool) {
	target := to.RequestURI()
	if to.Scheme != "http" || !isHost(to.Host) || !isText(target) || target[0] != '/' || strings.Contains(target, " ") {
		return nil, false
	}
	t := &Template{to: to, after: []byte("\r\n")}
	t.before = []byte("POST " + target + " HTTP/1.1\r\nHost: " + to.Host + "\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: ")
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			var ok bool
			if t.after, ok = AppendHeader(t.after, name, value); !ok {
				return nil, false
			}
		}
	}
	return t, true
}

// AppendHeader appends one header line to b. It reports false, and appends nothing,
// for a name or a value that is not plain text, and for a name that decides where
// a message ends.
func AppendHeader(b []byte, name, value string) ([]byte, bool) {
	isName := func(header string) bool { return len(header) == len(name) && strings.EqualFold(header, name) }
	if !httpguts.ValidHeaderFieldName(name) || !isText(value) || slices.ContainsFunc(reserved, isName) {
		return b, false
	}
	return append(append(append(append(b, name...), ": "...), value...), "\r\n"...), true
}

// A Claimer prevents that a request is sent by returning false.
type Claimer interface{ Claim() bool }

// Post is one POST request.
type Post struct {
	Head  *Template
	Extra []byte // more headers, made by AppendHeader
	Body  []byte
	// Claim is asked right before the first byte is written; nil always agrees.
	Claim Claimer
	// MaxBytes bounds the body of a plain answer.
	MaxBytes int
	// Answer is where the bytes of a plain answer are counted: reading it waits for room; nil
	// = they are not counted. It lends the buffer of the answer too.
	Answer *share.Claim
}

// Post sends a request once. It returns the body of a plain answer, which has
// status 200, content type application/json and a known length of at most
// MaxBytes; of any other answer it returns the response, whose body the caller
// reads to its end or closes. It returns the cause of ctx when that ends first.
func (t *Transport) Post(ctx context.Context, p Post) (answer []byte, res *http.Response, err error) {
	c, stop, err := t.send(ctx, p.Head.to, nil, p)
	if err != nil {
		return nil, nil, err
	}
	if errors.Is(c.written, errWithdrawn) {
		c.release(stop()) // nothing was written
		return nil, nil, causeOf(ctx, errWithdrawn)
	}
	n := c.plainHead(p.MaxBytes)
	if n < 0 {
		res, err = c.response(ctx, stop, nil)
		return nil, res, err
	}
	if err = p.Answer.Grow(ctx, n); err != nil {
		stop()
		c.release(false)
		return nil, nil, fmt.Errorf("waiting for room to read the answer: %w", err)
	}
	c.limit.N = 1<<63 - 1            // the length bounds the body
	answer = p.Answer.Buffer(n, 512) // so that a little can be added without a copy
	if _, err = io.ReadFull(c.r, answer); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.release(stop() && err == nil && c.written == nil)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the answer: %w", causeOf(ctx, err))
	}
	return answer, nil, nil
}

var crlf = []byte("\r\n")

// plainHead is the head of a plain answer.
type plainHead struct {
	text       []byte // as it arrived; nil = there is none
	start, end int    // of the length of the body in text
}

// plainHead reads the head of a plain answer and returns the length of its body. It
// returns -1, and reads nothing from c.r, for any other: a head that is not whole in
// the buffer, a length that is missing, repeated or above most, a line that is
// not of the usual form, or a header that changes what the body or the connection means.
func (c *conn) plainHead(most int) int {
	_, _ = c.r.Peek(1) // fills the buffer; no byte means no head
	buf, _ := c.r.Peek(c.r.Buffered())
	end, same := c.last.again(buf)
	if !same {
		head, ok := readPlainHead(buf)
		if !ok {
			return -1
		}
		end, head.text = head.end, append(c.last.text[:0], head.text...)
		c.last = head
	}
	n, err := strconv.ParseUint(string(buf[c.last.start:end]), 10, 63)
	if err != nil || n > uint64(most) { //nolint:gosec // most is not negative
		return -1
	}
	_, _ = c.r.Discard(len(c.last.text) + end - c.last.end) // these bytes are there
	return int(n)                                           //nolint:gosec // at most most
}

// again reads a head that is h but for the length, whose end it returns.
func (h *plainHead) again(buf []byte) (end int, ok bool) {
	if h.text == nil || !bytes.HasPrefix(buf, h.text[:h.start]) {
		return 0, false
	}
	for end = h.start; end < len(buf) && '0' <= buf[end] && buf[end] <= '9'; {
		end++
	}
	return end, bytes.HasPrefix(buf[end:], h.text[h.end:])
}

// readPlainHead reads the head of a plain answer, whatever its length says.
func readPlainHead(buf []byte) (h plainHead, ok bool) {
	end := bytes.Index(buf, []byte("\r\n\r\n"))
	if end < 0 {
		return h, false
	}
	h.text = buf[:end+4]
	line, _, _ := bytes.Cut(buf, crlf)
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) || !isText(line) {
		return h, false
	}
	json := false
	for at := len(line) + len(crlf); at < end+len(crlf); {
		line, _, _ = bytes.Cut(buf[at:], crlf)
		at += len(line) + len(crlf)
		name, after, ok := bytes.Cut(line, []byte(":"))
		value := bytes.Trim(after, " \t")
		if !ok || !httpguts.ValidHeaderFieldName(string(name)) || !isText(value) {
			return h, false
		}
		switch {
		case isName(name, "Content-Length"):
			if h.start > 0 {
				return h, false
			}
			h.start = at - len(crlf) - len(bytes.TrimLeft(after, " \t"))
			h.end = h.start + len(value)
		case isName(name, "Content-Type"):
			if json || !slices.Contains(plainTypes, string(value)) {
				return h, false
			}
			json = true
		case isName(name, "Connection"):
			if !strings.EqualFold(string(value), "keep-alive") {
				return h, false
			}
		case isName(name, "Transfer-Encoding"), isName(name, "Trailer"):
			return h, false
		}
	}
	return h, json && h.start > 0
}

// plainTypes are the usual spellings of a media type.
var plainTypes = []string{"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"}

// isName reports whether name is a header's, in any case.
func isName(name []byte, header string) bool {
	return len(name) == len(header) && strings.EqualFold(string(name), header)
}

// isText reports whether s has only printable ASCII characters, and no space at
// its ends.
func isText[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) == 0 || s[0] != ' ' && s[len(s)-1] != ' '
}

// isHost reports whether net/http sends s in a Host header as it stands: a name or
// an address, with or without a port, and without a zone.
func isHost(s string) bool { return strings.Trim(s, hostBytes) == "" && s != "" }

const hostBytes = "-._:[]0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
