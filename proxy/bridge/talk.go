package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

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
	work     sync.WaitGroup // requests in flight, deliveries
	streams  sync.WaitGroup // GET streams
	deadline time.Time      // of the drain; of the loop's goroutine only

	mu       sync.Mutex // protects the fields below
	flights  map[string]*flight
	session  session
	sessions int                                // how many there were
	params   map[string][]paramheader.Parameter // :: tool name ⇒ parameters that headers repeat
	tried    bool                               // a message went out
	refused  bool                               // 401 or 403 came
	heard    bool                               // any other answer came
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
	done    chan struct{} // closed when nothing more will come of it

	granted             string // the session id that came with the answer; protected by talk.mu
	answered, cancelled bool   // likewise
}

// sent says that whatever comes next may go out.
func (f *flight) sent() { f.once.Do(func() { close(f.written) }) }

func newTalk(b *Bridge, out io.Writer) *talk {
	t := &talk{Bridge: b, flights: make(map[string]*flight), params: make(map[string][]paramheader.Parameter)}
	t.out = ndjson.NewSink(out)
	t.endpoint = mcpclient.Endpoint{URL: b.url, Transport: t, MaxBytes: maxAnswer, Pause: b.opts.Pause, Log: b.log}
	if b.opts.Token != "" {
		t.endpoint.Header = http.Header{"Authorization": {"Bearer " + b.opts.Token}}
	}
	t.life, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// loop takes lines until there are none or t must stop:
//
//	line -> envelope -> request:      side by side with others
//	                 -> initialize:   done before anything else is sent
//	                 -> notification,
//	                    answer:       delivered in order, after the requests before it are on their way
func (t *talk) loop(ctx context.Context, lines *ndjson.Lines) error {
	var queue [][]byte
	var busy <-chan struct{} // what the queue waits for
	var over <-chan time.Time
	defer func() { t.refuseQueued(queue) }()
	next := lines.Next()
	for {
		for busy == nil && len(queue) > 0 {
			first := queue[0]
			if queue = queue[1:]; t.isBatch(first) {
				queue = append(members(first), queue...)
				continue
			}
			busy = t.takeLine(first)
		}
		if next == nil && busy == nil {
			return lines.Err()
		}
		from := next
		if len(queue) >= maxQueue {
			from = nil
		}
		select {
		case data, ok := <-from:
			if ok {
				queue = append(queue, data)
				continue
			}
			next, over = nil, time.After(t.opts.Drain)
			t.deadline = time.Now().Add(t.opts.Drain)
		case <-busy:
			busy = nil
		case <-over:
			return lines.Err()
		case <-t.out.Broken():
			t.deadline = time.Now() // nobody reads what would come
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// isBatch reports whether data is a batch in a session of 2025-03-26, the one
// revision that has them (base protocol, "Batching"). Elsewhere a batch is not
// a message.
func (t *talk) isBatch(data []byte) bool {
	data = bytes.TrimSpace(data)
	return len(data) > len("[]") && data[0] == '[' && t.currentSession().Revision == "2025-03-26" && json.Valid(data) && len(members(data)) > 0
}

// members splits a batch. Its messages are sent one by one, and so are the
// answers; the transport allows both.
func members(batch []byte) (all [][]byte) {
	for part := range jsonrpc.Elements(bytes.TrimSpace(batch)) {
		all = append(all, part)
	}
	return all
}

// takeLine handles one line. The next line must wait until the returned channel
// is closed; nil is no wait.
func (t *talk) takeLine(data []byte) <-chan struct{} {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	m, fault := wire.Envelope{}.Validate(data)
	switch {
	case fault != nil:
		t.reply(fault.ID, refusal(codeOf(fault), fault.Reason))
		return nil
	case m.Kind == jsonrpc.Request:
		return t.request(m)
	case m.Method == "notifications/cancelled" && t.cancelFlight(m):
		return nil
	}
	done := make(chan struct{})
	t.work.Go(func() {
		defer close(done)
		t.deliver(m)
	})
	return done
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

// request sends m and waits for its answer in a goroutine.
func (t *talk) request(m *jsonrpc.Message) <-chan struct{} {
	f := &flight{
		id: m.ID, key: jsonrpc.Key(m.ID), method: m.Method, era: eraOf(m),
		written: make(chan struct{}), done: make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(t.life)
	if w := t.beginFlight(f); w != nil {
		f.cancel()
		t.reply(m.ID, *w)
		return nil
	}
	t.work.Go(func() {
		defer close(f.done)
		defer t.finishFlight(f)
		t.exchange(f, m)
	})
	if f.method == "initialize" {
		return f.done
	}
	return nil
}

// beginFlight registers f, or returns why it is refused.
func (t *talk) beginFlight(f *flight) *wire.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.flights[f.key]; taken {
		w := refusal(signal.CodeEnvelopeInvalid, "a request with this id is in flight")
		return &w
	}
	if len(t.flights) >= maxFlights {
		w := refusal(signal.CodeOverloaded, "too many requests of this client are in flight")
		return &w
	}
	t.flights[f.key] = f
	return nil
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

// refuseQueued answers requests that were read and never sent.
func (t *talk) refuseQueued(queue [][]byte) {
	for _, data := range queue {
		if m, _ := (wire.Envelope{}).Validate(data); m != nil && m.Kind == jsonrpc.Request {
			t.reply(m.ID, refusal(signal.CodeUpstreamUnavailable, "the bridge closed before the request was sent"))
		}
	}
}

// drain waits for what is in flight, then ends the session.
func (t *talk) drain() error {
	if t.deadline.IsZero() {
		t.deadline = time.Now().Add(t.opts.Drain)
	}
	t.hangUp(func(f *flight) bool { return f.method == "subscriptions/listen" }) // they would never end
	var err error
	stop := func() {
		t.cancelAll()
		t.cancel(errClosing)
	}
	if !ndjson.Drain(&t.work, time.Until(t.deadline), stop) {
		err = errors.New("serving stdio: requests do not end")
	}
	t.endSession(t.currentSession())
	t.streams.Wait()
	t.cancel(errClosing)
	t.transport.CloseIdleConnections()
	return errors.Join(err, t.out.Err(), t.verdict())
}

// hangUp ends the exchanges that which selects, without an answer.
func (t *talk) hangUp(which func(*flight) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.flights {
		if which(f) {
			f.cancelled = true
			f.cancel()
		}
	}
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
