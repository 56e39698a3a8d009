// Package mcp serves MCP clients: the Streamable HTTP door for the revisions
// 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28, the HTTP+SSE door of
// 2024-11-05, and the stdio door. A door frames messages, knows sessions and
// passes every tools/call to the gate as raw bytes; it judges no call itself. One
// dispatch table serves every revision and transport, so that the same rules
// hold everywhere.
//
//	HTTP      guard -> media -> identify -> body -> decode -> version -> session -> dispatch -> observe -> reply
//	HTTP+SSE  guard -> media -> identify -> body -> decode            -> session -> dispatch -> observe -> event
//	stdio                                   line -> identify -> decode           -> dispatch -> observe -> reply
//
// A revision with sessions opens one with initialize. A request of 2026-07-28
// belongs to a client group instead: the requests of one principal, route and set
// of capabilities. An event stream outlives its connections: a client that lost
// one names the last event that it had and gets the rest.
package mcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/singleflight"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
)

// Challenges words the header WWW-Authenticate: see [identity.Authenticator].
type Challenges interface {
	Challenge(c *identity.Credential) string
	StepUp(c *identity.Credential, scopes []string) string
}

// Options configure a Door. Gate and Refuser are required; the zero value of
// every other field has the meaning that its comment gives.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// Relayer serves resources, prompts and completions on /mcp/{server}; nil =
	// they are not served.
	Relayer Relayer
	// Listens returns the servers of a route, "" for all, that get the members of a filter of
	// subscriptions/listen that toolgate does not know; nil = none does.
	Listens func(route string) []string
	// Notifier passes notifications of clients to servers; nil = they are dropped.
	Notifier Notifier
	// Offers returns the relayed capabilities of the server name, or of all
	// servers for "", and nil when they are not known. They are advertised as they
	// are, except tools, which are always advertised with a list that may change.
	// Nil = only tools are advertised.
	Offers func(ctx context.Context, name string) json.RawMessage
	// Introductions returns how the server name, or each server for "", introduces
	// itself, without waiting. A client gets those of servers with a tool that its
	// principal sees. Nil = toolgate introduces itself alone.
	Introductions func(name string) []registry.Introduction
	// HasServer reports whether /mcp/{name} exists; nil = no server has a route of
	// its own.
	HasServer func(name string) bool
	// Errors is the dialect of /mcp and stdio; "" = wire.Gateway. /mcp/{server}
	// always speaks wire.MCP.
	Errors wire.Dialect
	// Version is the version in serverInfo; "" = "dev".
	Version string
	// Profile says what a valid message is; "" = wire.ProfileMCP.
	Profile wire.Profile
	// Deterministic makes wire.ProfileStrict require a UUID as the id of a request.
	Deterministic bool
	// Observe is called once for every envelope received, when its answer is known
	// and before it is sent; nil = envelopes are not reported. It is called from
	// many goroutines, must not block and must not call back into the Door.
	Observe func(wire.Event)
	// Crowded is called for each message of a server that is dropped because its client does not
	// read; nil = nobody asks. It must not block and must not call back into the Door.
	Crowded func()
	// MinRevision is the oldest revision that is served: a client that speaks an older one is
	// refused with UNSUPPORTED_VERSION; "" = all are served.
	MinRevision string
	// Deprecated is called when a client uses what MCP 2026-07-28 has deprecated: http+sse,
	// roots, sampling or logging; nil = nobody asks. It must not block and must not call back
	// into the Door.
	Deprecated func(feature string)
	// Limits bound one message; zero fields have the defaults of jsonrpc.
	Limits jsonrpc.Limits
	// Budget bounds the bodies that are held at once; nil = nothing does. Over HTTP a request
	// without room is refused with 503, and stdio is not read on.
	Budget *share.Budget
	// Hosts are the names under which the listener may be addressed, in addition to
	// loopback, and Origins those of pages that may call it: see guard.NewHosts.
	Hosts, Origins []string
	// Challenges words what answers over HTTP want of a credential; nil = a bearer token.
	Challenges Challenges
	// Stdio is the credential of the stdio door; the zero value is the local user.
	Stdio identity.Credential
	// SessionID makes the ID of a session of HTTP, which nobody can guess; nil = 130 random
	// bits. It is called from many goroutines.
	SessionID func() string
	// SessionTTL is how long a session may be idle; 0 = 30 minutes.
	SessionTTL time.Duration
	// MaxSessions is how many sessions are kept; 0 = 10,000. Beyond it the oldest
	// idle session ends of the principal that has the most.
	MaxSessions int
	// MaxFlights is how many requests of one stdio or HTTP+SSE client run at a time; 0 =
	// 256. Pings are not counted. Further ones wait, with at most Limits.Bytes together;
	// see Serve for what has no room. An HTTP+SSE client is refused then.
	MaxFlights int
	// PageSize is the number of tools in one answer to tools/list; 0 = 1,000.
	PageSize int
	// AnswerTTL is how long a call of a client without a session waits for the
	// client's answers to a server's questions; 0 = 10 minutes.
	AnswerTTL time.Duration
	// Tasks says that the gate answers held calls with tasks. The capability is
	// advertised to clients without a session.
	Tasks bool
	// StateKey signs the requestState of clients without a session, and with PassOn the IDs of
	// their tasks: StateKeyBytes secret bytes. Doors with the same key accept each other's states where the
	// request can start again from the beginning; nil = a random key.
	StateKey []byte
	// Replica begins the IDs of calls that wait for answers of their clients, and is in those of
	// tasks. PassOn passes a request on to the replica that has its call or its task, with the
	// body as it came. It reports whether the request is answered; otherwise the call or the task is
	// gone. A nil PassOn is that of a replica without others.
	Replica [8]byte
	PassOn  func(w http.ResponseWriter, r *http.Request, body []byte, owner [8]byte) bool
	// Keeper keeps the sessions of Streamable HTTP for other replicas, and has those of replicas that are
	// gone; nil = sessions end with the process. It requires Replica and PassOn.
	Keeper Keeper
	// TakenOver is called for each session of a replica that is gone. whole is false for a session with
	// subscriptions: its client gets SESSION_LOST. nil = nobody asks.
	TakenOver func(whole bool)
	// MaxParked is how many calls may wait for answers of their clients; 0 = 4,096.
	// Beyond it the call that waits longest ends, of the principal that has the most,
	// for one that has fewer.
	MaxParked int
	// MaxListens is how many notification streams one principal may have open
	// without a session; 0 = 32.
	MaxListens int
	// Heartbeat is the silence after which an event stream sends a comment, and
	// the interval at which the credential of a notification stream without a
	// session is checked again; 0 = 20 s.
	Heartbeat time.Duration
	// StreamLife is the age at which an event stream of a 2025-11-25 client is
	// closed, so that the client reconnects (MCP 2025-11-25, transports: polling);
	// 0 = never.
	StreamLife time.Duration
	// EventLog bounds the events kept for clients that lost an event stream.
	EventLog eventlog.Limits
	// IOTimeout bounds writing one message; 0 = 30 s. The server bounds the time of a
	// request's body.
	IOTimeout time.Duration
	// Drain is how long the stdio door waits at the end of its input for calls in
	// flight; 0 = 30 s.
	Drain time.Duration
	// Ended is called with the key (proxy.Call.Session) of each session that is
	// over, once and after its last call; nil = ends are not reported. It must
	// neither block nor call back into the Door. The key of clients without a
	// session ends after SessionTTL without a request, and may come back.
	Ended func(session string)
	// Session is called with each session of MCP that is over, after Ended and under its
	// rules; nil = nobody asks.
	Session func(s span.Session)
	// Log takes faults of the door's own; nil discards them.
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
	o.MaxListens = cmp.Or(o.MaxListens, 32)
	o.Heartbeat = cmp.Or(o.Heartbeat, 20*time.Second)
	o.IOTimeout = cmp.Or(o.IOTimeout, 30*time.Second)
	o.Drain = cmp.Or(o.Drain, 30*time.Second)
	o.Limits.Bytes = cmp.Or(o.Limits.Bytes, jsonrpc.DefaultLimits().Bytes)
	o.Stdio = cmp.Or(o.Stdio, identity.Credential{Local: true})
	o.Log = cmp.Or(o.Log, hclog.NewNullLogger())
	if o.Challenges == nil {
		o.Challenges, _ = identity.New(identity.Config{}) // without a fault to name
	}
	if o.Ended == nil {
		o.Ended = func(string) {}
	}
	if o.SessionID == nil {
		o.SessionID = rand.Text
	}
	if o.Deprecated == nil {
		o.Deprecated = func(string) {}
	}
	if o.Crowded == nil {
		o.Crowded = func() {}
	}
	if o.TakenOver == nil {
		o.TakenOver = func(bool) {}
	}
	if o.Session == nil {
		o.Session = func(span.Session) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// core is what requests of every revision share: options, limits of work in
// flight, and how messages are decoded, refused and answered.
type core struct {
	opts    Options
	base    *wait.Context   // parent of every call's context; a client that hangs up does not end it
	closing context.Context // ended by Close: event streams, stdio clients and the janitor end
	close   context.CancelFunc
	work    wait.Drain    // requests, stdio clients, and calls that continue after their request
	calls   *wait.Workers // run the calls that may continue after their request

	events     *eventlog.Log
	serverInfo json.RawMessage // name and version of toolgate
}

// sessionServer serves requests of the revisions before 2026-07-28, which
// belong to a session that initialize opened.
type sessionServer struct {
	*core
	sessions  *table[*session]
	taking    singleflight.Group // of sessions of other replicas
	unmatched atomic.Uint64      // answers that match no open question
}

// statelessServer serves requests of revision 2026-07-28, each of which says who
// asks and with what capabilities.
type statelessServer struct {
	*core
	groups *clientGroups
	parked sync.Map // :: callID -> *multiCall that was parked at least once
	signer *stateSigner
}

// Door serves MCP clients over HTTP (ServeHTTP) and stdio (Serve). It is safe
// for concurrent use.
type Door struct {
	*core
	session   *sessionServer
	stateless *statelessServer
	hosts     guard.Hosts
	janitor   sync.WaitGroup

	stdioClients sync.Map // :: *stdioClient -> owner of its last line; those being served
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
	c := &core{opts: opts, base: new(wait.Context), calls: wait.NewWorkers(), serverInfo: serverInfoOf(opts.Version)}
	c.base.Begin(nil)
	c.closing, c.close = context.WithCancel(c.base)
	c.events = eventlog.New(eventlog.Options{Limits: opts.EventLog, Now: opts.Now, Crowded: opts.Crowded, Keeper: opts.Keeper, Slow: func(by owner) {
		opts.Log.Warn("a client does not read its event stream: it is disconnected, and beyond what is kept for it the oldest events are dropped", "principal", by.Subject, "after", eventlog.SendTimeout)
	}})
	groups := &clientGroups{table: newTable[*clientGroup](opts), onEnd: opts.Ended, named: make(map[owner]int), listens: make(map[owner]int), parked: share.New[owner](opts.MaxParked)}
	groups.reuse = true
	d := &Door{
		core:      c,
		session:   &sessionServer{core: c, sessions: newTable[*session](opts)},
		stateless: &statelessServer{core: c, groups: groups, signer: newStateSigner(opts.StateKey)},
		hosts:     guard.NewHosts(opts.Hosts, opts.Origins...),
	}
	d.janitor.Go(d.reap)
	return d, nil
}

// EndStreams ends the event streams that belong to no call, and questions to clients fail. Other
// requests are still served. Call it before http.Server.Shutdown, which would wait for the streams.
func (d *Door) EndStreams() {
	d.close()
	for _, s := range d.session.sessions.all() {
		s.closeToQuestions()
	}
}

// Close does what EndStreams does, and refuses new requests with 503. It waits for the calls in flight until ctx ends. Those that are left
// then are cancelled with proxy.ErrShutdown and answered, and Close returns ctx's
// error. The sessions that are left are kept for other replicas.
// A second Close does nothing.
func (d *Door) Close(ctx context.Context) error {
	if _, was := d.work.Close(); !was {
		return nil
	}
	d.EndStreams()
	calls := d.calls.Finish()
	err := d.work.Finish(ctx, func() { d.base.End(proxy.ErrShutdown) })
	if err == nil {
		calls.Wait()
	}
	d.base.End(proxy.ErrShutdown)
	d.janitor.Wait()
	d.events.StopKeeping()
	d.session.sessions.endAll()
	d.stateless.groups.endAll()
	return err
}

// Sessions returns the number of open sessions by the transport of their clients, http
// or sse.
func (d *Door) Sessions() map[string]float64 {
	open := map[string]float64{"http": 0, "sse": 0}
	for _, s := range d.session.sessions.all() {
		if s.sseClient != nil {
			open["sse"]++
		} else {
			open["http"]++
		}
	}
	return open
}

// Negotiated returns how many clients declare each extension, by the names of
// registry.ExtensionsIn: open sessions, and clients of revisions without sessions.
func (d *Door) Negotiated() map[string]float64 {
	out := make(map[string]float64)
	count := func(extensions []string) {
		for _, name := range extensions {
			out[name]++
		}
	}
	for _, s := range d.session.sessions.all() {
		count(s.extensions)
	}
	for _, g := range d.stateless.groups.all() {
		count(g.extensions)
	}
	for c := range d.stdioClients.Range {
		if s := c.(*stdioClient).current(); s != nil {
			count(s.extensions)
		}
	}
	return out
}

// Parked returns the number of multi-round calls that wait for the next attempt of their
// clients.
func (d *Door) Parked() int {
	t := d.stateless.groups
	t.mu.Lock()
	defer t.unlock()
	return t.parked.Held()
}

// reap ends idle sessions until the door closes.
func (d *Door) reap() {
	for wait.For(d.closing, max(d.opts.SessionTTL/10, time.Second)) {
		d.session.sessions.sweep()
		d.stateless.groups.sweep()
		d.events.Sweep()
		d.KeepSessions()
	}
}

// Gate is the road, as far as the doors need it. Its methods are called from
// many goroutines at a time.
type Gate interface {
	// Call governs one tools/call, or refuses one message that could not be
	// decoded (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// Listing gives the tools that who may see on the route of in, in the order to
	// show. Of in it takes the route and for whom the list is.
	Listing(ctx context.Context, in *proxy.Call, who policy.Principal) *proxy.Listing
	// Identify says who shows c; a Failure means nobody.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Finder is implemented by a Gate that can find one tool without listing all.
type Finder interface {
	// Find gives the tool that who sees under name on the route of in, nil for
	// none.
	Find(ctx context.Context, in *proxy.Call, who policy.Principal, name string) *registry.Tool
}

// Relayer is the road of requests that call no tool. Both methods serve the
// route of one server alone and refuse any other.
type Relayer interface {
	// Relay governs one request for a resource, a prompt or a completion.
	// Exactly one of its results is set.
	Relay(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// Enumerate gives one page of a list as who may see it.
	Enumerate(ctx context.Context, in *proxy.Call, who policy.Principal) (json.RawMessage, *proxy.Failure)
}

// Notifier is the road of notifications from clients to servers.
type Notifier interface {
	// Notify governs one notification and passes it on; a Failure says why it did
	// not. It waits for no server.
	Notify(ctx context.Context, in *proxy.Call) *proxy.Failure
}

// Refuser records what a door itself refuses. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

var (
	_ Finder  = (*proxy.Gate)(nil)
	_ Gate    = (*proxy.Gate)(nil)
	_ Relayer = (*proxy.Gate)(nil)
	_ Refuser = (*proxy.Gate)(nil)
)

// owner names a principal.
type owner = share.Owner

func ownerOf(who policy.Principal) owner { return owner{Subject: who.Subject, Tenant: who.Tenant} }

// account says whose a session or client group is, and when it was last used.
type account struct {
	owner owner
	used  atomic.Int64 // Unix time in nanoseconds
	order uint64       // counts what a table has held
}

// ledger returns a, for those that embed it.
func (a *account) ledger() *account { return a }

// touch marks what a belongs to as used: a request that has just ended counts as
// use.
func (a *account) touch(now time.Time) { a.used.Store(now.UnixNano()) }

// older reports whether a was used before b.
func (a *account) older(b *account) bool {
	if x, y := a.used.Load(), b.used.Load(); x != y {
		return x < y
	}
	return a.order < b.order
}

// client is what a table holds: a session, or a client group.
type client interface {
	ledger() *account
	// busy reports whether work is under way, or, with streams, an event stream
	// is open.
	busy(streams bool) bool
	// end ends it. It does not block.
	end()
}

// table holds clients until they have been idle for ttl, max of them. It is safe
// for concurrent use.
type table[T client] struct {
	ttl time.Duration
	max int
	now func() time.Time
	// reuse says that a key may be taken again after its client has ended.
	reuse bool

	mu    sync.Mutex // protects the fields below
	byKey map[string]T
	ended []T    // removed, and to be ended by unlock
	held  uint64 // how many there were
}

func newTable[T client](opts Options) *table[T] {
	return &table[T]{ttl: opts.SessionTTL, max: opts.MaxSessions, now: opts.Now, byKey: make(map[string]T)}
}

// putLocked adds v under a key that is free. When the table is full, an idle client of
// the owner that has the most ends, the one that has been idle longest, so that
// one principal's flood costs its own clients. It returns false when every
// client is at work. The caller must hold t.mu and release it with unlock.
func (t *table[T]) putLocked(key string, v T) bool {
	if len(t.byKey) >= t.max && !t.makeRoomLocked(v.ledger().owner) {
		return false
	}
	t.held++
	v.ledger().order = t.held
	v.ledger().touch(t.now())
	t.byKey[key] = v
	return true
}

// makeRoomLocked ends one idle client and reports whether there was one. The
// caller must hold t.mu.
func (t *table[T]) makeRoomLocked(of owner) bool {
	held := make(map[owner]int)
	for _, v := range t.byKey {
		held[v.ledger().owner] += 2
	}
	held[of]++ // of owners that have as many, the one who asks
	var victim string
	var best *account
	for key, v := range t.byKey {
		a := v.ledger()
		if best != nil && (held[a.owner] < held[best.owner] || held[a.owner] == held[best.owner] && best.older(a)) {
			continue
		}
		if !v.busy(false) {
			victim, best = key, a
		}
	}
	if best == nil {
		return false
	}
	t.endLocked(victim)
	return true
}

// endLocked ends the client under key. The caller must hold t.mu and release it
// with unlock. With reuse, the end comes before the key can be taken again, so
// that no connection of a successor is closed for it; otherwise it comes after
// t.mu is released, so that it holds up nobody.
func (t *table[T]) endLocked(key string) {
	v := t.byKey[key]
	delete(t.byKey, key)
	if t.reuse {
		v.end()
		return
	}
	t.ended = append(t.ended, v)
}

// unlock releases t.mu and ends the clients that endLocked has removed.
func (t *table[T]) unlock() {
	ended := t.ended
	t.ended = nil
	t.mu.Unlock()
	for _, v := range ended {
		v.end()
	}
}

// sweep ends the clients that have been idle for too long.
func (t *table[T]) sweep() {
	t.mu.Lock()
	defer t.unlock()
	for key, v := range t.byKey {
		if t.now().UnixNano()-v.ledger().used.Load() > int64(t.ttl) && !v.busy(true) {
			t.endLocked(key)
		}
	}
}

// endAll ends every client.
func (t *table[T]) endAll() {
	t.mu.Lock()
	defer t.unlock()
	for key := range t.byKey {
		t.endLocked(key)
	}
}

// all returns the clients.
func (t *table[T]) all() []T {
	t.mu.Lock()
	defer t.unlock()
	return slices.Collect(maps.Values(t.byKey))
}
