package plainhttp

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxWaiting is how many bytes of an answer wait for a flush.
	maxWaiting = 16 << 10
	// maxHeld is the size up to which an answer that does not say its length gets a
	// Content-Length, as in net/http.
	maxHeld = 2 << 10
)

// response is the http.ResponseWriter of a plain request. It implements what
// http.ResponseController looks for, and io.ReaderFrom.
type response struct {
	conn   *conn
	header http.Header
	status int    // 0 = not yet chosen
	out    []byte // to be written
	held   int    // bytes of out that are the body of an answer whose head is not made
	length int64  // of the body, as the handler says; -1 = unknown
	size   int64  // of the body so far
	framed bool   // the head is made
	chunks bool   // the body is chunked
	last   bool   // the connection ends with this answer
	timed  bool   // the handler has set a deadline for writes
	err    error  // of the first write that failed
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// SetReadDeadline sets the deadline for the rest of the request.
func (w *response) SetReadDeadline(t time.Time) error { return w.conn.limitReads(t) }

// SetWriteDeadline sets the deadline for the answer. It ends with the request. It may be early
// by a sixteenth of the time until t, and by a second at most.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.timed = true
	return w.conn.limitWrites(t)
}

// endEarlier ends the deadline of an earlier request.
func (w *response) endEarlier() {
	if !w.timed {
		_ = w.conn.limitWrites(time.Time{}) // fails only for a connection that is closed
	}
}

// WriteHeader implements http.ResponseWriter. Only its first call counts, and none with
// an informational status. Headers may change until the first byte is written.
func (w *response) WriteHeader(status int) {
	if w.status != 0 || status < http.StatusOK {
		return
	}
	w.status = status
	if said := w.header["Content-Length"]; len(said) == 1 {
		if n, err := strconv.ParseInt(said[0], 10, 64); err == nil && n >= 0 {
			w.length = n
		} else {
			delete(w.header, "Content-Length")
		}
	}
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.bodyless():
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && w.size+int64(len(p)) > w.length:
		return 0, http.ErrContentLength
	}
	if w.length >= 0 && !w.framed {
		w.frame(p)
	}
	w.size += int64(len(p))
	w.append(p)
	if len(w.out) > maxWaiting || w.held > maxHeld {
		return len(p), w.FlushError()
	}
	return len(p), w.err
}

// append adds p to what is to be written.
func (w *response) append(p []byte) {
	switch {
	case len(p) == 0:
	case !w.framed:
		w.out = append(w.out, p...)
		w.held += len(p)
	case w.chunks:
		w.out = append(strconv.AppendInt(w.out, int64(len(p)), 16), "\r\n"...)
		w.out = append(append(w.out, p...), "\r\n"...)
	default:
		w.out = append(w.out, p...)
	}
}

// ReadFrom implements io.ReaderFrom. Buffers are sent with the head in one system call,
// and not copied.
func (w *response) ReadFrom(r io.Reader) (int64, error) {
	parts, ok := r.(*net.Buffers)
	to, direct := w.conn.Conn.(io.ReaderFrom)
	if !ok || !direct || !w.framed || w.chunks || w.err != nil {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	w.endEarlier()
	head := len(w.out)
	all := append(net.Buffers{w.out}, *parts...)
	n, err := to.ReadFrom(&all)
	w.out, w.err = w.out[:0], err
	n = max(n-int64(head), 0)
	w.size += n
	return n, err
}

// FlushError sends what was written so far.
func (w *response) FlushError() error {
	w.WriteHeader(http.StatusOK)
	if !w.framed {
		body := w.out
		w.out = nil
		w.chunks = w.length < 0 && !w.bodyless()
		w.frame(body)
		w.append(body)
		w.held = 0
	}
	if len(w.out) > 0 && w.err == nil {
		w.endEarlier()
		_, w.err = w.conn.Write(w.out)
		w.out = w.out[:0]
	}
	return w.err
}

// finish sends the rest of the answer. It returns false when the connection cannot
// carry another one.
func (w *response) finish() bool {
	w.WriteHeader(http.StatusOK)
	if !w.framed && w.length < 0 && !w.bodyless() {
		w.length = int64(w.held)
		w.header["Content-Length"] = []string{strconv.Itoa(w.held)}
	}
	if w.chunks {
		w.out = append(w.out, "0\r\n\r\n"...)
	}
	err := w.FlushError()
	if w.conn.spare = w.out[:0]; cap(w.out) > 2*maxWaiting {
		w.conn.spare = nil
	}
	w.out, w.err = nil, http.ErrHandlerTimeout // for a handler that writes after its end
	return err == nil && !w.last && (w.chunks || w.bodyless() || w.size == w.length)
}

// bodyless reports whether an answer with this status has no body (RFC 9110, 6.4.1).
func (w *response) bodyless() bool {
	return w.status == http.StatusNoContent || w.status == http.StatusNotModified
}

// frame appends the head of an answer that begins with body. As in net/http, a type that is
// missing is guessed.
func (w *response) frame(body []byte) {
	w.framed = true
	if w.last = w.last || slices.ContainsFunc(w.header["Connection"], func(v string) bool { return strings.EqualFold(v, "close") }); w.last {
		w.header["Connection"] = []string{"close"}
	}
	if _, said := w.header["Content-Type"]; !said && len(body) > 0 && len(w.header["Content-Encoding"]) == 0 {
		w.header["Content-Type"] = []string{http.DetectContentType(body)}
	}
	if !w.conn.said.again(w) {
		w.conn.said.make(w)
	}
	b := w.out
	if _, said := w.header["Date"]; !said {
		b = append(appendDate(append(b, "Date: "...)), "\r\n"...)
	}
	if w.chunks {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	w.out = append(b, "\r\n"...)
}

// answerHead is the head of an answer as net/http writes it, but for the date and all that
// follows.
type answerHead struct {
	status     int
	fields     []answerField // all that its header has
	text       []byte
	start, end int // of the length in text; 0 = it has none
}

// answerField is a header with one value.
type answerField struct{ name, value string }

const contentLength = "Content-Length"

// again appends h to w if it is the head of w but for the length.
func (h *answerHead) again(w *response) bool {
	if h.status != w.status || len(h.fields) != len(w.header) {
		return false
	}
	length := ""
	for _, f := range h.fields {
		values := w.header[f.name]
		switch {
		case len(values) != 1:
			return false
		case f.name == contentLength && isDigits(values[0]):
			length = values[0]
		case f.value != values[0]:
			return false
		}
	}
	w.out = append(append(append(w.out, h.text[:h.start]...), length...), h.text[h.end:]...)
	return true
}

// make appends the head of w, and keeps it in h.
func (h *answerHead) make(w *response) {
	before := len(w.out)
	w.out = append(strconv.AppendInt(append(w.out, "HTTP/1.1 "...), int64(w.status), 10), ' ')
	w.out = append(append(w.out, http.StatusText(w.status)...), "\r\n"...)
	_ = w.header.Write((*headWriter)(w)) // it takes all
	*h = answerHead{fields: h.fields[:0], text: append(h.text[:0], w.out[before:]...)}
	for name, values := range w.header {
		if len(values) != 1 || name == contentLength && !isDigits(values[0]) {
			return // with status 0 it is none
		}
		h.fields = append(h.fields, answerField{name, values[0]})
	}
	if length := w.header[contentLength]; length != nil {
		line := "\r\n" + contentLength + ": "
		h.start = bytes.Index(h.text, []byte(line)) + len(line)
		h.end = h.start + len(length[0])
	}
	h.status = w.status
}

// headWriter appends what it is given to a response.
type headWriter response

// Write implements io.Writer.
func (w *headWriter) Write(p []byte) (int, error) {
	w.out = append(w.out, p...)
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (w *headWriter) WriteString(s string) (int, error) {
	w.out = append(w.out, s...)
	return len(s), nil
}

// isDigits reports whether s is a number in decimal digits.
func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// dated is the text of all dates within a second.
type dated struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dated]

// appendDate appends the value of Date.
func appendDate(b []byte) []byte {
	now := time.Now()
	d := lastDate.Load()
	if d == nil || d.second != now.Unix() {
		d = &dated{now.Unix(), now.UTC().Format(http.TimeFormat)}
		lastDate.Store(d)
	}
	return append(b, d.text...)
}
