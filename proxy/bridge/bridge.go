// Package bridge connects an MCP client that speaks only stdio to an endpoint of
// Streamable HTTP, in sessions and stateless. It is a transport: it makes no
// decisions, stores nothing, and passes messages on byte for byte.
//
//	client --line--> envelope -> era, headers --POST--> endpoint
//	client <--line-- one Write each <--JSON, event stream-- answers
//	                                <------GET stream------ other messages of the server
//
// A request that the endpoint may have received is never sent again. Redirects are
// not followed, proxy variables are not read, certificates are verified, and no log
// and no answer contains the token or a session id.
package bridge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// Errors of Serve when the endpoint accepted no message.
var (
	// ErrUnauthorised reports that every answer was 401 or 403.
	ErrUnauthorised = errors.New("the endpoint refused the token")
	// ErrUnreachable reports that no answer arrived.
	ErrUnreachable = errors.New("no endpoint answers")
)

// ErrAddress and ErrToken are in the error chain of New.
var (
	ErrAddress = errors.New("no address of an endpoint")
	ErrToken   = errors.New("no bearer token")
)

// Options configure a Bridge. URL is required; the other fields have a default.
type Options struct {
	// URL is the http or https address of the endpoint. Without a path, the path
	// is /mcp.
	URL string
	// Token is sent as the bearer token; "" sends none.
	Token string
	// TLS says how an https endpoint is verified; nil = by the system's authorities.
	TLS *tls.Config
	// Log receives messages for people; nil discards them.
	Log hclog.Logger
	// Drain bounds the wait of Serve, at the end of its input, for requests in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Pause is the first pause before a stream that ended is opened again, unless
	// the endpoint asks for another. It doubles up to 30 s; 0 = 1 s.
	Pause time.Duration
	// MaxAnswerBytes bounds one message of the endpoint; 0 = 128 MiB, twice the largest
	// message of a server, which results "full" repeat.
	MaxAnswerBytes int
}

const (
	// maxFlights bounds the requests of one client that are sent side by side; the others
	// wait, together with at most 4 MiB.
	maxFlights = 256
	// maxPings is the same for pings, which never wait for other requests.
	maxPings = 16
	// maxAsked bounds the open questions of the endpoint that the bridge counts.
	maxAsked = 1024
	// delivery bounds the sending of a message that has no answer.
	delivery = 30 * time.Second
	// farewell bounds the sending of each message at the end.
	farewell = 2 * time.Second
)

// Bridge connects clients to one endpoint. It is safe for concurrent use.
type Bridge struct {
	opts      Options
	url       *url.URL
	name      string // the endpoint for messages: url without parts that may be secret
	transport *http.Transport
	log       hclog.Logger
}

// New returns a Bridge. It fails with ErrAddress for a URL that names no endpoint,
// and with ErrToken for a token that is not a valid header value. Neither error
// shows the refused value. New does not connect.
func New(opts Options) (*Bridge, error) {
	u, err := endpoint(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("making the bridge: %w", err)
	}
	for _, c := range []byte(opts.Token) {
		if c <= ' ' || c > '~' {
			return nil, fmt.Errorf("making the bridge: %w: it has characters that no header can carry", ErrToken)
		}
	}
	opts.Drain, opts.Pause = cmp.Or(opts.Drain, 30*time.Second), cmp.Or(opts.Pause, time.Second)
	opts.MaxAnswerBytes = cmp.Or(opts.MaxAnswerBytes, 128<<20)
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	b := &Bridge{opts: opts, url: u, name: u.Scheme + "://" + u.Host + u.EscapedPath(), transport: newTransport(opts.TLS), log: opts.Log}
	if opts.Token != "" && u.Scheme == "http" && !guard.Loopback(u.Hostname()) {
		b.log.Warn("the token travels unencrypted", "to", b.name, "hint", "use https")
	}
	return b, nil
}

// endpoint parses the address of an endpoint.
func endpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%w: it is no http or https address", ErrAddress)
	case u.User != nil:
		return nil, fmt.Errorf("%w: it holds a password, and only a token can be sent", ErrAddress)
	case u.Fragment != "":
		return nil, fmt.Errorf("%w: it has a fragment", ErrAddress)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path, u.RawPath = "/mcp", ""
	}
	return u, nil
}

// newTransport returns a transport without proxies. An answer may take as long as the
// call, so only connecting is bounded. Idle connections are closed before common
// servers close them: a request that is sent while the server closes is lost, because
// it may not be sent again.
func newTransport(secure *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSClientConfig:     secure,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     4 * time.Second,
		MaxIdleConnsPerHost: 16,
		DisableCompression:  true, // an event must not wait in a compressor
	}
}

// Serve serves one client, one JSON-RPC message per line, until in ends or ctx is
// done. It then waits for the requests in flight, at most Options.Drain, cancels the
// rest, and ends the session. At the end of in that time begins when the last request that
// waited was sent. A line that is not a message is answered with an error. Serve writes only
// messages to out, one Write per message.
//
// At most 256 requests are sent side by side, and 16 pings; the others wait, each kind with
// at most 4 MiB, or one that is larger. While one has no room, no further line is
// handled, unless the client has a question of the endpoint to answer: then that request is
// refused.
//
// A refusal of the endpoint is the answer to its request, and does not end Serve.
// Serve returns ErrUnauthorised or ErrUnreachable when the endpoint accepted no
// message, the error of reading or writing, or nil. If in is an io.Closer, Serve
// closes it when it stops before the end of in.
func (b *Bridge) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	t := newTalk(b, out)
	err := ndjson.Serve(ctx, in, t.out, jsonrpc.MostLimits().Bytes, func(line []byte, long *jsonrpc.Outline) { t.queueLine(ctx, line, long) })
	return errors.Join(err, t.drain(ctx))
}

// errClosing is the cause that cancels requests which outlive Serve.
var errClosing = errors.New("the bridge is closing")

// A talk is the conversation with one client.
type talk struct {
	*Bridge
	endpoint mcpclient.Endpoint
	out      *ndjson.Sink
	life     context.Context // of every exchange
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup         // lines, requests in flight
	streams  sync.WaitGroup         // GET streams
	calls    *wait.Queue            // runs all requests but pings
	pings    *wait.Queue            // runs pings
	lines    *wait.Queue            // handles lines, one after the other
	asked    jsonrpc.Pool[struct{}] // requests of the endpoint that the client has not answered

	mu       sync.Mutex // protects the fields below
	flights  map[string]*flight
	session  session
	sessions int                                // number of sessions so far
	params   map[string][]paramheader.Parameter // :: tool name ⇒ parameters that headers repeat
	tried    bool                               // a message was sent
	refused  bool                               // an answer was 401 or 403
	heard    bool                               // an answer was not
	ending   bool                               // the input of the client has ended
}

// A session is the session that an answer to initialize began. The zero value is none.
type session struct {
	mcpclient.Session
	n         int                // number of the session, which tells it from earlier ones
	listening context.CancelFunc // ends its GET stream; nil = it was never opened
}

// A flight is one request that waits for its answer.
type flight struct {
	id      json.RawMessage
	key     string // jsonrpc.Key of id
	method  string
	era     era
	ctx     context.Context
	cancel  context.CancelFunc
	written chan struct{} // closed when the request is written, or will not be
	once    sync.Once     // closes written
	begun   atomic.Bool   // its turn has come, so it may have been sent

	granted             string // the session id that came with the answer; protected by talk.mu
	answered, cancelled bool   // likewise
}

// sent permits messages after f to be sent.
func (f *flight) sent() { f.once.Do(func() { close(f.written) }) }

func newTalk(b *Bridge, out io.Writer) *talk {
	t := &talk{Bridge: b, flights: make(map[string]*flight), params: make(map[string][]paramheader.Parameter)}
	t.out = ndjson.NewSink(out)
	queue := func(slots int) *wait.Queue { return wait.NewQueue(slots, jsonrpc.DefaultLimits().Bytes, t.work.Go) }
	t.calls, t.pings, t.lines = queue(maxFlights), queue(maxPings), queue(1)
	t.endpoint = mcpclient.Endpoint{URL: b.url, Transport: t, MaxBytes: b.opts.MaxAnswerBytes, Pause: b.opts.Pause, Log: b.log}
	if b.opts.Token != "" {
		t.endpoint.Header = http.Header{"Authorization": {"Bearer " + b.opts.Token}}
	}
	t.life, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// queueLine handles one line on another goroutine, after the lines before it. It waits while
// too many bytes of lines are queued:
//
//	line -> envelope -> request:      side by side with others
//	                 -> initialize:   answered before anything else is sent
//	                 -> notification,
//	                    answer:       delivered in order, after the requests before it are written
func (t *talk) queueLine(ctx context.Context, line []byte, long *jsonrpc.Outline) {
	handle := func() {
		if long != nil {
			t.refuseFault(long.TooLarge(jsonrpc.MostLimits().Bytes))
			return
		}
		for _, message := range t.messages(line) {
			t.takeMessage(message)
		}
	}
	for {
		if _, ok := t.lines.Add(len(line), handle); ok || !t.out.Await(ctx, t.lines.Moved) {
			return
		}
	}
}

// messages splits a line. In a session of 2025-03-26, the one revision that has
// batches (base protocol, "Batching"), the messages of a batch are sent one by
// one, and so are the answers; the transport allows both. Elsewhere a batch is
// not a message.
func (t *talk) messages(line []byte) []json.RawMessage {
	if jsontext.Value(line).Kind() == '[' && t.currentSession().Revision == "2025-03-26" && json.Valid(line) {
		if all := slices.Collect(jsonrpc.Elements(bytes.TrimSpace(line))); len(all) > 0 {
			return all
		}
	}
	return []json.RawMessage{line}
}

// takeMessage handles one message of the client. It returns when the next one may
// be handled.
func (t *talk) takeMessage(data []byte) {
	m, fault := wire.Envelope{Limits: jsonrpc.MostLimits()}.Validate(data) // the endpoint has limits of its own
	switch {
	case fault != nil:
		t.refuseFault(fault)
	case m.Kind == jsonrpc.Request:
		t.request(m)
	case m.Method != "notifications/cancelled" || !t.cancelFlight(m):
		if m.Method == "" {
			t.asked.Match(m.ID, nil)
		}
		t.deliver(m)
	}
}

// refuseFault answers a line that is not a message.
func (t *talk) refuseFault(f *jsonrpc.Fault) { t.reply(f.ID, refusal(codeOf(f), f.Reason)) }

// codeOf returns the kernel code of a line that is not a message.
func codeOf(f *jsonrpc.Fault) string {
	switch f.Kind {
	case jsonrpc.Parse:
		return signal.CodeEnvelopeParse
	case jsonrpc.TooLarge:
		return signal.CodeEnvelopeTooLarge
	}
	return signal.CodeEnvelopeInvalid
}

// request sends m and waits for its answer: here for initialize, otherwise in a
// goroutine, when its turn comes.
func (t *talk) request(m *jsonrpc.Message) {
	f := &flight{
		id: m.ID, key: m.Key, method: m.Method, era: eraOf(m),
		written: make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(t.life)
	if !t.beginFlight(f) {
		f.cancel()
		t.reply(m.ID, refusal(signal.CodeEnvelopeInvalid, "a request with this id is in flight"))
		return
	}
	exchange := func() {
		defer t.finishFlight(f)
		if t.start(f) {
			t.exchange(f, m)
		}
	}
	q := t.calls
	switch f.method {
	case "initialize":
		exchange()
		return
	case "ping":
		q = t.pings
	}
	began, ok := q.Add(len(m.Raw), exchange)
	for ; !ok; began, ok = q.Add(len(m.Raw), exchange) {
		if t.asked.Len() > 0 || !t.out.Await(t.life, q.Moved) {
			t.fail(f, refusal(signal.CodeOverloaded, "too many requests of this client wait"))
			t.finishFlight(f)
			return
		}
	}
	if began { // what comes next is sent after f
		f.begun.Store(true)
	}
}

// beginFlight registers f. It returns false when its id is taken.
func (t *talk) beginFlight(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flights[f.key] != nil {
		return false
	}
	t.flights[f.key] = f
	t.hangUpLocked(f)
	return true
}

// start reports whether f, whose turn has come, is to be sent.
func (t *talk) start(f *flight) bool {
	if t.life.Err() != nil {
		t.fail(f, refusal(signal.CodeUpstreamUnavailable, "the bridge closed before the request was sent"))
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f.begun.Store(true)
	return !f.cancelled
}

// hangUpLocked ends the exchange f without an answer if it would never end by
// itself and the client sends nothing more. The caller must hold t.mu.
func (t *talk) hangUpLocked(f *flight) {
	if t.ending && f.method == "subscriptions/listen" {
		f.cancelled = true
		f.cancel()
	}
}

// finishFlight ends f, which has been answered by then.
func (t *talk) finishFlight(f *flight) {
	f.sent()
	f.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(f)
}

// dropLocked frees the id of f. The caller must hold t.mu.
func (t *talk) dropLocked(f *flight) {
	if t.flights[f.key] == f {
		delete(t.flights, f.key)
	}
}

// settled reports whether nobody waits for f any longer.
func (t *talk) settled(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f.answered || f.cancelled
}

// fail answers f with a failure, unless nobody waits for it.
func (t *talk) fail(f *flight, w wire.Failure) {
	if t.settle(f) {
		t.reply(f.id, w)
	}
}

// settle ends the wait for f, and reports whether its client still waited.
func (t *talk) settle(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	waited := !f.answered && !f.cancelled
	f.answered = true
	t.dropLocked(f)
	return waited
}

// reply answers the request id, nil when none could be read.
func (t *talk) reply(id json.RawMessage, w wire.Failure) {
	t.out.Send(jsonrpc.NewFailureObject(id, errorObject(w)))
}

// cancelFlight handles a client's cancellation of a request. It reports whether
// nothing has to be sent: a request that waits is dropped, closing the exchange cancels
// a stateless one, and a message cancels any other.
func (t *talk) cancelFlight(m *jsonrpc.Message) bool {
	id, _ := m.Param("requestId")
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.flights[jsonrpc.Key(id)]
	if f == nil {
		return t.session.n == 0 || eraOf(m).stateless
	}
	f.cancelled = true
	local := !f.begun.Load() || f.era.stateless
	if local {
		t.dropLocked(f)
		f.cancel()
	}
	return local
}

// drain waits for what is in flight, then ends the session.
func (t *talk) drain(ctx context.Context) error {
	t.mu.Lock()
	t.ending = true
	for _, f := range t.flights {
		t.hangUpLocked(f)
	}
	t.mu.Unlock()
	var err error
	stop := func() {
		t.cancelAll()
		t.cancel(errClosing)
	}
	if !t.out.Drain(ctx, &t.work, t.calls.Moved, t.opts.Drain, stop) {
		err = errors.New("serving stdio: requests do not end")
	}
	t.endSession(t.currentSession())
	t.streams.Wait()
	t.cancel(errClosing)
	t.transport.CloseIdleConnections()
	return errors.Join(err, t.out.Err(), t.verdict())
}

// verdict returns the error of a talk in which the endpoint accepted no message.
func (t *talk) verdict() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.tried || t.heard:
		return nil
	case t.refused:
		return fmt.Errorf("%w: %s", ErrUnauthorised, t.name)
	}
	return fmt.Errorf("%w at %s", ErrUnreachable, t.name)
}
