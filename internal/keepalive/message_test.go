package keepalive_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keepalive"
)

// scriptConn is a connection to a server that sends answer, at most step bytes at
// a time (0 = all), and then closes its end.
type scriptConn struct {
	answer io.Reader
	step   int
	sent   bytes.Buffer
	closed bool
}

func (c *scriptConn) Read(p []byte) (int, error) {
	if c.step > 0 {
		p = p[:min(len(p), c.step)]
	}
	return c.answer.Read(p)
}
func (c *scriptConn) Write(p []byte) (int, error)      { return c.sent.Write(p) }
func (c *scriptConn) Close() error                     { c.closed = true; return nil }
func (c *scriptConn) LocalAddr() net.Addr              { return nil }
func (c *scriptConn) RemoteAddr() net.Addr             { return nil }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// outcomeOf is what a caller sees of a response.
type outcomeOf struct {
	Status, Proto string
	Code          int
	Length        int64
	Close         bool
	Encoding      []string
	Header        http.Header
	Trailer       http.Header
	Body          string
	Broken        bool // the body ended with an error
}

// outcome reads res to its end.
func outcome(res *http.Response) outcomeOf {
	body, err := io.ReadAll(res.Body)
	return outcomeOf{
		res.Status, res.Proto, res.StatusCode, res.ContentLength, res.Close, res.TransferEncoding,
		res.Header, res.Trailer, string(body), err != nil,
	}
}

// viaTransport sends req over a connection that answers with answer.
func viaTransport(req *http.Request, answer string, step int) (*scriptConn, *http.Response, error) {
	c := &scriptConn{answer: strings.NewReader(answer), step: step}
	tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
	defer tr.CloseIdleConnections() // of what is idle at the end, which the callers look at before
	res, err := tr.RoundTrip(req)
	return c, res, err
}

// viaNetHTTP reads the first final response in answer as net/http does.
func viaNetHTTP(req *http.Request, answer string) (*http.Response, *bufio.Reader, error) {
	r := bufio.NewReader(strings.NewReader(answer))
	for {
		res, err := http.ReadResponse(r, req)
		if err != nil || res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, r, err
		}
	}
}

// responses are the forms of a response that decide where one ends.
var responses = []string{
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Empty:\r\nconnection: Keep-Alive\r\n\r\n{}",
	"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nfalse",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nfalse",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 103 Early Hints\r\nContent-Length: 2\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n2\r\nok\r\n0\r\nX-End: yes\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: identity\r\n\r\nabc",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
	"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nConnection: keep-alive, close\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\n\r\nto the end",
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nlonger than it says",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 2_0\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length\x00: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 2\x00\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nX-A: 1\r\n Content-Length: 3\r\nContent-Length: 2\r\n\r\nok", // a folded line
	"HTTP/1.1 200 OK\r\nX-A: 1\n\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "HTTP/1.1 200 OK\r\nX: a\rContent-Length: 3\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\n\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 +20 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 600 Odd\r\nContent-Length: 2\r\n\r\nok", "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "http/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "hello\r\n\r\n", "", "HTTP/1.1 200 OK\r\nA: b",
	"HTTP/1.1 200 OK\r\nPragma: no-cache\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 \xffOK\r\nX-A: \xff\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nX-A:\t b \t\r\nContent-Length:\t2 \r\n\r\nok",
	"HTTP/1.1 200 OK\r\nX-Fill: " + strings.Repeat("x", 5000) + "\r\nContent-Length: 2\r\n\r\nok",
}

// FuzzResponse: whatever a server sends, and however it splits it, the response is
// the one that net/http reads, or an error where that has one. The connection is
// used again only if nothing is left on it.
func FuzzResponse(f *testing.F) {
	for i, answer := range responses {
		f.Add(answer, uint16(0), false)
		f.Add(answer, uint16(i+1), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, answer string, step uint16, head bool) {
		method := http.MethodPost
		if head {
			method = http.MethodHead
		}
		request := func() *http.Request {
			return &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: "h", Path: "/"}, Header: http.Header{}}
		}
		want, rest, wantErr := viaNetHTTP(request(), answer)
		c, got, err := viaTransport(request(), answer, int(step))
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%q: error %v, net/http %v", answer, err, wantErr)
		}
		if err != nil {
			if !c.closed {
				t.Errorf("%q: the connection is open after %v", answer, err)
			}
			return
		}
		w, g := outcome(want), outcome(got)
		if !reflect.DeepEqual(w, g) {
			t.Fatalf("%q:\n got %+v\nwant %+v", answer, g, w)
		}
		if step > 0 || len(answer) > rest.Size() {
			return // what follows may arrive later, which the next request finds out
		}
		left, _ := io.ReadAll(rest)
		if keep := !w.Broken && !w.Close && len(left) == 0 && w.Code != http.StatusSwitchingProtocols; !c.closed && !keep {
			t.Errorf("%q: the connection may be used again, with %q left", answer, left)
		}
	})
}

// FuzzRequest: a request is written byte for byte as net/http writes it, or is an
// error. Nothing follows the declared length of its body.
func FuzzRequest(f *testing.F) {
	f.Add(0, "example.org:80", "/mcp?q=1", "Mcp-Session-Id", "abc", `{"a":1}`, int64(7))
	f.Add(0, "h", "/", "X", "v", "longer than declared", int64(3))
	f.Add(0, "h", "/", "X", "v", "short", int64(30))
	f.Add(0, "h", "/", "X", "v\r\nContent-Length: 0", "body", int64(4))
	f.Add(0, "h", "/", "Content-Length", "0", "body", int64(4))
	f.Add(0, "h", "/", "transfer-encoding", "chunked", "body", int64(4))
	f.Add(0, "h", "/", "Bad Name", " padded ", "", int64(0))
	f.Add(1, "[fe80::1%25en0]:80", "/a b\r\n", "User-Agent", "own", "", int64(0))
	f.Add(2, "h\r\nX: y", "*", "X", "v", "", int64(0))
	f.Add(0, "h", "/?a\r\nX: y", "X", "v", "body", int64(4))
	f.Add(0, "h", "/", "", "v", "body", int64(4))
	f.Add(3, "bücher.example", "/ü", "X", "ü", "body", int64(-1))
	f.Add(0, "h", "/", "X", "", strings.Repeat("x", 9000), int64(9000))
	f.Fuzz(func(t *testing.T, method int, host, path, name, value, body string, length int64) {
		methods := []string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut}
		path, query, _ := strings.Cut(path, "?")
		request := func() *http.Request {
			r := &http.Request{
				Method: methods[uint(method)%uint(len(methods))], Host: host, ContentLength: length,
				URL:    &url.URL{Scheme: "http", Host: "h", Path: path, RawQuery: query},
				Header: http.Header{"Accept": {"application/json"}, name: {value, "second"}},
			}
			if body != "" {
				r.Body = io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})
			}
			return r
		}
		var want bytes.Buffer
		wantErr := request().Write(&want)
		c, res, err := viaTransport(request(), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0)
		if wantErr == nil && c.sent.String() != want.String() {
			t.Errorf("sent %q\nwant %q (%v)", c.sent.String(), want.String(), err)
		}
		if wantErr != nil && c.sent.Len() > want.Len() {
			t.Errorf("sent %q, more than net/http before %v: %q", c.sent.String(), wantErr, want.String())
		}
		if wantErr != nil && err == nil && !res.Close { // a response counts, but the connection ends
			t.Errorf("the connection may be used again after %v", wantErr)
		}
	})
}

// TestWithdrawnBody: nothing is sent of a short request whose body cannot be read.
func TestWithdrawnBody(t *testing.T) {
	withdrawn := errors.New("withdrawn")
	req := &http.Request{
		Method: http.MethodPost, ContentLength: 4, Header: http.Header{},
		URL: &url.URL{Scheme: "http", Host: "h", Path: "/"}, Body: io.NopCloser(failingReader{withdrawn}),
	}
	c, _, err := viaTransport(req, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 0)
	if c.sent.Len() != 0 || !c.closed {
		t.Errorf("sent %q, closed %v, %v", c.sent.String(), c.closed, err)
	}
}

// failingReader fails with err.
type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }
