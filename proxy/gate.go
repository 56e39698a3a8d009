// Package proxy is the road that every tool call takes, whatever door it comes
// in by: receive, identify, stop, resolve, decide, connect, limit, validate, approve,
// record, forward, normalise and close. Gate.Call runs it; nothing else calls a tool.
//
// Each kind of request has one small type: toolCall, relayed (requests that call
// no tool) and question (of a server to its client). All embed call,
// which has the ids, the principal, the judged bytes and the decision. A road is a
// literal list of stages, and each stage a method of the request:
//
//	reply, failure := gate.Call(ctx, &proxy.Call{Message: m, Credential: c, Transport: "http"})
//
// road.go has the lists and the walk. Each stage of a tool call is in the file of its name,
// relay.go and callback.go have the requests that call no tool.
// A Gate is safe for concurrent use.
package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Identifier turns a credential into a principal. An error is a refusal; there
// is no fallback identity.
type Identifier interface {
	Identify(ctx context.Context, c identity.Credential) (policy.Principal, error)
}

// Policy judges calls. An error from Decide denies, an error from Visible hides.
type Policy interface {
	Decide(ctx context.Context, in *policy.Input) (policy.Decision, error)
	Visible(ctx context.Context, p policy.Principal, t policy.Tool) (bool, error)
	Revision() string
}

// Limiter spends quota. A nil answer means that every bucket gave its token,
// any other that none did.
type Limiter interface {
	Spend(now time.Time, p policy.Principal, t policy.Tool, extra *policy.Limit) *limit.Exceeded
}

// Tickets holds calls until people have decided. Claim spends a grant at most
// once; every error refuses the call.
type Tickets interface {
	Claim(ctx context.Context, held approval.Held) (approval.Claim, error)
	Release(ctx context.Context, id string) error
	Finish(ctx context.Context, id string, state approval.State, result []byte, note string) error
}

// Repeats returns the ticket that would answer a held call, or
// approval.ErrNotFound, and changes nothing.
type Repeats interface {
	Repeated(ctx context.Context, held approval.Held) (approval.Ticket, error)
}

// Waiter waits until a ticket has been decided or ctx ends.
type Waiter interface {
	Wait(ctx context.Context, id string) error
}

// Book returns tickets to their requesters. Checking the owner is the gate's job.
type Book interface {
	// Get returns one ticket, whoever made it, or approval.ErrNotFound.
	Get(ctx context.Context, id string) (approval.Ticket, error)
	// Answering returns the tickets of p that still answer a call, newest first.
	Answering(ctx context.Context, p policy.Principal) ([]approval.Ticket, error)
	// Supersede ends a ticket that is live; approval.ErrNotLive otherwise.
	Supersede(ctx context.Context, id, who, reason string) error
}

// Recorder writes the audit trail. Write returns when the record is as durable as
// configured, and keeps nothing of r; its error refuses the call (audit.KindDecision), or withholds its result
// (audit.KindOutcome).
type Recorder interface {
	Write(kind audit.Kind, r *audit.Record) error
}

// Upstreams has the tools, and forwards calls to their servers. Forward has one
// call site in the whole program: the stage forward.
type Upstreams interface {
	// View returns the tools of a route, "" for all servers, as the connections of
	// from offer them. Its methods wait for servers that were never seen.
	View(ctx context.Context, route string, from registry.Downstream) registry.View
	Forward(ctx context.Context, t *registry.Tool, out registry.Outgoing) (json.RawMessage, error)
}

// Artifacts stores the bytes of results for the principals who received them.
type Artifacts interface {
	Put(ctx context.Context, owner policy.Principal, mediaType string, data []byte) (artifact.Artifact, error)
}

// Bus publishes the signals of owner's calls to owner's listeners. It never blocks.
type Bus interface {
	Listening(owner policy.Principal) bool
	Publish(owner policy.Principal, s signal.Signal)
}

// Servers answers requests that call no tool. Like Forward, Ask is called on the
// road only.
type Servers interface {
	// Offers returns the servers that have not failed or whose lists are kept, in
	// configured order, with their capabilities. It waits for servers that were never seen.
	Offers(ctx context.Context) []registry.Offer
	Ask(ctx context.Context, server string, ask registry.Ask) (json.RawMessage, error)
	// Notify sends a client's notification to the connections of its session; server
	// "" means all. It does not block.
	Notify(server, session, method string, params json.RawMessage)
}

// Settings are the operator's choices that may change while the gate serves.
type Settings struct {
	// Results is off, compact, full or signals; "" means compact.
	Results string
	// RetryAfter is the delay suggested for transient errors that a retry may fix
	// and that know no delay of their own; 0 = none.
	RetryAfter time.Duration
	// Inline is the most bytes, of text or of JSON, that one signal carries
	// with Results signals; what is larger becomes an artifact. 0 means 64 KiB.
	Inline int
	// ArtifactURL is what stands before "/v1/artifacts/<id>" in the resource
	// links of Results signals.
	ArtifactURL string
	// ConsoleURL is what stands before "/console/approvals/<id>" in the links
	// that lead people to a ticket, without a slash at its end; "" = no links.
	ConsoleURL string
	// Hold is how long a held call waits for a decision before it is answered
	// as pending; 0 answers at once, nil = as Clients says. A policy's own hold
	// takes precedence.
	Hold *time.Duration
	// Clients bounds the wait by who waits, and shapes what each is shown; the first that
	// matches counts.
	Clients []ClientProfile
	shaped  []ClientProfile // those with Results
	// Shapes says by server how the answers to calls of its tools are shown. It takes
	// precedence over Clients, and the credential's own over both.
	Shapes map[string]policy.Shape
	// Execute names the tools, as exposed, whose held calls run as soon as they
	// are approved. A policy can ask for the same.
	Execute []string
	// InFlight caps the calls under way at once, and apart from them the
	// questions of servers; 0 means 4096.
	InFlight int
	// Methods names the methods of extensions that are relayed, by server:
	// requests and, below "notifications/", notifications in both directions.
	Methods map[string][]string
	// EscapeHidden names the servers whose hidden characters are spelled out.
	EscapeHidden []string
}

// Options are the parts of a Gate. All but Refused, Fold, Usage, Waiter, Book,
// Servers, Artifacts, Bus, Tracer, Credentials, Observe, Log, Now and Settings are required.
type Options struct {
	Identifier Identifier
	Policy     Policy
	Limiter    Limiter
	Refused    Limiter // of refused calls; nil: they are not limited
	// Fold counts a call that Refused refused, in place of a record of its own; it must
	// not be nil where Refused is not.
	Fold      func(audit.Principal, audit.Event)
	Usage     Usage // nil: calls of tools that the policy meters are refused
	Tickets   Tickets
	Waiter    Waiter  // nil: held calls are answered at once
	Repeats   Repeats // nil: every repetition of a held call costs quota
	Book      Book    // nil: agents cannot ask for their tickets, and get no tasks for held calls
	Recorder  Recorder
	Upstreams Upstreams
	Servers   Servers   // nil: requests that call no tool are refused
	Artifacts Artifacts // nil: no bytes are kept, and FILE signals name them only
	Bus       Bus       // nil: nobody listens
	Tracer    Tracer    // nil: nothing is traced
	Baggage   []string  // keys of the caller's W3C Baggage in params._meta that servers receive; nil = none
	// Credentials finds those of callers at servers where each needs one; nil: there is no such server.
	Credentials Credentials
	Stops       Stops // nil = nobody stops requests
	Settings    Settings
	// Observe is called with every closed call; it must not block.
	Observe func(Observation)
	Log     hclog.Logger
	Now     func() time.Time
}

// Observation is a closed call for metrics. No field names a person.
type Observation struct {
	Server, Tool string // "" when the call did not resolve
	Effect       policy.Effect
	Code         string // kernel code of a refusal, "" when the call was answered
	Limit        string // that refused the call, as limit.Exceeded names it; "" for none
	Duration     time.Duration
	Upstream     time.Duration // of Duration, from handing the call to the server to its answer; 0 = it was not handed over
	Warnings     []string      // kernel codes of what was wrong with a call that was made all the same, or with its result
	Hidden       []string      // kinds of hidden characters in what From sent, nil for none
	From         string        // the server that answered, or asked; "" for none
	TraceID      string        // of a trace that is recorded, "" for none
}

// Gate is the one chokepoint between agents and tools. It is safe for
// concurrent use.
type Gate struct {
	opts     Options
	policy   atomic.Pointer[Policy]
	settings atomic.Pointer[Settings]
	inFlight atomic.Int64 // calls under way
	running  running      // at servers
	asking   atomic.Int64 // questions of servers under way
	dropped  atomic.Int64 // notifications of servers that were not passed on
	sessions session.Sessions
	listings listings
	polls    *limit.Limiter // of calls that come back for their tickets
}

// New returns a Gate, or an error for options that leave a stage without its
// control.
func New(opts Options) (*Gate, error) {
	if opts.Identifier == nil || opts.Policy == nil || opts.Limiter == nil || opts.Tickets == nil || opts.Recorder == nil || opts.Upstreams == nil {
		return nil, errors.New("making the gate: identifier, policy, limiter, tickets, recorder and upstreams are required")
	}
	opts.Log, opts.Bus = cmp.Or(opts.Log, hclog.NewNullLogger()), cmp.Or[Bus](opts.Bus, silent{})
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Observe == nil {
		opts.Observe = func(Observation) {}
	}
	if opts.Stops == nil {
		opts.Stops = noStops{}
	}
	g := &Gate{opts: opts, sessions: session.New(), polls: limit.New(limit.Rules{}), running: running{calls: make(map[*call]wait.Ender)}}
	g.SetPolicy(opts.Policy)
	g.Apply(opts.Settings)
	return g, nil
}

// InFlight returns how many requests are on the road, those that wait for people
// included.
func (g *Gate) InFlight() int64 { return g.inFlight.Load() }

// SetPolicy makes p judge every call that begins from now on. Calls in flight keep
// the policy that they began with, until they are judged again after a hold.
func (g *Gate) SetPolicy(p Policy) { g.policy.Store(&p) }

// Apply replaces the settings.
func (g *Gate) Apply(s Settings) {
	s.Results = cmp.Or(s.Results, "compact")
	s.Inline = cmp.Or(max(0, s.Inline), 64<<10)
	s.InFlight = cmp.Or(max(0, s.InFlight), 4096)
	s.shaped = slices.DeleteFunc(slices.Clone(s.Clients), func(p ClientProfile) bool { return p.Results == "" })
	g.settings.Store(&s)
}

// Call is one request as a door received it. The door fills in what it knows; the
// road judges.
type Call struct {
	// Message is the decoded request; nil, with Fault set, when the decoder refused
	// the bytes.
	Message *jsonrpc.Message
	// Fault is why there is no Message.
	Fault *jsonrpc.Fault
	// Credential is what the caller showed; the road turns it into a principal.
	Credential identity.Credential
	// Principal is whom the door has identified by Credential for this request,
	// with Gate.Identify; the zero value has the road identify it.
	Principal policy.Principal
	// Client is the name/version that the client gave of itself, unverified, and ClientInfo all
	// that it said, an object; nil = nothing.
	Client     string
	ClientInfo json.RawMessage
	// Route is "" for the aggregated catalogue, else the one server that the
	// call came in for.
	Route string
	// Session keys the downstream session, "" when the door has none.
	Session string
	// TaskID returns the ID for the caller of a server's task; nil = the server's own. The
	// door puts the server's ID back into requests.
	TaskID func(id string) string
	// TakenOver says that the session was that of a replica that is gone, and so were its tasks.
	TakenOver bool
	// Transport is http, stdio, ndjson or rest.
	Transport string
	// Era is the MCP revision that the caller speaks, "" outside MCP.
	Era string
	// SignalID is the id of the Signal that asks for the call, "" = the road
	// makes one. It is the parent of every Signal that comes of the call.
	SignalID string
	// Tags are what the caller of a job claims of it (see policy.Request); nil = nothing.
	Tags map[string]string
	// TraceID continues a trace, "" = that of params._meta.traceparent, or a
	// new one.
	TraceID string
	// Trace is the trace context of the transport's own request, such as the headers
	// of HTTP; nil = none. It matters only to a Gate with a Tracer.
	Trace span.Carrier
	// Cancel ends the context that is given to the road, also when the server does not answer in
	// time or people stop the call; nil = the road makes a context that it can end.
	Cancel wait.Ender
	// Bytes is what the request holds of the budget of messages, and its answer is going to
	// hold; nil = nothing is counted.
	Bytes *share.Claim
	// Progress receives params of notifications/progress for this call without
	// a progressToken member; nil means none is wanted. It is called from one
	// goroutine at a time and never after Call has returned.
	Progress func(params json.RawMessage)
	// Later receives the progress of the task that the call became, after Call has
	// returned and for as long as the task lives; nil means none is wanted.
	Later func(params json.RawMessage)
	// Capabilities are those that the client declared, an object; nil = none. Level
	// is the least severe log message that it wants, "" = not said.
	Capabilities json.RawMessage
	Level        string
	// resumed is the approved ticket whose call this is, nil for the calls of doors.
	resumed *approval.Ticket
	// Peer receives the questions and notifications of a server in the course of the
	// call, Home those that belong to no call of the session. Nil = nobody.
	Peer, Home registry.Peer
	// Listen is the stream that subscriptions/listen opens at the server of Route; nil for any
	// other method.
	Listen *registry.Listen
}

// Reply is the answer to a call that was not refused.
type Reply struct {
	// Result is the tools/call result to send, already carrying the kernel
	// Result in its _meta as the configured mode wants it.
	Result json.RawMessage
	// Kernel is the same outcome as Signals.
	Kernel signal.Result
	// Ticket is the id of the approval ticket that the reply speaks of, or "".
	Ticket string
	// RetryAfter is the wait before asking again is worthwhile; more than 0 only
	// while the ticket is undecided or its call runs.
	RetryAfter time.Duration
	// DecisionID and TraceID name the call in the audit trail.
	DecisionID, TraceID string
	// Tool is what was called.
	Tool *registry.Tool
	// Decision is what let the call pass, or held it.
	Decision policy.Decision
}

// Failure is a refused or failed call, which a door answers with wire.Answer.
type Failure wire.Failure

// Error says what went wrong in one line.
func (f *Failure) Error() string { return f.Kernel.Error() }

// Unwrap returns the kernel error.
func (f *Failure) Unwrap() error { return f.Kernel }

// fail makes the failure for a kernel code, with the category, severity and
// retry rule that the code has everywhere. An unknown code fails as
// INTERNAL_ERROR.
func (c *call) fail(code, reason string) *Failure {
	message := reason
	if message == "" {
		message = code
	}
	kernel, err := signal.ErrorFor(code, message, c.source, nil, nil)
	if err != nil {
		kernel, _ = signal.ErrorFor(signal.CodeInternal, err.Error(), c.source, nil, nil)
	}
	return &Failure{Kernel: kernel, Reason: reason, DecisionID: c.decisionID, TraceID: c.traceID, Plain: c.method != ""}
}

// internal logs an error of one of the gate's parts, and makes a failure that shows
// the caller its ids only.
func (c *call) internal(doing string, err error) *Failure {
	c.gate.opts.Log.Error(doing, "decision", c.decisionID, "tool", c.name, "ticket", c.ticket.ID, "error", err)
	return c.fail(signal.CodeInternal, "")
}

// wrap makes the failure of a lower tier's error, which stays its cause. The error
// has the category, severity and retry rule of code.
func (c *call) wrap(code string, inner *signal.KernelError, reason string) *Failure {
	f := c.fail(code, reason)
	if outer, err := signal.WrapError(code, inner, c.source, f.Kernel.Message); err == nil {
		f.Kernel = outer
	}
	return f
}

// because adds the cause to a failure whose severity is not that of its cause.
func (f *Failure) because(cause *signal.KernelError) *Failure {
	f.Kernel.Cause = cause
	return f
}

// with adds a fact to the error's detail; an empty text adds nothing.
func (f *Failure) with(key string, value any) *Failure {
	if value == "" {
		return f
	}
	if f.Kernel.Detail == nil {
		f.Kernel.Detail = map[string]any{}
	}
	f.Kernel.Detail[key] = value
	return f
}

// after sets the time until which a retry is pointless.
func (f *Failure) after(wait time.Duration) *Failure {
	f.RetryAfter = wait
	return f
}

// about says whom a refusal concerns and by which rule, "" for none.
func (f *Failure) about(rule string, who *policy.Principal) *Failure {
	if f.Context = whoIs(who); rule != "" {
		f.Context = "rule " + rule + ", " + f.Context
	}
	return f
}

// remedy says what would make the call pass.
func (f *Failure) remedy(text string) *Failure {
	f.Remedy = text
	return f
}
