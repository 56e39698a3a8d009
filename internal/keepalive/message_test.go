package keepalive_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
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

// checkReuse fails when a connection is used again after a response that w is the
// outcome of, although something of it is left.
func checkReuse(t *testing.T, closed bool, answer string, step int, w outcomeOf, rest *bufio.Reader) {
	t.Helper()
	if step > 0 || len(answer) > rest.Size() {
		return // what follows may arrive later, which the next request finds out
	}
	left, _ := io.ReadAll(rest)
	if keep := !w.Broken && !w.Close && len(left) == 0 && w.Code != http.StatusSwitchingProtocols; !closed && !keep {
		t.Errorf("%q: the connection may be used again, with %q left", answer, left)
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

// viaPost sends a POST with the headers h, and then extra, over a connection that
// answers with answer. It reports false for headers that no Template takes. The connection
// has carried requests with the answers earlier.
func viaPost(t *testing.T, h http.Header, name, value, body, answer string, step int, earlier ...string) (c *scriptConn, text []byte, res *http.Response, err error, ok bool) {
	head, ok := keepalive.NewTemplate(&url.URL{Scheme: "http", Host: "h", Path: "/"}, h)
	var extra []byte
	if ok && name != "" {
		extra, ok = keepalive.AppendHeader(nil, name, value)
	}
	if !ok {
		return nil, nil, nil, nil, false
	}
	c = &scriptConn{answer: strings.NewReader(answer)}
	tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
	t.Cleanup(tr.CloseIdleConnections) // of what is idle, which the callers look at before
	for _, first := range earlier {
		c.answer = io.MultiReader(strings.NewReader(first), c.answer)
	}
	for range earlier {
		if _, res, err := tr.Post(t.Context(), keepalive.Post{Head: head, MaxBytes: 1 << 20}); err != nil || res != nil || c.closed {
			t.Fatalf("an earlier answer: %v, %v, closed: %t", res, err, c.closed)
		}
	}
	c.step = step
	text, res, err = tr.Post(t.Context(), keepalive.Post{Head: head, Extra: extra, Body: []byte(body), MaxBytes: 1 << 20})
	return c, text, res, err, true
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
	"HTTP/1.1 200 OK\r\ncontent-type:application/json; charset=utf-8 \r\nSet-Cookie: a\r\nSet-Cookie: b\r\ncontent-length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 1\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Type: text/event-stream\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n Content-Length: 9\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX: a\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length : 1\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n{}",
	"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\nContent-Length: 1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\nforged",
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
		checkReuse(t, c.closed, answer, int(step), w, rest)
	})
}

// FuzzPlainAnswer: the body that Post returns is that of the response that net/http
// reads, whatever a server sends and however it splits it, and every other answer is
// that response itself. The connection is used again only if nothing is left on it.
func FuzzPlainAnswer(f *testing.F) {
	for i, answer := range responses {
		f.Add(answer, uint16(0))
		f.Add(answer, uint16(i+1))
	}
	for _, length := range []string{"2", "3", "", "+2", "-2", "2 ", "0", "99999999", "99999999999999999999"} {
		f.Add("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "+length+"\r\n\r\n{}", uint16(0))
	}
	f.Fuzz(func(t *testing.T, answer string, step uint16) {
		checkPlainAnswer(t, answer, int(step))
		for _, earlier := range earlierAnswers {
			checkPlainAnswer(t, answer, int(step), earlier)
		}
	})
}

// earlierAnswers are those of earlier requests of a connection, whose heads may be those of the next answer.
var earlierAnswers = []string{
	responses[0],
	"HTTP/1.1 200 OK\r\ncontent-type:application/json; charset=utf-8 \r\nSet-Cookie: a\r\nSet-Cookie: b\r\ncontent-length: 3\r\n\r\n{ }",
	"HTTP/1.1 200 OK\r\nContent-Length:  \t02 \r\nContent-Type: application/json\r\n\r\n{}",
}

// checkPlainAnswer holds Post to net/http for one answer.
func checkPlainAnswer(t *testing.T, answer string, step int, earlier ...string) {
	t.Helper()
	want, rest, wantErr := viaNetHTTP(&http.Request{Method: http.MethodPost}, answer)
	c, text, res, err, _ := viaPost(t, nil, "", "", "{}", answer, step, earlier...)
	if wantErr != nil {
		if err == nil || !c.closed {
			t.Fatalf("%q: %q, error %v, net/http %v; closed: %t", answer, text, err, wantErr, c.closed)
		}
		return
	}
	w := outcome(want)
	media, _, _ := mime.ParseMediaType(w.Header.Get("Content-Type"))
	switch {
	case err != nil:
		if !w.Broken || !c.closed {
			t.Fatalf("%q: error %v, net/http %+v; closed: %t", answer, err, w, c.closed)
		}
		return
	case res != nil:
		if g := outcome(res); !reflect.DeepEqual(w, g) {
			t.Fatalf("%q:\n got %+v\nwant %+v", answer, g, w)
		}
	case w.Code != http.StatusOK || media != "application/json" || string(text) != w.Body || w.Length != int64(len(text)) || w.Broken || w.Close:
		t.Fatalf("%q: %q\nwant %+v", answer, text, w)
	}
	checkReuse(t, c.closed, answer, step, w, rest)
}

// TestPlainAnswer: which answers are read without net/http.
func TestPlainAnswer(t *testing.T) {
	for _, tt := range []struct {
		name, head string
		plain      bool
	}{
		{"usual", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 2", true},
		{"any case, charset, cookies", "200 OK\r\ncontent-type: application/json; charset=utf-8\r\nCONTENT-LENGTH: 2\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nConnection: Keep-Alive", true},
		{"events", "200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 2", false},
		{"no length", "200 OK\r\nContent-Type: application/json", false},
		{"no type", "200 OK\r\nContent-Length: 2", false},
		{"two types", "200 OK\r\nContent-Type: application/json\r\nContent-Type: application/json\r\nContent-Length: 2", false},
		{"two lengths", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 2", false},
		{"closing", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close", false},
		{"chunked", "200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked", false},
		{"accepted", "202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 2", false},
		{"redirect", "307 Elsewhere\r\nLocation: http://h/\r\nContent-Type: application/json\r\nContent-Length: 2", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, text, res, err, _ := viaPost(t, nil, "", "", "{}", "HTTP/1.1 "+tt.head+"\r\n\r\n{}", 0)
			if plain := err == nil && res == nil && string(text) == "{}"; plain != tt.plain {
				t.Errorf("%q, %v, %v; want plain %t", text, res, err, tt.plain)
			}
		})
	}
}

// FuzzRequest: a POST is written byte for byte as net/http writes it, with the extra
// header last. What a Template and AppendHeader take, no server reads as another
// request, or as two.
func FuzzRequest(f *testing.F) {
	f.Add("example.org:80", "/mcp?q=1", "Mcp-Session-Id", "abc", "Mcp-Method", "tools/call", `{"a":1}`)
	for _, path := range []string{"*", "x", "", "//x", "/?a b", "/?a\r\nX:y", "/?ü"} {
		f.Add("h", path, "X", "v", "Y", "v", "body")
	}
	for _, bad := range []string{"Content-Length", "content-length", "Transfer-Encoding", "transfer-encoding", "Host", "Connection", "Trailer", "Bad Name", "", "X:"} {
		f.Add("h", "/", bad, "1", "X", "v", "body")
		f.Add("h", "/", "X", "v", bad, "chunked", "body")
	}
	for _, bad := range []string{"v\r\nContent-Length: 0", "v\n\nGET / HTTP/1.1", "v\r", "\x00", " padded ", "\t", "ü", ""} {
		f.Add("h", "/", "X", bad, "Y", "v", "body")
		f.Add("h", "/", "X", "v", "Y", bad, "body")
		f.Add("h"+bad, "/"+bad, "X", "v", "Y", "v", "body")
	}
	f.Add("[fe80::1%25en0]:80", "/a b\r\n", "User-Agent", "own", "", "", "")
	f.Add("bücher.example", "/ü", "X", "v", "", "", strings.Repeat("x", 9000))
	f.Fuzz(func(t *testing.T, host, path, name, value, extraName, extra, body string) {
		path, query, _ := strings.Cut(path, "?")
		to := &url.URL{Scheme: "http", Host: host, Path: path, RawQuery: query}
		header := http.Header{"Accept": {"application/json"}, name: {value, "second"}}
		head, ok := keepalive.NewTemplate(to, header)
		if !ok {
			return // net/http's
		}
		lines, ok := keepalive.AppendHeader(nil, extraName, extra)
		if !ok && len(lines) > 0 {
			t.Errorf("%q was appended for %q: %q", lines, extraName, extra)
		}
		c := &scriptConn{answer: strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")}
		tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
		defer tr.CloseIdleConnections()
		if _, _, err := tr.Post(t.Context(), keepalive.Post{Head: head, Extra: lines, Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		plainly := &http.Request{Method: http.MethodPost, URL: to, Header: header, ContentLength: int64(len(body))}
		if body != "" {
			plainly.Body = io.NopCloser(strings.NewReader(body))
		}
		if err := plainly.Write(&want); err != nil {
			t.Fatalf("%v, but sent %q", err, c.sent.String())
		}
		sent, plain := strings.TrimSuffix(c.sent.String(), string(lines)+"\r\n"+body)+"\r\n"+body, want.String()
		if sent != plain {
			t.Errorf("sent %q\nwant %q and %q", c.sent.String(), want.String(), lines)
		}
		r := bufio.NewReader(bytes.NewReader(c.sent.Bytes()))
		got, err := http.ReadRequest(r)
		if err != nil {
			t.Fatalf("%q: %v", c.sent.String(), err)
		}
		text, err := io.ReadAll(got.Body)
		if left, _ := io.ReadAll(r); err != nil || string(text) != body || len(left) > 0 || len(got.TransferEncoding) > 0 {
			t.Errorf("a server reads %q of %q, then %q, %v", text, body, left, err)
		}
		if have := got.Header.Values(extraName); ok && !slices.Contains(have, extra) {
			t.Errorf("a server reads %q of %q: %q", have, extraName, extra)
		}
	})
}

// TestRequestInOneWrite: a short request is one write, and an answer is looked for
// only when it is there.
func TestRequestInOneWrite(t *testing.T) {
	c := &countingConn{scriptConn: scriptConn{answer: strings.NewReader(responses[0])}}
	tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
	defer tr.CloseIdleConnections()
	head, _ := keepalive.NewTemplate(&url.URL{Scheme: "http", Host: "h", Path: "/"}, http.Header{"Accept": {"application/json"}})
	if text, _, err := tr.Post(t.Context(), keepalive.Post{Head: head, Body: make([]byte, 2000), MaxBytes: 10}); err != nil || string(text) != "{}" {
		t.Fatalf("%q, %v", text, err)
	}
	if c.writes != 1 || c.reads != 1 {
		t.Errorf("%d writes and %d reads, want one of each", c.writes, c.reads)
	}
}

// countingConn counts what becomes system calls.
type countingConn struct {
	scriptConn
	reads, writes int
}

func (c *countingConn) Read(p []byte) (int, error)  { c.reads++; return c.scriptConn.Read(p) }
func (c *countingConn) Write(p []byte) (int, error) { c.writes++; return c.scriptConn.Write(p) }

// TestAboveTheBound: an answer longer than MaxBytes is a response, of which nothing was
// read.
func TestAboveTheBound(t *testing.T) {
	for most, plain := range map[int]bool{1: false, 2: true} {
		c := &scriptConn{answer: strings.NewReader(responses[0])}
		tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
		head, _ := keepalive.NewTemplate(&url.URL{Scheme: "http", Host: "h", Path: "/"}, nil)
		text, res, err := tr.Post(t.Context(), keepalive.Post{Head: head, Body: []byte("x"), MaxBytes: most})
		if err != nil || (res == nil) != plain {
			t.Errorf("at most %d: %q, %v, %v", most, text, res, err)
		}
		if res != nil {
			res.Body.Close()
		}
		tr.CloseIdleConnections()
	}
}

// TestAnswerToHalfARequest: an answer counts although the request could not be written
// whole, and the connection ends.
func TestAnswerToHalfARequest(t *testing.T) {
	c := &refusingConn{scriptConn{answer: strings.NewReader(responses[0])}}
	tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
	t.Cleanup(tr.CloseIdleConnections)
	head, _ := keepalive.NewTemplate(&url.URL{Scheme: "http", Host: "h", Path: "/"}, nil)
	text, _, err := tr.Post(t.Context(), keepalive.Post{Head: head, Body: make([]byte, 9000), MaxBytes: 10})
	if err != nil || string(text) != "{}" || !c.closed {
		t.Errorf("%q, %v; closed %t", text, err, c.closed)
	}
}

// refusingConn takes nothing.
type refusingConn struct{ scriptConn }

func (c *refusingConn) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestWithdrawn: nothing is sent of a request that was given up, and its connection
// serves the next one.
func TestWithdrawn(t *testing.T) {
	c := &scriptConn{answer: strings.NewReader(responses[0])}
	tr := keepalive.New(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }})
	defer tr.CloseIdleConnections()
	head, _ := keepalive.NewTemplate(&url.URL{Scheme: "http", Host: "h", Path: "/"}, nil)
	_, _, err := tr.Post(t.Context(), keepalive.Post{Head: head, Body: []byte("x"), Claim: claim(false)})
	if err == nil || c.sent.Len() > 0 || c.closed {
		t.Errorf("sent %q, closed %t, %v", c.sent.String(), c.closed, err)
	}
	if text, _, err := tr.Post(t.Context(), keepalive.Post{Head: head, Body: []byte("x"), Claim: claim(true), MaxBytes: 10}); err != nil || string(text) != "{}" {
		t.Errorf("%q, %v", text, err)
	}
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

// claim agrees to a request, or does not.
type claim bool

func (c claim) Claim() bool { return bool(c) }
