package plainhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/plainhttp"
)

func TestMain(m *testing.M) {
	plainhttp.WatchAtOnce()
	os.Exit(m.Run())
}

// server is what both servers are.
type server interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

func settings(h http.Handler, to io.Writer) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(to, "", 0)}
}

// start serves until the test ends, and returns the address.
func start(t testing.TB, s server) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		_ = s.Close()
		done.Wait()
	})
	return l.Addr().String()
}

// recorder notes what its handler sees, and answers as the path says.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body []byte
	var err error
	if req.URL.Path != "/unread" {
		body, err = io.ReadAll(req.Body)
	}
	_, local := req.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	r.mu.Lock()
	r.seen = append(r.seen, fmt.Sprintf("%s %s %s %s host=%s length=%d header=%v body=%q %v remote=%v local=%v nobody=%v close=%v te=%v", req.Method, req.URL, req.RequestURI, req.Proto,
		req.Host, req.ContentLength, req.Header, body, err != nil, req.RemoteAddr != "", local, req.Body == http.NoBody, req.Close, req.TransferEncoding))
	r.mu.Unlock()
	rc := http.NewResponseController(w)
	switch req.URL.Path {
	case "/json":
		w.Header()["Content-Type"], w.Header()["Content-Length"] = []string{"application/json"}, []string{"2"}
		_ = rc.SetWriteDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(w, "{}")
		_ = rc.Flush()
	case "/stream":
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			_ = rc.Flush()
		}
	case "/large":
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte("<"))
		_, _ = w.(io.ReaderFrom).ReadFrom(&net.Buffers{bytes.Repeat([]byte("x"), 99_998), []byte(">")})
	case "/long":
		_, _ = w.Write(bytes.Repeat([]byte("y"), 70_000))
	case "/empty":
		w.WriteHeader(http.StatusAccepted)
	case "/none":
		w.WriteHeader(http.StatusNoContent)
		_, _ = w.Write([]byte("no"))
	case "/short":
		w.Header().Set("Content-Length", "9")
		fmt.Fprint(w, "four")
	case "/beyond":
		w.Header().Set("Content-Length", "3")
		_, _ = w.Write([]byte("abcdef"))
	case "/close":
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusTooManyRequests)
	case "/split":
		w.Header()["X-Odd"] = []string{" a\r\nb: c ", "d"}
		w.Header()["X Odd"] = []string{"never"}
		fmt.Fprint(w, "text")
	case "/panic":
		panic(http.ErrAbortHandler)
	default:
		fmt.Fprintf(w, "%s %q", req.URL.Path, body)
	}
}

// answer is a response as a client reads it.
type answer struct {
	Status   int
	Header   http.Header
	Body     string
	Length   int64
	Encoding []string
	Close    bool
	Err      string
}

// converse sends raw, and nothing more, and returns the responses.
func converse(t testing.TB, address, raw string) (all []answer) {
	t.Helper()
	c, err := net.Dial("tcp", address) //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var sent sync.WaitGroup
	defer sent.Wait()
	sent.Go(func() { // a server may answer and close before it has read all
		_, _ = io.WriteString(c, raw)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	r := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return all
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if n := res.StatusCode; n >= 200 && n < 400 && len(res.Header["Date"]) != 1 {
			t.Errorf("Date: %q", res.Header["Date"])
		}
		delete(res.Header, "Date")
		a := answer{res.StatusCode, res.Header, string(body), res.ContentLength, res.TransferEncoding, res.Close, ""}
		if err != nil {
			a.Err = err.Error()
		}
		all = append(all, a)
	}
}

// pair is both servers with one kind of handler.
type pair struct {
	plain, standard         recorder
	plainAddr, standardAddr string
}

// startPair starts both servers. With rests, the connections of the plain one rest
// between any two requests.
func startPair(t testing.TB, rests bool) *pair {
	p := new(pair)
	s := &plainhttp.Server{HTTP: settings(&p.plain, io.Discard)}
	if rests {
		s.RestAtOnce()
	}
	p.plainAddr = start(t, s)
	p.standardAddr = start(t, settings(&p.standard, io.Discard))
	return p
}

// compare holds both servers to the same requests and responses for raw.
func (p *pair) compare(t *testing.T, raw string) {
	t.Helper()
	got, want := converse(t, p.plainAddr, raw), converse(t, p.standardAddr, raw)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("responses\n got %+v\nwant %+v", clip(got), clip(want))
	}
	for _, r := range []*recorder{&p.plain, &p.standard} {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	if a, b := strings.Join(p.plain.seen, "\n"), strings.Join(p.standard.seen, "\n"); a != b {
		t.Errorf("requests\n got %s\nwant %s", clip(a), clip(b))
	}
	p.plain.seen, p.standard.seen = nil, nil
}

func clip(v any) string {
	text := fmt.Sprintf("%+v", v)
	return text[:min(len(text), 4000)]
}

// post is a plain request.
func post(path, body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost:80\r\nContent-Length: %d\r\n%s\r\n%s", path, len(body), strings.Join(append(headers, ""), "\r\n"), body)
}

// get is a plain request without a body.
func get(path string, headers ...string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost:80\r\n%s\r\n", path, strings.Join(append(headers, ""), "\r\n"))
}

var conversations = map[string]string{
	"plain":   post("/x", "hello", "Content-Type: application/json", "accept: */*", "mcp-session-id: abc", "X-Other:  spaced  "),
	"several": post("/json", "{}") + post("/x", "a") + post("/empty", "") + post("/json", "{}"),
	"headers change": post("/x", "a", "A: 1", "B: 2", "Authorization: Bearer x") + post("/x", "bb", "A: 1", "B: 3") + post("/x", "b", "B: 3", "A: 1") +
		post("/x", "b", "B: 3", "A: 1") + post("/x", "b", "b: 3", "A: 1", "a: 2") + post("/x", "b"),
	"a header breaks":         post("/x", "a", "A: 1") + post("/x", "a", "A : 1"),
	"every answer":            post("/json", "{}") + post("/stream", "") + post("/large", "b") + post("/long", "b") + post("/empty", "b") + post("/none", "b") + post("/split", "b") + post("/x", "b"),
	"answer too short":        post("/short", "b") + post("/x", "b"),
	"answer too long":         post("/beyond", "b") + post("/x", "b"),
	"the handler closes":      post("/close", "b") + post("/x", "b"),
	"the handler panics":      post("/panic", "b") + post("/x", "b"),
	"unread body":             post("/unread", strings.Repeat("u", 100_000)) + post("/x", "b"),
	"long body":               post("/x", strings.Repeat("u", 200_000)) + post("/x", "b"),
	"unread and beyond":       post("/unread", strings.Repeat("u", 300_000)),
	"body cut off":            post("/x", "hello")[:strings.Index(post("/x", "hello"), "hello")+3],
	"head cut off":            "POST /x HTTP/1.1\r\nHost: a\r\nContent-Le",
	"nothing":                 "",
	"get after post":          post("/x", "a") + "GET /g?q=1 HTTP/1.1\r\nHost: a\r\n\r\n" + post("/x", "b"),
	"get":                     get("/x?a=b", "Accept: text/event-stream") + get("/json") + post("/x", "a") + get("/empty"),
	"get, every answer":       get("/stream") + get("/large") + get("/long") + get("/none") + get("/split") + get("/short"),
	"get, the handler closes": get("/close") + get("/x"),
	"get with a length":       get("/x", "Content-Length: 0") + get("/x", "Content-Length: 1") + "a" + get("/x"),
	"get with chunks":         get("/x", "Transfer-Encoding: chunked") + "3\r\nabc\r\n0\r\n\r\n" + get("/x"),
	"get and other bytes":     get("/x") + "abc",
	"get for an upgrade":      get("/x", "Connection: Upgrade", "Upgrade: websocket"),
	"get without a host":      "GET /x HTTP/1.1\r\n\r\n",
	"get, line ends after":    get("/x") + "\r\n\r\n" + get("/x"),
	"head":                    "HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n",
	"delete":                  "DELETE /x HTTP/1.1\r\nHost: a\r\n\r\n" + get("/x"),
	"no method":               " /x HTTP/1.1\r\nHost: a\r\n\r\n",
	"query":                   post("/x?a=b&c=%20", "a"),
	"escaped path":            post("/x%2fy", "a"),
	"two slashes":             post("//x/y", "a"),
	"absolute target":         post("http://other/x", "a"),
	"no target":               post("", "a"),
	"asterisk":                post("*", "a"),
	"fragment":                post("/x#f", "a"),
	"expect":                  post("/x", "a", "Expect: 100-continue"),
	"connection close":        post("/x", "a", "Connection: close") + post("/x", "b"),
	"connection keep-alive":   post("/x", "a", "Connection: Keep-Alive") + post("/x", "b"),
	"connection upgrade":      post("/x", "a", "Connection: Upgrade", "Upgrade: h2c"),
	"chunked":                 "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + post("/x", "b"),
	"chunked with length":     "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + post("/x", "b"),
	"te, spaced name":         "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
	"te, folded":              "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
	"two lengths, equal":      post("/x", "ab", "Content-Length: 2") + post("/x", "b"),
	"two lengths":             post("/x", "ab", "Content-Length: 3") + post("/x", "b"),
	"length +2":               "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\nab",
	"length 0x2":              "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0x2\r\n\r\nab",
	"length 02":               "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 02\r\n\r\nab" + post("/x", "b"),
	"length -2":               "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: -2\r\n\r\nab",
	"length 2, 2":             "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\nab",
	"length empty":            "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nab",
	"length huge":             "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nab",
	"no length":               "POST /x HTTP/1.1\r\nHost: a\r\n\r\n" + post("/x", "b"),
	"no host":                 "POST /x HTTP/1.1\r\nContent-Length: 1\r\n\r\na",
	"two hosts":               post("/x", "a", "Host: b"),
	"empty host, another":     "POST /x HTTP/1.1\r\nHost:\r\nHost: a\r\nContent-Length: 1\r\n\r\na",
	"odd host":                "POST /x HTTP/1.1\r\nHost: a b\r\nContent-Length: 1\r\n\r\na",
	"host with zone":          "POST /x HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\nContent-Length: 1\r\n\r\na",
	"empty host":              "POST /x HTTP/1.1\r\nHost:\r\nContent-Length: 1\r\n\r\na",
	"bare line feeds":         "POST /x HTTP/1.1\nHost: a\nContent-Length: 1\n\na" + post("/x", "b"),
	"line feed in the head":   "POST /x HTTP/1.1\r\nHost: a\nContent-Length: 1\r\n\r\na" + post("/x", "b"),
	"carriage return":         "POST /x HTTP/1.1\r\nHost: a\r\nX: a\rb\r\nContent-Length: 1\r\n\r\na",
	"folded header":           "POST /x HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\nContent-Length: 1\r\n\r\na" + post("/x", "b"),
	"repeated header":         post("/x", "a", "X: 1", "x: 2") + post("/x", "b"),
	"no colon":                post("/x", "a", "Xyz"),
	"no name":                 post("/x", "a", ": v"),
	"odd name":                post("/x", "a", "X(y): v"),
	"name beyond ASCII":       post("/x", "a", "X\xc3\xa9: v"),
	"value beyond ASCII":      post("/x", "a", "X: \xc3\xa9"),
	"tab in a value":          post("/x", "a", "X: a\tb", "Y: c"),
	"control in a value":      post("/x", "a", "X: a\x01b"),
	"pragma":                  post("/x", "a", "Pragma: no-cache"),
	"trailer":                 post("/x", "a", "Trailer: X"),
	"http 1.0":                "POST /x HTTP/1.0\r\nHost: a\r\nContent-Length: 1\r\n\r\na" + post("/x", "b"),
	"http 1.2":                "POST /x HTTP/1.2\r\nHost: a\r\nContent-Length: 1\r\n\r\na",
	"http 2":                  "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"small letters":           "post /x http/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na",
	"two spaces":              "POST  /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na",
	"space in the target":     "POST /x y HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na",
	"line before":             "\r\n" + post("/x", "a"),
	"line after":              post("/x", "a") + "\r\n\r\n" + post("/x", "b"),
	"lengths that change":     post("/x", "a") + post("/x", "bc") + post("/x", strings.Repeat("d", 12)) + post("/x", "") + post("/x", "e") + post("/x", strings.Repeat("f", 5000)) + post("/x", "gh"),
	"lengths in odd forms": post("/x", "a") + "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length:  \t2 \t\r\nX: y\r\n\r\nbc" + "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length:  \t003 \t\r\nX: y\r\n\r\ndef" +
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length:  \t+1 \t\r\nX: y\r\n\r\ng",
	"no length again":         post("/x", "a") + "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
	"a length beyond":         post("/x", "a") + "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\nb",
	"no request line":         "\r\nHost: a\r\n\r\n",
	"digits after a GET":      get("/x") + get("/x") + "000" + get("/x"),
	"a header more":           post("/x", "a") + post("/x", "b", "X: y") + post("/x", "c", "X: y") + post("/x", "d", "X: z") + post("/x", "e"),
	"another target":          post("/x", "a") + post("/json", "b") + post("/x", "c") + get("/x") + get("/json") + post("/x", "d"),
	"answers in turn":         post("/json", "a") + post("/empty", "") + post("/json", "b") + post("/x", "cd") + post("/x", "efg") + post("/none", "") + post("/split", "") + post("/split", "") + post("/stream", "") + post("/x", "h"),
	"long head":               post("/x", "a", "X: "+strings.Repeat("l", 10_000)) + post("/x", "b"),
	"very long head":          post("/x", "a", "X: "+strings.Repeat("l", 100_000)),
	"many headers":            post("/x", "a", strings.Split(strings.TrimSuffix(strings.Repeat("A-1: b,", 1), ","), ",")...),
	"more than the buffer":    strings.Repeat(post("/x", "a"), 200),
	"three bytes after":       post("/x", "a") + "000",
	"line ends after":         post("/x", "a") + "\r\n\r\n\r\n" + post("/x", "b"),
	"line ends and a part":    post("/x", "a") + "\r\n\r\nPO",
	"other bytes":             "\x16\x03\x01\x02\x00\x01\x00",
	"bytes after a long body": post("/x", strings.Repeat("z", 5000)) + "garbage\r\n\r\n",
}

func TestSameAsNetHTTP(t *testing.T) {
	for name, raw := range conversations {
		for _, rests := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/rests=%v", name, rests), func(t *testing.T) { startPair(t, rests).compare(t, raw) })
		}
	}
}

func FuzzServer(f *testing.F) {
	for _, raw := range conversations {
		if len(raw) < 5000 {
			f.Add(raw)
		}
	}
	pairs := []*pair{startPair(f, false), startPair(f, true)}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, p := range pairs {
			p.compare(t, raw)
		}
	})
}

// TestGone: the context of a request ends when its client goes away, and not before.
func TestGone(t *testing.T) {
	for _, request := range []string{post("/", "a"), get("/")} {
		gone(t, request)
	}
}

func gone(t *testing.T, request string) {
	t.Helper()
	begun, ended := make(chan struct{}), make(chan error, 1)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(begun)
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})
	c := dial(t, start(t, &plainhttp.Server{HTTP: settings(h, io.Discard)}))
	_, _ = io.WriteString(c, request)
	<-begun
	_ = c.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the context ended with %v", err)
	}
}

// TestStream: a stream that a client opens with GET outlives the time that a request may
// take to arrive, and its connection carries the next request.
func TestStream(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			t.Errorf("%s ended: %v", r.Method, context.Cause(r.Context()))
		case <-time.After(100 * time.Millisecond):
			_, _ = io.WriteString(w, "event")
		}
	})
	s := settings(h, io.Discard)
	s.ReadHeaderTimeout, s.IdleTimeout = 20*time.Millisecond, time.Minute
	c := dial(t, start(t, &plainhttp.Server{HTTP: s}))
	r := bufio.NewReader(c)
	for range 2 {
		_, _ = io.WriteString(c, get("/"))
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "event" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		res.Body.Close()
	}
}

// TestNextRequestIsKept: what a client sends while its request is under way, and
// watched, is the next request.
func TestNextRequestIsKept(t *testing.T) {
	var count atomic.Int32
	written := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if count.Add(1)%2 == 1 {
			<-written
		}
		if r.Context().Err() != nil {
			t.Error("the context ended before its request")
		}
		_, _ = w.Write(body)
	})
	c := dial(t, start(t, &plainhttp.Server{HTTP: settings(h, io.Discard)}))
	r := bufio.NewReader(c)
	for range 20 {
		_, _ = io.WriteString(c, post("/", "first"))
		_, _ = io.WriteString(c, post("/", "second"))
		written <- struct{}{}
		for _, want := range []string{"first", "second"} {
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(res.Body); string(body) != want || err != nil {
				t.Errorf("got %q, %v, want %q", body, err, want)
			}
			res.Body.Close()
		}
	}
}

// TestRest: a connection that rests serves its next request, which may arrive in pieces.
func TestRest(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	s := &plainhttp.Server{HTTP: settings(h, io.Discard)}
	s.RestAtOnce()
	c := dial(t, start(t, s))
	r := bufio.NewReader(c)
	for _, cut := range []int{0, 1, 2, 3, 4, 5, 20} {
		text := post("/", fmt.Sprint("request ", cut))
		_, _ = io.WriteString(c, text[:cut])
		_, _ = io.WriteString(c, text[cut:])
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != fmt.Sprint("request ", cut) || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
	}
}

// TestShutdown: idle connections end, a request under way is answered, and so is the first one of a connection
// that was accepted; their answers say that the connection ends.
func TestShutdown(t *testing.T) {
	t.Run("soon", func(t *testing.T) { shutdown(t, new(plainhttp.Server)) })
	t.Run("at rest", func(t *testing.T) {
		s := new(plainhttp.Server)
		s.RestAtOnce()
		shutdown(t, s)
	})
}

func shutdown(t *testing.T, s *plainhttp.Server) {
	t.Helper()
	begun, answer := make(chan struct{}, 1), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			begun <- struct{}{}
			<-answer
		}
		_, _ = io.WriteString(w, "answer")
	})
	s.HTTP = settings(h, io.Discard)
	address := start(t, s)
	fresh, idle, busy := dial(t, address), dial(t, address), dial(t, address)
	_, _ = io.WriteString(idle, post("/", "a"))
	r := bufio.NewReader(idle)
	if res, err := http.ReadResponse(r, nil); err != nil || res.Close {
		t.Fatalf("response %+v, %v", res, err)
	}
	_, _ = io.WriteString(busy, post("/slow", "a"))
	<-begun
	over := make(chan error, 1)
	go func() { over <- s.Shutdown(t.Context()) }()
	if rest, err := io.ReadAll(r); string(rest) != "answer" || err != nil {
		t.Errorf("the idle connection: %q, %v", rest, err)
	}
	_, _ = io.WriteString(fresh, post("/", "a"))
	if res, err := http.ReadResponse(bufio.NewReader(fresh), nil); err != nil || !res.Close {
		t.Errorf("the fresh connection: %+v, %v", res, err)
	}
	select {
	case err := <-over:
		t.Fatalf("Shutdown returned %v before the answer", err)
	default:
	}
	close(answer)
	res, err := http.ReadResponse(bufio.NewReader(busy), nil)
	if err != nil || !res.Close || res.ContentLength != 6 {
		t.Errorf("response %+v, %v", res, err)
	}
	if err := <-over; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestShutdownIsCut: Shutdown returns with its context, and Close ends what is left.
func TestShutdownIsCut(t *testing.T) {
	begun := make(chan struct{})
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(begun)
		<-r.Context().Done()
	})
	s := &plainhttp.Server{HTTP: settings(h, io.Discard)}
	c := dial(t, start(t, s))
	_, _ = io.WriteString(c, post("/", "a"))
	<-begun
	ctx, cut := context.WithCancel(t.Context())
	cut()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	_ = s.Close()
	if rest, err := io.ReadAll(c); len(rest) > 0 {
		t.Errorf("read %q, %v", rest, err)
	}
}

// TestPanic: a handler that panics ends its connection, is logged, and others go on.
func TestPanic(t *testing.T) {
	var logged syncBuffer
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("odd request")
		}
		_, _ = io.WriteString(w, "fine")
	})
	address := start(t, &plainhttp.Server{HTTP: settings(h, &logged)})
	if got := converse(t, address, post("/panic", "a")+post("/", "b")); got != nil {
		t.Errorf("responses %+v", got)
	}
	if got := converse(t, address, post("/", "b")); len(got) != 1 || got[0].Body != "fine" {
		t.Errorf("responses %+v", got)
	}
	if text := logged.String(); !strings.Contains(text, "panic: odd request") {
		t.Errorf("log: %s", text)
	}
}

func dial(t testing.TB, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address) //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
