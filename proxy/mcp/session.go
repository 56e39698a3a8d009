package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

var (
	// errDuplicate is reported for a request id that is in flight already.
	errDuplicate = errors.New("a request with this id is in flight")
	// errEnded is reported for a session that is over.
	errEnded = errors.New("the session has ended")
	// errCancelled is the cause of a call that its own client cancelled.
	errCancelled = errors.New("cancelled by the client")
)

// cancelled is errCancelled with the client's reason, which a server of the call gets.
type cancelled struct{ reason string }

// maxReasonBytes bounds the reason that is passed on.
const maxReasonBytes = 256

// Error implements error.
func (cancelled) Error() string { return errCancelled.Error() }

// Is reports whether target is errCancelled.
func (cancelled) Is(target error) bool { return target == errCancelled }

// CancelReason returns the client's reason, "" for none.
func (c cancelled) CancelReason() string { return c.reason }

// session is one client's conversation. It belongs to one principal and one
// route; nobody else can use it.
type session struct {
	account
	id               string // what the client shows; set when the session is opened, "" over stdio
	key              string // what the road sees instead of id
	route            string
	version          string          // the negotiated revision
	began            time.Time       // when it was initialized
	transport        string          // proxy.Call.Transport of initialize
	client           string          // name/version the client gave of itself
	clientInfo       json.RawMessage // all that it said of itself, an object; nil = nothing
	capabilities     json.RawMessage // capabilities of the client, nil = it named none
	extensions       []string        // that the client declares, as registry.ExtensionsIn names them
	mayBeNotified    bool            // a server of its road may say something before it answers
	onEnd            func()          // called once, after the last call of an ended session
	deprecated       func(string)    // Options.Deprecated
	keep             func() bool     // keeps its record for other replicas; false = that fails
	subscribed       atomic.Bool     // it has subscribed to resources, so no other replica can take it over
	taken            bool            // it was another replica's
	changes          *listChanges
	peer             *clientPeer                    // for what belongs to no request
	direct           func(eventlog.Message) bool    // the one way to the client; nil = whatever stream there is
	questions        jsonrpc.Pool[*question]        // the client's answer is awaited
	answers          jsonrpc.Pool[*jsonrpc.Message] // to questions, until ask reads them
	questionCount    atomic.Uint64                  // ids given to questions
	answering        context.Context                // ended by closeToQuestions: the client answers nothing further, so open questions fail
	closeToQuestions context.CancelFunc
	events           *eventlog.Log // set when the session is opened; nil over stdio
	streams          eventlog.Streams
	sseClient        *sseClient // the client of HTTP+SSE that it belongs to; nil = none

	level atomic.Pointer[string] // least severe log message that the client wants, "" = it has not said

	mu      sync.Mutex               // protects the fields below
	flights map[string]*wait.Context // :: jsonrpc.Key of the request id
	ended   bool
}

// newSession makes the session that who opens on route.
func newSession(who policy.Principal, route, version, client string) *session {
	// Clients of older revisions take an empty event for a broken message (MCP 2025-11-25,
	// transports: SEP-1699).
	s := &session{
		key:        signal.NewID("ses_"),
		account:    account{owner: ownerOf(who)},
		streams:    eventlog.Streams{Owner: ownerOf(who), Prime: version == "2025-11-25"},
		route:      route,
		version:    version,
		client:     client,
		onEnd:      func() {},
		deprecated: func(string) {},
		keep:       func() bool { return true },
		changes:    newListChanges(),
		flights:    make(map[string]*wait.Context),
	}
	s.peer = &clientPeer{session: s}
	s.answering, s.closeToQuestions = context.WithCancel(context.Background())
	s.level.Store(new(string))
	return s
}

// begin registers request id and begins the context of its work, which ends with base. It
// returns errDuplicate or errEnded where it does neither.
func (s *session) begin(base *wait.Context, id string, work *wait.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	if _, ok := s.flights[id]; ok {
		return errDuplicate
	}
	work.Begin(base)
	s.flights[id] = work
	return nil
}

// finish unregisters request id, which ended at now.
func (s *session) finish(id string, now time.Time) {
	s.mu.Lock()
	work := s.flights[id]
	delete(s.flights, id)
	last := s.ended && len(s.flights) == 0
	s.mu.Unlock()
	s.used.Store(now.UnixNano())
	work.End(nil)
	if last {
		s.onEnd()
	}
}

// abortAll cancels every request of s for cause.
func (s *session) abortAll(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, work := range s.flights {
		work.End(cause)
	}
}

// end ends the session: nothing more begins, its event stream ends, open
// questions fail, requests in flight continue.
func (s *session) end() {
	s.mu.Lock()
	was := s.ended
	s.ended = true
	s.closeToQuestions()
	last := !was && len(s.flights) == 0
	s.mu.Unlock()
	if s.events != nil {
		s.events.Forget(&s.streams)
	}
	if last {
		s.onEnd()
	}
}

// busy implements client: a request or a question is open, or an event stream.
func (s *session) busy(streams bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flights) > 0 || s.questions.Len() > 0 || streams && s.events.Listening(&s.streams)
}

// flushChanges sends the pending list changes.
func (s *session) flushChanges() { s.changes.flush(s.post) }

// openSession keeps the session that an HTTP initialize opened.
func (s *sessionServer) openSession(made *session) (*session, error) {
	made.id, made.onEnd, made.events = s.opts.SessionID(), s.ending(made), s.events
	s.beKept(made)
	s.sessions.mu.Lock()
	ok := s.sessions.putLocked(made.id, made)
	s.sessions.unlock()
	if !ok {
		return nil, errNoRoom
	}
	made.keep()
	return made, nil
}

// ending returns what reports the end of s.
func (c *core) ending(s *session) func() {
	return func() {
		c.opts.Ended(s.key)
		if !s.began.IsZero() {
			c.opts.Session(span.Session{Protocol: s.version, Transport: s.transport, Duration: c.opts.Now().Sub(s.began)})
		}
	}
}

// find returns the session id if it is alive, of the kind that sse names, and
// belongs to who on route, and marks it used; otherwise nil, without saying why.
// An HTTP+SSE session has its own route.
func (s *sessionServer) find(id string, who policy.Principal, route string, sse bool) *session {
	t := s.sessions
	t.mu.Lock()
	found, now := t.byKey[id], t.now().UnixNano()
	t.mu.Unlock()
	switch {
	case found == nil, found.owner.Subject != who.Subject, found.owner.Tenant != who.Tenant,
		sse != (found.sseClient != nil), !sse && found.route != route:
		return nil
	case now-found.used.Load() > int64(t.ttl) && !found.busy(true):
		s.endSession(found)
		return nil
	}
	found.used.Store(now)
	return found
}

// routeOf returns the route of an HTTP+SSE session, by the ID that its client alone knows; ""
// = it is not there, or has the route of all servers.
func (s *sessionServer) routeOf(id string) string {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	if found := s.sessions.byKey[id]; found != nil && found.sseClient != nil {
		return found.route
	}
	return ""
}

// endSession ends a session that openSession has kept.
func (s *sessionServer) endSession(old *session) {
	t := s.sessions
	t.mu.Lock()
	defer t.unlock()
	if t.byKey[old.id] == old {
		t.endLocked(old.id)
	}
}

// The revisions served, newest first (MCP, Lifecycle: version negotiation).
// 2024-11-05 has no Streamable HTTP, so only stdio and HTTP+SSE agree to it.
var (
	httpVersions  = []string{"2025-11-25", "2025-06-18", "2025-03-26"}
	olderVersions = append(slices.Clone(httpVersions), "2024-11-05")
)

// maxClientNameBytes bounds the name that is kept for a client.
const maxClientNameBytes = 128

// errNoRoom is reported by exchange.open when no session can be kept.
var errNoRoom = errors.New("too many sessions are at work")

// initialize opens a session. Capabilities name what is relayed and no more.
func (c *core) initialize(ctx context.Context, x *exchange) outcome {
	params := x.call.Message.Params
	wanted, ok := jsonrpc.TextAt(params, "protocolVersion")
	if !ok {
		return refused(signal.CodeEnvelopeInvalid, "initialize needs params.protocolVersion, a string")
	}
	version := x.versions[0]
	if slices.Contains(x.versions, wanted) {
		version = wanted
	}
	oldest := version
	if len(wanted) == len(version) { // a revision, perhaps of another transport
		oldest = min(wanted, version)
	}
	if tooOld := c.tooOld(oldest); tooOld != "" {
		return refused(signal.CodeEnvelopeVersion, tooOld)
	}
	offered := c.offered(x)
	made := newSession(x.call.Principal, x.call.Route, version, nameOf(params, "clientInfo"))
	if made.capabilities, ok = clientCapabilities(params); !ok {
		return refused(signal.CodeEnvelopeInvalid, "params.capabilities is too large")
	}
	made.clientInfo = bytes.Clone(clientInfo(params, "clientInfo"))
	made.extensions = registry.ExtensionsIn(made.capabilities)
	made.mayBeNotified = mayBeNotified(made.capabilities, offered)
	made.began, made.transport, made.deprecated = c.opts.Now(), x.call.Transport, c.opts.Deprecated
	opened, err := x.open(made)
	if errors.Is(err, errNoRoom) {
		return refused(signal.CodeOverloaded, err.Error())
	} else if err != nil {
		return refused(signal.CodeEnvelopeInvalid, err.Error())
	}
	opened.changes.clear() // a client that has listed nothing yet has missed no change
	x.opened = opened
	info, instructions := c.introduce(ctx, x)
	return outcome{result: slices.Concat(
		[]byte(`{"protocolVersion":`), jsonrpc.Quote(version), []byte(`,"capabilities":`), offered,
		[]byte(`,"serverInfo":`), info, []byte(`,"instructions":`), jsonrpc.Quote(instructions), []byte{'}'})}
}

// tooOld returns why a revision older than Options.MinRevision is refused, and "" for every
// other revision.
func (c *core) tooOld(revision string) string {
	if revision >= c.opts.MinRevision { // revisions are dates
		return ""
	}
	return "revision " + revision + " is older than " + c.opts.MinRevision + ", the oldest that is served here"
}

// deprecatedQuestions are the questions of servers that MCP 2026-07-28 has deprecated.
var deprecatedQuestions = map[string]string{"roots/list": "roots", "sampling/createMessage": "sampling"}

// offered returns the capabilities of x's route: those that its servers
// declare, and tools, whose list may always change.
func (c *core) offered(x *exchange) json.RawMessage {
	const least = `{"tools":{"listChanged":true}}`
	if c.opts.Relayer == nil || c.opts.Offers == nil {
		return json.RawMessage(least)
	}
	all := c.opts.Offers(c.base, x.call.Route)
	if !isObject(all) {
		return json.RawMessage(least)
	}
	return setIn(all, json.RawMessage("true"), "tools", "listChanged")
}

// maxCapabilitiesBytes bounds the capabilities that are kept for a client.
const maxCapabilitiesBytes = 64 << 10

// clientCapabilities returns a copy of params.capabilities, nil when there are
// none. It returns false when they exceed maxCapabilitiesBytes.
func clientCapabilities(params json.RawMessage) (json.RawMessage, bool) {
	can, ok := jsonrpc.Get(params, "capabilities")
	if !ok || can[0] != '{' {
		return nil, true
	}
	return bytes.Clone(can), len(can) <= maxCapabilitiesBytes
}

// clientInfo returns the member of holder in which a client says what it is, nil when that is
// no object or exceeds maxCapabilitiesBytes.
func clientInfo(holder json.RawMessage, member string) json.RawMessage {
	info, _ := jsonrpc.Get(holder, member)
	if !isObject(info) || len(info) > maxCapabilitiesBytes {
		return nil
	}
	return info
}

// mayBeNotified reports whether servers may send something to a client with
// these capabilities before a request is answered.
func mayBeNotified(can, offered json.RawMessage) bool {
	if _, logs := jsonrpc.Get(offered, "logging"); logs {
		return true
	}
	return slices.ContainsFunc([]string{"sampling", "elicitation", "roots", "tasks"}, func(name string) bool {
		_, ok := jsonrpc.Get(can, name)
		return ok
	})
}

// nameOf returns name/version of the member of holder in printable form, at
// most maxClientNameBytes long, and "" when there is none.
func nameOf(holder json.RawMessage, member string) string {
	title, _ := jsonrpc.TextAt(holder, member, "name")
	version, _ := jsonrpc.TextAt(holder, member, "version")
	parts := slices.DeleteFunc([]string{title, version}, func(text string) bool { return text == "" })
	name := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.Join(parts, "/"))
	return strings.ToValidUTF8(name[:min(len(name), maxClientNameBytes)], "")
}

// progress returns a function that sends params of notifications/progress with
// the client's own token put back. Params that make no valid notification are
// dropped.
func progress(notify func([]byte), token json.RawMessage) func(json.RawMessage) {
	return func(params json.RawMessage) {
		params, err := jsonrpc.Set(params, "progressToken", token)
		if err != nil {
			return
		}
		if message, err := wire.CreateNotification("notifications/progress", params); err == nil {
			notify(message)
		}
	}
}
