// Package rest is the door for programs that use plain HTTP: jobs, strict JSON-RPC
// envelopes, and the tools, artifacts and signals of the caller. It makes no
// decisions: every call takes the one road.
//
//	POST /v1/jobs            a JobRequest, which is a call if it names a tool
//	POST /v1/rpc             one strict JSON-RPC envelope
//	GET  /v1/tools           ?name= the tools visible to the caller, with schemas
//	GET  /v1/artifacts/{id}  an artifact that was granted to the caller
//	GET  /v1/signals         server-sent events: the caller's signals
//	GET  /v1/openapi.json    the OpenAPI document
//
// Statuses are those of the HTTP column of the error table (proxy/wire). Refusals are
// problem details (RFC 7807), and on /v1/rpc JSON-RPC errors in dialect canonical.
package rest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Challenges words the header WWW-Authenticate: see [identity.Authenticator].
type Challenges interface {
	Challenge(c *identity.Credential) string
	StepUp(c *identity.Credential, scopes []string) string
}

// resource is what tokens for /v1 are issued for: the whole listener.
var resource = identity.Resource{Door: "/mcp"}

// Options configure a Handler. Gate, Refuser, ToolIO, Artifacts and Bus are
// required; the other fields have a default.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// ToolIO returns the schemas of a tool by its exposed name, or
	// registry.ErrUnknownTool if it no longer exists.
	ToolIO    func(exposed string) (*registry.ToolIO, error)
	Artifacts Artifacts
	Bus       Bus
	// Challenges words what answers want of a credential; nil = a bearer token.
	Challenges Challenges
	// Envelope has Deterministic and Limits of /v1/rpc; its profile is always
	// strict. Limits.Bytes also bounds the body of a job; 0 = 4 MiB.
	Envelope wire.Envelope
	// Budget bounds the bodies that are held at once; nil = nothing does.
	Budget *share.Budget
	// Observe is called once for every envelope that /v1/rpc received, when its
	// answer is known; nil is allowed. It must not block.
	Observe func(wire.Event)
	// Hosts are the names under which the listener may be addressed, in addition to
	// loopback, and Origins those of pages that may call it: see guard.NewHosts.
	Hosts, Origins []string
	// Version is the program version in the OpenAPI document; "" = "dev".
	Version string
	// Heartbeat is the time without events after which an event stream sends a
	// comment and authenticates its reader again; 0 = 20 s.
	Heartbeat time.Duration
	// IOTimeout bounds writing one piece of an answer; 0 = 30 s. The server bounds the
	// time of a request's body.
	IOTimeout time.Duration
	// Log receives the causes that answers do not show; nil discards them.
	Log hclog.Logger
	// Now is the clock of durations and events; nil = time.Now.
	Now func() time.Time
}

// withDefaults returns o with its defaults set.
func (o Options) withDefaults() Options {
	o.Version = cmp.Or(o.Version, "dev")
	o.Heartbeat = cmp.Or(o.Heartbeat, 20*time.Second)
	o.IOTimeout = cmp.Or(o.IOTimeout, 30*time.Second)
	o.Envelope.Limits.Bytes = cmp.Or(o.Envelope.Limits.Bytes, jsonrpc.DefaultLimits().Bytes)
	o.Envelope.Profile = wire.ProfileStrict
	if o.Challenges == nil {
		o.Challenges, _ = identity.New(identity.Config{}) // without a fault to name
	}
	if o.Observe == nil {
		o.Observe = func(wire.Event) {}
	}
	o.Log = cmp.Or(o.Log, hclog.NewNullLogger())
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Handler serves /v1 on the agents' listener. It is safe for concurrent use.
type Handler struct {
	opts     Options
	hosts    guard.Hosts
	routes   map[string]methods
	document func() []byte   // the OpenAPI document
	calls    context.Context // ends every call
	endCalls context.CancelCauseFunc
	streams  context.Context    // ends every event stream
	endAll   context.CancelFunc // of the streams
	work     wait.Drain         // requests being served
}

// methods are the handlers of one path by method. Other methods are answered
// with 405.
type methods map[string]http.HandlerFunc

// New returns a Handler. It fails when a required option is missing. Close the
// Handler before the server's Shutdown, which would wait for its event streams.
func New(opts Options) (*Handler, error) {
	switch {
	case opts.Gate == nil, opts.Refuser == nil, opts.ToolIO == nil:
		return nil, errors.New("making the rest door: gate, refuser and tool schemas are required")
	case opts.Artifacts == nil, opts.Bus == nil:
		return nil, errors.New("making the rest door: artifacts and bus are required")
	}
	opts = opts.withDefaults()
	h := &Handler{
		opts: opts, hosts: guard.NewHosts(opts.Hosts, opts.Origins...), document: schemas.OpenAPI("openapi.json", opts.Version),
	}
	h.calls, h.endCalls = context.WithCancelCause(context.Background())
	h.streams, h.endAll = context.WithCancel(context.Background())
	h.routes = h.table()
	return h, nil
}

// artifactPath is the prefix of the one route with a variable part.
const artifactPath = "/v1/artifacts/"

// table returns the methods of every path. A test compares it with the OpenAPI
// document.
func (h *Handler) table() map[string]methods {
	read := func(f http.HandlerFunc) methods { return methods{http.MethodGet: f, http.MethodHead: f} }
	return map[string]methods{
		"/v1/jobs":            {http.MethodPost: h.submit},
		rpcPath:               {http.MethodPost: h.rpc},
		"/v1/tools":           read(h.authenticated(h.tools)),
		artifactPath + "{id}": read(h.authenticated(h.artifact)),
		"/v1/signals":         {http.MethodGet: h.authenticated(h.signals)},
		"/v1/openapi.json":    read(h.describe),
	}
}

// describe answers with the OpenAPI document. It needs no authentication: the
// document shows nothing of this installation but its version.
func (h *Handler) describe(w http.ResponseWriter, r *http.Request) {
	if h.reads(w, r, wire.JSONType) {
		h.write(w, http.StatusOK, wire.JSONType, h.document())
	}
}

// ServeHTTP serves the paths of the package comment; other paths are 404. It
// fails closed: a request that it does not understand is refused before its
// body is read.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = wire.NoSniff
	if !h.hosts.Admits(r) {
		h.refuse(w, problem{http.StatusForbidden, "HOST_REFUSED", "host or origin is not one of this listener's: see toolgate.allowed_hosts and toolgate.allowed_origins"})
		return
	}
	served, ok := h.routes[routeOf(r.URL)]
	if !ok {
		h.refuse(w, problem{http.StatusNotFound, "NOT_FOUND", "no such path"})
		return
	}
	if !h.work.Enter() {
		h.refuse(w, shuttingDown)
		return
	}
	defer h.work.Leave()
	serve, ok := served[r.Method]
	if !ok {
		w.Header()["Allow"] = []string{allowed(served)}
		h.refuse(w, problem{http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "this path takes " + allowed(served)})
		return
	}
	serve(w, r)
}

// routeOf returns the route of u, "" for none. Only the canonical spelling of a
// path is a route; the colon of an artifact's id may be escaped, because many
// clients do so.
func routeOf(u *url.URL) string {
	if u.RawPath != "" && unescapeColon.Replace(u.RawPath) != u.Path {
		return ""
	}
	if id, ok := strings.CutPrefix(u.Path, artifactPath); ok && id != "" && !strings.Contains(id, "/") {
		return artifactPath + "{id}"
	}
	if strings.HasPrefix(u.Path, artifactPath) {
		return ""
	}
	return u.Path
}

var unescapeColon = strings.NewReplacer("%3A", ":", "%3a", ":")

// allowed returns the methods of a path for the header Allow and for messages.
func allowed(served methods) string {
	return strings.Join(slices.Sorted(maps.Keys(served)), ", ")
}

// EndStreams ends the event streams. Other requests are still served.
func (h *Handler) EndStreams() { h.endAll() }

// Close ends the event streams and refuses new requests with 503. Calls in
// flight continue, and the server's Shutdown waits for them; Drain has a bound.
// A second Close does nothing.
func (h *Handler) Close() {
	h.work.Close()
	h.endAll()
}

// Drain closes the handler and waits for the requests in flight until ctx ends. Those
// that are left then are cancelled with proxy.ErrShutdown and answered, and Drain
// returns ctx's error.
func (h *Handler) Drain(ctx context.Context) error {
	h.Close()
	cancel := func() { h.endCalls(proxy.ErrShutdown) }
	defer cancel()
	return h.work.Finish(ctx, cancel)
}

// Gate is the part of the road that the door calls, from many goroutines at
// once.
type Gate interface {
	// Call governs one tools/call, or refuses one message that could not be
	// read (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List returns the tools that are visible to who on the route of in, in order.
	// It reads the route and the caller from in.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify returns the principal of c, or a Failure if there is none.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Refuser records the refusals of a door. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

// Artifacts returns the artifacts of calls. Get returns artifact.ErrNotFound
// for an id that is unknown, has expired or was not granted to who. The caller
// closes the file.
type Artifacts interface {
	Get(ctx context.Context, who policy.Principal, id string) (artifact.Artifact, *os.File, error)
}

// Bus delivers signals to their owners. Publish never blocks.
type Bus interface {
	Publish(owner policy.Principal, s signal.Signal)
	Subscribe(who policy.Principal) (*bus.Subscription, error)
}

var (
	_ Gate      = (*proxy.Gate)(nil)
	_ Refuser   = (*proxy.Gate)(nil)
	_ Artifacts = (*artifact.Store)(nil)
	_ Bus       = (*bus.Bus)(nil)
)
