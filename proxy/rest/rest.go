// Package rest is the door for programs that speak plain HTTP: jobs, strict
// JSON-RPC envelopes, the tools, the artifacts and the signals of whoever
// asks. It judges nothing itself: every call goes down the one road.
//
//	POST /v1/jobs            a JobRequest; with a tool it is a call
//	POST /v1/rpc             one strict JSON-RPC envelope
//	GET  /v1/tools           ?name= what the caller may call, with schemas
//	GET  /v1/artifacts/{id}  bytes that a call of the caller made
//	GET  /v1/signals         server-sent events: the caller's signals
//	GET  /v1/openapi.json    all of this, for machines
//
// Statuses are those of the HTTP column of the error table (proxy/wire), and
// refusals are problem details (RFC 7807), on /v1/rpc JSON-RPC errors in
// dialect canonical. A caller that hangs up cancels its call.
package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// Options are what a Handler needs. Gate, Refuser, ToolIO, Artifacts and Bus
// are required, the zero value of everything else has a meaning.
type Options struct {
	Gate    Gate
	Refuser Refuser
	// ToolIO gives the schemas of a tool by its exposed name;
	// registry.ErrUnknownTool means that it has gone.
	ToolIO    func(exposed string) (*registry.ToolIO, error)
	Artifacts Artifacts
	Bus       Bus
	// Envelope says how /v1/rpc reads: Deterministic and Limits. Its profile is
	// always strict. Limits.Bytes bounds the body of a job too; 0 = 4 MiB.
	Envelope wire.Envelope
	// Observe is told of every envelope that /v1/rpc received, once, when its
	// answer is known; nil = nobody wants to know. It must not block.
	Observe func(wire.Event)
	// Hosts are the names, without port, besides loopback under which the
	// listener may be addressed and from which an Origin may come.
	Hosts []string
	// Version is what the OpenAPI document says of the program; "" = "dev".
	Version string
	// Heartbeat is the silence after which an event stream sends a comment, and
	// the time after which it asks again who is listening; 0 = 20 s.
	Heartbeat time.Duration
	// IOTimeout bounds reading one request body and writing one piece of an
	// answer; 0 = 30 s.
	IOTimeout time.Duration
	// Log gets what the caller is not told; nil = nothing is logged.
	Log hclog.Logger
	// Now is the clock of durations and events; nil = time.Now.
	Now func() time.Time
}

// withDefaults gives o with every zero field that has a default filled in.
func (o Options) withDefaults() Options {
	o.Version = cmp.Or(o.Version, "dev")
	o.Heartbeat = cmp.Or(o.Heartbeat, 20*time.Second)
	o.IOTimeout = cmp.Or(o.IOTimeout, 30*time.Second)
	o.Envelope.Limits.Bytes = cmp.Or(o.Envelope.Limits.Bytes, jsonrpc.DefaultLimits().Bytes)
	o.Envelope.Profile = wire.ProfileStrict
	if o.Observe == nil {
		o.Observe = func(wire.Event) {}
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
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
	document []byte             // the OpenAPI document as it is served
	calls    context.Context    // ends every call
	endCalls context.CancelFunc //
	streams  context.Context    // ends every event stream
	endAll   context.CancelFunc // of the streams
	work     wait.Drain         // requests being served
}

// methods are the handlers of one path. A method that is not there is 405.
type methods map[string]http.HandlerFunc

// New makes a Handler. It fails when something required is missing. The caller
// must Close it before it shuts the server down, which would wait for the
// event streams.
func New(opts Options) (*Handler, error) {
	switch {
	case opts.Gate == nil, opts.Refuser == nil, opts.ToolIO == nil:
		return nil, errors.New("making the rest door: gate, refuser and tool schemas are required")
	case opts.Artifacts == nil, opts.Bus == nil:
		return nil, errors.New("making the rest door: artifacts and bus are required")
	}
	opts = opts.withDefaults()
	document, err := openAPI(opts.Version)
	if err != nil {
		return nil, err
	}
	h := &Handler{
		opts: opts, hosts: guard.NewHosts(opts.Hosts), document: document,
	}
	h.calls, h.endCalls = context.WithCancel(context.Background())
	h.streams, h.endAll = context.WithCancel(context.Background())
	h.routes = h.table()
	return h, nil
}

// artifactPath is where the one route with a variable part begins.
const artifactPath = "/v1/artifacts/"

// table is every path with its methods. The OpenAPI document has the same
// ones; a test holds the two equal.
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

// openAPI is the document with the version of the program in it.
func openAPI(version string) ([]byte, error) {
	text, err := schemas.Files.ReadFile("openapi.json")
	if err != nil {
		return nil, fmt.Errorf("making the rest door: %w", err)
	}
	info, _ := jsonrpc.Get(text, "info")
	if info, err = jsonrpc.Set(info, "x-toolgate-version", jsonrpc.Quote(version)); err == nil {
		text, err = jsonrpc.Set(text, "info", info)
	}
	if err != nil {
		return nil, fmt.Errorf("making the rest door: the OpenAPI document: %w", err)
	}
	return text, nil
}

// describe answers with the OpenAPI document. Who reads it may be anybody: it
// says nothing about this installation but its version.
func (h *Handler) describe(w http.ResponseWriter, r *http.Request) {
	if h.reads(w, r, jsonType) {
		h.write(w, http.StatusOK, jsonType, h.document)
	}
}

// ServeHTTP serves the paths of the package comment; every other one is 404.
// It fails closed: what is not understood is refused before anything is read.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = noSniff
	if !h.hosts.Admits(r) {
		h.refuse(w, problem{http.StatusForbidden, "HOST_REFUSED", "host or origin is not one of this listener's"})
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

// routeOf gives the route that u names, "" for none. Only the canonical
// spelling of a path is one, but for the colon of an artifact's id, which many
// clients escape.
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

// allowed lists the methods of a path for people and for the header Allow.
func allowed(served methods) string {
	names := make([]string, 0, len(served))
	for name := range served {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Close ends the event streams and refuses new requests with 503. Calls in
// flight go on, and the server's Shutdown waits for them; see Drain for a
// bound. A second Close does nothing.
func (h *Handler) Close() {
	h.work.Close()
	h.endAll()
}

// Drain closes the handler, waits for the requests in flight until ctx ends,
// and cancels those that are left. It returns ctx's error in that case.
func (h *Handler) Drain(ctx context.Context) error {
	idle, _ := h.work.Close()
	h.endAll()
	defer h.endCalls()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Gate is what the door needs of the road. Its methods are called from many
// goroutines at a time.
type Gate interface {
	// Call governs one tools/call, or refuses one message that could not be
	// read (in.Fault). Exactly one of its results is set.
	Call(ctx context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure)
	// List gives the tools that who may see on the route of in, in the order to
	// show. Of in it takes the route and for whom the list is.
	List(ctx context.Context, in *proxy.Call, who policy.Principal) []*registry.Tool
	// Identify says who shows c; a Failure means nobody.
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, *proxy.Failure)
}

// Refuser records what a door itself refuses. code is one of the signal.Code
// constants; the result is never nil.
type Refuser interface {
	Refuse(ctx context.Context, in *proxy.Call, code, reason string) *proxy.Failure
}

// Artifacts gives the bytes that calls left behind. Get returns
// artifact.ErrNotFound for an id that is unknown, has expired or was not
// granted to who, all alike; the caller closes the file.
type Artifacts interface {
	Get(ctx context.Context, who policy.Principal, id string) (artifact.Artifact, *os.File, error)
}

// Bus carries signals to those that they belong to. Publish never blocks.
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
