// Package bridge carries an MCP client that speaks only stdio to an endpoint
// of Streamable HTTP, in both eras of the protocol. It is a transport: it
// judges nothing, keeps nothing, and passes messages on byte for byte.
//
//	client --line--> envelope -> era, headers --POST--> endpoint
//	client <--line-- one Write each <--JSON, event stream-- answers
//	                                <------GET stream------ what the server says by itself
//
// No request is sent twice once the endpoint may have had it. Redirects are
// not followed, proxy variables are not read, certificates are verified, and
// neither token nor session id gets into a log or an answer.
package bridge

import (
	"bytes"
	"context"
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
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// What Serve ends with when nothing ever got through.
var (
	// ErrUnauthorised: every answer was 401 or 403.
	ErrUnauthorised = errors.New("the endpoint refused the token")
	// ErrUnreachable: no answer ever came.
	ErrUnreachable = errors.New("no endpoint answers")
)

// ErrAddress and ErrToken are in the chain of what New refuses.
var (
	ErrAddress = errors.New("no address of an endpoint")
	ErrToken   = errors.New("no bearer token")
)

// Options are what a Bridge needs. URL is required, the zero value of
// everything else has a meaning.
type Options struct {
	// URL is the http or https address of the endpoint; without a path it
	// means /mcp.
	URL string
	// Token is sent as the bearer token; "" sends none.
	Token string
	// Log gets what stdout may not; nil = nobody wants to know.
	Log hclog.Logger
	// Drain is how long Serve waits at the end of its input for requests in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Pause is the first one before a stream that ended is opened again,
	// unless the endpoint asks for another; it doubles up to 30 s. 0 = 1 s.
	Pause time.Duration
}

const (
	// maxFlights is how many requests of one client may be in flight.
	maxFlights = 256
	// maxAnswer bounds one message of the endpoint, in bytes.
	maxAnswer = 16 << 20
	// delivery bounds the sending of a message that has no answer.
	delivery = 30 * time.Second
	// farewell bounds what is sent at the end.
	farewell = 2 * time.Second
)

// Bridge carries clients to one endpoint. It is safe for concurrent use.
type Bridge struct {
	opts      Options
	url       *url.URL
	name      string // the endpoint for people: url without what may be secret
	transport *http.Transport
	log       hclog.Logger
}

// New makes a Bridge. It fails with ErrAddress for a URL that names no
// endpoint, and with ErrToken for a token that no header can carry; neither
// error shows what was refused. Nothing is connected yet.
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
	if opts.Drain == 0 {
		opts.Drain = 30 * time.Second
	}
	if opts.Pause == 0 {
		opts.Pause = time.Second
	}
	if opts.Log == nil {
		opts.Log = hclog.NewNullLogger()
	}
	b := &Bridge{opts: opts, url: u, name: u.Scheme + "://" + u.Host + u.EscapedPath(), transport: newTransport(), log: opts.Log}
	if opts.Token != "" && u.Scheme == "http" && !guard.Loopback(u.Hostname()) {
		b.log.Warn("the token travels unencrypted", "to", b.name, "hint", "use https")
	}
	return b, nil
}

// endpoint reads the address of an endpoint.
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

// newTransport makes connections of its own, past proxy variables. An answer may
// take as long as the call, so only connecting is bounded. Idle connections go
// before common servers close them: a request that meets the closing is lost,
// because it may not be sent twice.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     4 * time.Second,
		MaxIdleConnsPerHost: 16,
		DisableCompression:  true, // an event must not wait in a compressor
	}
}

// Serve carries one client, one JSON-RPC message per line, until in ends or
// ctx is done; then it waits for the requests in flight, at most
// Options.Drain, cancels what is left, and ends the session. A line that is no
// message is answered, and the next one is read. Nothing but protocol is
// written to out, one Write per message.
//
// What the endpoint refuses is answered to the client, and the bridge lives
// on. Serve returns ErrUnauthorised or ErrUnreachable when nothing ever got
// through, why reading or writing failed, or nil. If in is an io.Closer it is
// closed when Serve stops before its end.
func (b *Bridge) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	t := newTalk(b, out)
	err := ndjson.Serve(ctx, in, t.out, jsonrpc.DefaultLimits().Bytes, func(line []byte) { t.queueLine(ctx, line) })
	return errors.Join(err, t.drain())
}

// maxQueue is how many lines may wait for one that must be delivered before
// them. The end of input is noticed after them.
const maxQueue = 64

// errClosing is the cause with which requests end that outlive Serve.
var errClosing = errors.New("the bridge is closing")

// A talk is the conversation with one client.
type talk struct {
	*Bridge
	endpoint mcpclient.Endpoint
	out      *ndjson.Sink
	life     context.Context // of every exchange
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup  // lines, requests in flight
	streams  sync.WaitGroup  // GET streams
	queue    chan struct{}   // holds an element for each line that is queued or handled
	last     <-chan struct{} // closed when the last line is handled; of Serve's goroutine only

	mu       sync.Mutex // protects the fields below
	flights  map[string]*flight
	session  session
	sessions int                                // how many there were
	params   map[string][]paramheader.Parameter // :: tool name ⇒ parameters that headers repeat
	tried    bool                               // a message went out
	refused  bool                               // 401 or 403 came
	heard    bool                               // any other answer came
	ending   bool                               // the client sends nothing more
}

// A session is what the answer to initialize granted. The zero value is none.
type session struct {
	mcpclient.Session
	n         int                // counts sessions, so that an old one is known
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
	written chan struct{} // closed when the request is on its way, or never will be
	once    sync.Once     // closes written

	granted             string // the session id that came with the answer; protected by talk.mu
	answered, cancelled bool   // likewise
}

// sent says that whatever comes next may go out.
func (f *flight) sent() { f.once.Do(func() { close(f.written) }) }

func newTalk(b *Bridge, out io.Writer) *talk {
	t := &talk{Bridge: b, flights: make(map[string]*flight), params: make(map[string][]paramheader.Parameter), queue: make(chan struct{}, maxQueue)}
	first := make(chan struct{})
	close(first)
	t.last = first
	t.out = ndjson.NewSink(out)
	t.endpoint = mcpclient.Endpoint{URL: b.url, Transport: t, MaxBytes: maxAnswer, Pause: b.opts.Pause, Log: b.log}
	if b.opts.Token != "" {
		t.endpoint.Header = http.Header{"Authorization": {"Bearer " + b.opts.Token}}
	}
	t.life, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// queueLine handles one line in a goroutine, when the lines before it are done
// with. It waits while maxQueue lines are queued:
//
//	line -> envelope -> request:      side by side with others
//	                 -> initialize:   done before anything else is sent
//	                 -> notification,
//	                    answer:       delivered in order, after the requests before it are on their way
func (t *talk) queueLine(ctx context.Context, line []byte) {
	select {
	case t.queue <- struct{}{}:
	case <-t.out.Broken():
		return
	case <-ctx.Done():
		return
	}
	before, done := t.last, make(chan struct{})
	t.last = done
	t.work.Go(func() {
		defer close(done)
		defer func() { <-t.queue }()
		<-before
		for _, message := range t.messages(line) {
			t.takeMessage(message)
		}
	})
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
	m, fault := wire.Envelope{}.Validate(data)
	switch {
	case fault != nil:
		t.reply(fault.ID, refusal(codeOf(fault), fault.Reason))
	case m.Kind == jsonrpc.Request:
		t.request(m)
	case m.Method != "notifications/cancelled" || !t.cancelFlight(m):
		t.deliver(m)
	}
}

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
// goroutine.
func (t *talk) request(m *jsonrpc.Message) {
	f := &flight{
		id: m.ID, key: jsonrpc.Key(m.ID), method: m.Method, era: eraOf(m),
		written: make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(t.life)
	if code, reason := t.beginFlight(f); code != "" {
		f.cancel()
		t.reply(m.ID, refusal(code, reason))
		return
	}
	exchange := func() {
		defer t.finishFlight(f)
		t.exchange(f, m)
	}
	if f.method == "initialize" {
		exchange()
		return
	}
	t.work.Go(exchange)
}

// beginFlight registers f, or returns why it is refused.
func (t *talk) beginFlight(f *flight) (code, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.flights[f.key] != nil:
		return signal.CodeEnvelopeInvalid, "a request with this id is in flight"
	case len(t.flights) >= maxFlights:
		return signal.CodeOverloaded, "too many requests of this client are in flight"
	case t.life.Err() != nil:
		return signal.CodeUpstreamUnavailable, "the bridge closed before the request was sent"
	}
	t.flights[f.key] = f
	t.hangUpLocked(f)
	return "", ""
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

// grant records the session id that came with the answer to f.
func (t *talk) grant(f *flight, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.granted = id
}

// reply answers the request id, nil when none could be read.
func (t *talk) reply(id json.RawMessage, w wire.Failure) {
	t.out.Send(jsonrpc.NewFailureObject(id, errorObject(w)))
}

// cancelFlight handles a client's cancellation of a request. It reports whether
// nothing has to be sent: closing the exchange cancels a stateless request, and
// a message cancels any other.
func (t *talk) cancelFlight(m *jsonrpc.Message) bool {
	id, _ := m.Param("requestId")
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.flights[jsonrpc.Key(id)]
	if f == nil {
		return t.session.n == 0 || eraOf(m).stateless
	}
	f.cancelled = true
	if f.era.stateless {
		t.dropLocked(f)
		f.cancel()
	}
	return f.era.stateless
}

// drain waits for what is in flight, then ends the session.
func (t *talk) drain() error {
	t.mu.Lock()
	t.ending = true
	for _, f := range t.flights {
		t.hangUpLocked(f)
	}
	t.mu.Unlock()
	limit := t.opts.Drain
	if t.out.Err() != nil {
		limit = 0 // nobody reads what would come
	}
	var err error
	stop := func() {
		t.cancelAll()
		t.cancel(errClosing)
	}
	if !ndjson.Drain(&t.work, limit, stop) {
		err = errors.New("serving stdio: requests do not end")
	}
	t.endSession(t.currentSession())
	t.streams.Wait()
	t.cancel(errClosing)
	t.transport.CloseIdleConnections()
	return errors.Join(err, t.out.Err(), t.verdict())
}

// verdict returns the error of a talk in which nothing ever got through.
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
