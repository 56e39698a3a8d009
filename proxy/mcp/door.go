// Package mcp is where MCP clients come in: the Streamable HTTP door for the
// revisions 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28, the HTTP+SSE door
// of 2024-11-05, and the stdio door. They are thin: they frame messages, know
// sessions and pass every tools/call to the gate as raw bytes. One dispatch
// table serves the revisions with sessions and one the revision without, so that
// the same rules hold whatever the transport.
//
//	HTTP      guard -> media -> identify -> body -> decode -> version -> session -> dispatch -> observe -> reply
//	HTTP+SSE  guard -> media -> identify -> body -> decode            -> session -> dispatch -> observe -> event
//	stdio                                   line -> decode -> identify           -> dispatch -> observe -> reply
//
// An event stream is a row of events that outlives its connections (stream): a
// client that lost one names the last event that it had and gets the rest.
package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy/wire"
)

// Options are what a Door needs. Gate and Refuser are required, the zero value
// of everything else has a meaning.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// Relayer serves resources, prompts and completions on /mcp/{server}; nil =
	// they are not served.
	Relayer Relayer
	// Notifier takes the notifications of clients that are for servers; nil =
	// they are dropped.
	Notifier Notifier
	// Offers gives the capabilities of the server {name}, "" for all of them, as
	// far as they are relayed: what it gives is advertised as it is, but for
	// tools, which always are and may always change. It gives nil when they are
	// not known; nil = nothing but tools is advertised.
	Offers func(ctx context.Context, name string) json.RawMessage
	// HasServer reports whether /mcp/{name} exists; nil = no server has a road
	// of its own.
	HasServer func(name string) bool
	// Errors is the dialect of /mcp and stdio; "" = wire.Gateway. The road of
	// one server always speaks wire.MCP.
	Errors wire.Dialect
	// Version is what serverInfo says; "" = "dev".
	Version string
	// Profile is what a message must be like; "" = wire.ProfileMCP.
	Profile wire.Profile
	// Deterministic makes wire.ProfileStrict want a UUID as a request's id.
	Deterministic bool
	// Observe is told of every envelope that was received, once, when its
	// answer is known and before it is sent; nil = nobody wants to know. It is
	// called from many goroutines, must not block and must not call back into
	// the Door.
	Observe func(wire.Event)
	// Limits bound one message; zero fields have the defaults of jsonrpc.
	Limits jsonrpc.Limits
	// Hosts are the names, without port, besides loopback under which the
	// listener may be addressed and from which an Origin may come.
	Hosts []string
	// Stdio is what the stdio door shows for each message; the zero value is
	// the local user.
	Stdio identity.Credential
	// SessionTTL is how long a session may be idle; 0 = 30 minutes.
	SessionTTL time.Duration
	// MaxSessions is how many sessions are kept; 0 = 10,000. Beyond it the
	// oldest idle one ends, the opener's own first.
	MaxSessions int
	// MaxFlights is how many requests of one stdio client run at a time; 0 = 256.
	MaxFlights int
	// PageSize is how many tools one tools/list answer carries; 0 = 1,000.
	PageSize int
	// AnswerTTL is how long a call of a client without a session waits for the
	// client to answer a server's questions; 0 = 10 minutes.
	AnswerTTL time.Duration
	// Tasks says that the gate answers held calls with tasks for clients that know
	// them; those without a session are told.
	Tasks bool
	// StateKey signs what such a client is given to come back with
	// (requestState): StateKeyBytes that nobody else knows. Doors with the same key
	// take what another gave out where the request may begin anew; nil = a key of
	// its own.
	StateKey []byte
	// MaxParked is how many calls may wait so, MaxParkedEach how many of one
	// principal; 0 = 4,096 and 1,024.
	MaxParked, MaxParkedEach int
	// MaxListens is how many streams of notifications one principal may have
	// open without a session; 0 = 32.
	MaxListens int
	// Heartbeat is the silence after which an event stream sends a comment, and
	// after which the credential of who listens without a session is checked
	// again; 0 = 20 s.
	Heartbeat time.Duration
	// StreamLife is after how long an event stream of a 2025-11-25 client is
	// closed for the client to come back to it (MCP 2025-11-25, transports:
	// polling); 0 = never.
	StreamLife time.Duration
	// Replay bounds what is kept for clients that lost an event stream.
	EventLog EventLog
	// IOTimeout bounds reading one request body and writing one message; 0 = 30 s.
	IOTimeout time.Duration
	// Drain is how long the stdio door waits at the end of its input for calls
	// in flight; 0 = 30 s.
	Drain time.Duration
	// Ended is told the key (proxy.Call.Session) of each session that is over,
	// once and after its last call; nil = nobody wants to know. It must neither
	// block nor call back into the Door. The key of clients without a session is
	// over when it was idle for SessionTTL, and may begin again.
	Ended func(session string)
	// Log is told of faults of our own; nil discards.
	Log hclog.Logger
	// Now is the clock of session idleness and events; nil = time.Now.
	Now func() time.Time
}

// withDefaults gives o with every zero field that has a default filled in.
func (o Options) withDefaults() Options {
	o.Errors = cmp.Or(o.Errors, wire.Gateway)
	o.Version = cmp.Or(o.Version, "dev")
	o.SessionTTL = cmp.Or(o.SessionTTL, 30*time.Minute)
	o.MaxSessions = cmp.Or(o.MaxSessions, 10_000)
	o.MaxFlights = cmp.Or(o.MaxFlights, 256)
	o.PageSize = cmp.Or(o.PageSize, 1_000)
	o.AnswerTTL = cmp.Or(o.AnswerTTL, 10*time.Minute)
	o.MaxParked = cmp.Or(o.MaxParked, 4_096)
	o.MaxParkedEach = cmp.Or(o.MaxParkedEach, 1_024)
	o.MaxListens = cmp.Or(o.MaxListens, 32)
	o.Heartbeat = cmp.Or(o.Heartbeat, 20*time.Second)
	o.IOTimeout = cmp.Or(o.IOTimeout, 30*time.Second)
	o.Drain = cmp.Or(o.Drain, 30*time.Second)
	o.Limits.Bytes = cmp.Or(o.Limits.Bytes, jsonrpc.DefaultLimits().Bytes)
	o.Stdio = cmp.Or(o.Stdio, identity.Credential{Local: true})
	if o.Offers == nil {
		o.Offers = func(context.Context, string) json.RawMessage { return nil }
	}
	if o.HasServer == nil {
		o.HasServer = func(string) bool { return false }
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	if o.Ended == nil {
		o.Ended = func(string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// errClosing is the cause with which calls end that outlive Close.
var errClosing = errors.New("toolgate is shutting down")

// core is what requests of every revision share: options, limits of work in
// flight, and how messages are decoded, refused and answered.
type core struct {
	opts    Options
	base    context.Context // parent of every call's context; a client that hangs up does not end it
	cancel  context.CancelCauseFunc
	streams chan struct{} // closed by Close: event streams, stdio clients and the janitor end
	work    wait.Drain    // requests, stdio clients, and calls that continue after their request
}

// sessionServer serves requests of the revisions before 2026-07-28, which
// belong to a session that initialize opened.
type sessionServer struct {
	*core
	sessions  *table[*session]
	events    *eventLog
	unmatched atomic.Uint64 // answers that match no open question
}

// statelessServer serves requests of revision 2026-07-28, each of which says who
// asks and with what capabilities.
type statelessServer struct {
	*core
	groups *clientGroups
	parked sync.Map // :: callID -> *multiCall that was parked at least once
	signer *stateSigner
	events *eventLog
}

// Door serves MCP clients over HTTP (ServeHTTP) and stdio (Serve). It is safe
// for concurrent use.
type Door struct {
	*core
	session   *sessionServer
	stateless *statelessServer
	hosts     guard.Hosts
	events    *eventLog
	janitor   sync.WaitGroup

	mu           sync.Mutex                // protects the field below
	stdioClients map[*stdioClient]struct{} // being served
}

// New makes a Door. It fails when Gate or Refuser is missing, or the profile is
// not known. The caller must Close it.
func New(opts Options) (*Door, error) {
	if opts.Gate == nil || opts.Refuser == nil {
		return nil, errors.New("making the mcp door: no gate")
	}
	if !opts.Profile.Valid() {
		return nil, fmt.Errorf("making the mcp door: unknown envelope profile %q\nhint: use mcp or strict", string(opts.Profile))
	}
	if opts.StateKey != nil && len(opts.StateKey) != StateKeyBytes {
		return nil, fmt.Errorf("making the mcp door: a state key of %d bytes, want %d", len(opts.StateKey), StateKeyBytes)
	}
	opts = opts.withDefaults()
	base, cancel := context.WithCancelCause(context.Background())
	c := &core{opts: opts, base: base, cancel: cancel, streams: make(chan struct{})}
	events := newEventLog(opts)
	d := &Door{
		core:         c,
		session:      &sessionServer{core: c, sessions: newTable[*session](opts), events: events},
		stateless:    newStatelessServer(c, events),
		hosts:        guard.NewHosts(opts.Hosts),
		events:       events,
		stdioClients: make(map[*stdioClient]struct{}),
	}
	d.janitor.Go(d.reap)
	return d, nil
}

// Close ends the event streams, refuses new requests with 503, so that what was
// asked of clients has no answer, waits for the calls in flight until ctx ends,
// and cancels those that are left. It returns
// ctx's error in that case. Call it before http.Server.Shutdown, which would
// wait for the event streams. A second Close does nothing.
func (d *Door) Close(ctx context.Context) error {
	idle, was := d.work.Close()
	if !was {
		return nil
	}
	close(d.streams)
	for _, s := range d.session.sessions.all() {
		s.closeToQuestions()
	}
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.cancel(errClosing)
	d.janitor.Wait()
	d.session.sessions.endAll()
	d.stateless.groups.endAll()
	return err
}

// reap ends idle sessions until the door closes.
func (d *Door) reap() {
	tick := time.NewTicker(max(d.opts.SessionTTL/10, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.session.sessions.sweep()
			d.stateless.groups.sweep()
			d.events.sweep()
		case <-d.streams:
			return
		}
	}
}
