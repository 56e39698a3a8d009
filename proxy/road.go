package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// stage is one step of a road. A failure ends the walk; so does a reply.
type stage[R any] struct {
	name string
	run  func(R, context.Context) *Failure
}

// road lists the stages of a tool call, in order, but for close, which runs on
// every path. The comment of Call draws it; a test holds the two equal.
var road = []stage[*toolCall]{
	{"receive", (*toolCall).receive},
	{"identify", (*toolCall).identify},
	{"stop", (*toolCall).stop},
	{"resolve", (*toolCall).resolve},
	{"decide", (*toolCall).decide},
	{"connect", (*toolCall).connect},
	{"limit", (*toolCall).limit},
	{"validate", (*toolCall).validate},
	{"approve", (*toolCall).approve},
	{"record", (*toolCall).record},
	{"forward", (*toolCall).forward},
	{"normalise", (*toolCall).normalise},
}

// call is what the stages know of any request: who sent it, its judged bytes,
// its ids, the decision and its record.
type call struct {
	gate   *Gate
	in     *Call
	origin *origin   // once a peer needs it
	start  time.Time // when it was received
	asOf   time.Time // the time by which it is judged; later than start after a hold
	// The origin of the road's errors and signals: its function is the current or the
	// last stage.
	source signal.ModuleRef

	id         string // request id as text
	traceID    string
	decisionID string
	signalID   string // of the call, the parent of every signal that it causes
	parentID   string // of the call that caused this one, "" for none

	trace  span.Carrier // of the span of the call; nil = it is not traced
	events []span.Event // in its course

	principal policy.Principal
	method    string         // "" for tools/call
	name      string         // of the tool, prompt, resource or task, as the caller gave it
	server    string         // "" until it is known, or for all
	tool      *registry.Tool // that is called, or of the call that a task came of; nil until it is known
	// What requests to the server are made with; nil = with what the configuration says.
	credential *registry.Credential
	ticket     *approval.Ticket // of a held call, or of the task that a ticket is; else noTicket
	body       json.RawMessage  // the judged bytes: a tool's arguments, the params of other requests
	digest     string           // "sha256:<hex>" of body
	task       json.RawMessage  // params.task: the caller wants a task instead of a result
	meta       json.RawMessage  // the caller's _meta without the members of this hop

	engine      Policy
	decision    policy.Decision
	asked       *policy.Input   // what decision answers; nil = the policy was not asked
	obligations json.RawMessage // of decision, as records hold them

	upstream time.Duration // from handing a tool call to the server to its answer; 0 = it was not handed over
	sent     bool          // a server may have the request
	recorded bool          // the decision record was offered to the trail
	replayed bool          // the reply is the stored result of an earlier run
	cut      bool          // people stopped it when it was at its server
	reply    *Reply
	crowded  bool                  // by other calls of its own caller
	shown    bool                  // its outcome is on the bus
	unseen   []string              // kinds of hidden characters in a result, or in a question
	warnings []*signal.KernelError // of a call that is made all the same, or of its result
	settle   func(context.Context) // ends what the request took, see giveBack; nil = it took nothing

	entry audit.Record // of the decision, then of the outcome
	ids   [8]string    // of the first Signals of the result
}

// gateway is the origin of what no stage has said yet.
var gateway = signal.ModuleRef{Tier: 4, Module: "gate", Function: "receive"}

// noTicket is never written to.
var noTicket approval.Ticket

// toolCall is a tools/call.
type toolCall struct {
	call
	subject policy.Tool  // tool as the policy sees it
	input   policy.Input // that the policy judges
	usage   metering
	hold    holding
	raw     json.RawMessage   // the upstream's result
	plain   bool              // its strings are known to be plain, as in jsonrpc.Message
	chunks  int               // STREAM signals published so far
	tickets []approval.Ticket // of the principal, for a call of StatusName

	changes, added [3]jsonrpc.Change // room for those of the result, and of its _meta
}

// Call takes one tool call down the road:
//
//	receive    the decoded request is a tools/call with an id, a name and arguments
//	identify   the credential names a principal
//	stop       people have not stopped the principal
//	resolve    the name is a tool that this principal can see, and that is not stopped
//	decide     the policy allows it, holds it or denies it
//	connect    the caller has a credential at the server, where each caller needs one
//	limit      every bucket that applies gives a token; a call that is not held is counted
//	validate   the arguments fit the tool's schema
//	approve    a held call has a grant, spent here, and is counted
//	record     the decision is in the audit trail
//	forward    the judged bytes go to the upstream
//	normalise  the result becomes Signals
//	close      one outcome record, on every path
//
// It returns a reply or a failure, never both. A panic in a stage fails this
// call alone, with INTERNAL_ERROR. When the outcome cannot be recorded, Call
// withholds the reply and returns AUDIT_UNAVAILABLE.
func (g *Gate) Call(ctx context.Context, in *Call) (*Reply, *Failure) {
	t := toolCalls.Get().(*toolCall)
	g.begin(&t.call, in)
	reply, f := runRoad(ctx, t, &t.call, road)
	if f == nil && t.ticket == &noTicket && t.trace == nil {
		if t.task == nil && !t.shown { // a task may be kept, and whoever listens to the bus may keep a Signal
			in.Bytes.Relinquish()
		}
		*t = toolCall{}
		toolCalls.Put(t)
	}
	return reply, f
}

// toolCalls are used again once a call has been answered that nobody held and nothing traced:
// then its stages have ended, and neither the reply nor what they were given refers to it.
var toolCalls = sync.Pool{New: func() any { return new(toolCall) }}

// Refuse records what a door itself refuses: a lost session, a header that
// contradicts the body, an unknown method. It writes one outcome record and
// returns the failure to answer with.
func (g *Gate) Refuse(ctx context.Context, in *Call, code, reason string) *Failure {
	c := new(call)
	g.begin(c, in)
	if in.Message != nil {
		c.id = jsonrpc.IDText(in.Message.ID)
	}
	if code != signal.CodeUnauthenticated {
		_ = c.identify(ctx) // for the record; a caller without a name is no second fault
	}
	if g.opts.Tracer != nil {
		ctx = c.startTrace(ctx)
	}
	_, f := c.close(ctx, c.fail(code, reason))
	return f
}

// begin makes c, the zero value, a request with new ids and the current policy. It continues the
// caller's trace (the door's, else the W3C traceparent in params._meta), if any.
func (g *Gate) begin(c *call, in *Call) {
	trace := in.TraceID
	if trace == "" && in.Message != nil {
		if raw, ok := in.Message.Param("_meta", "traceparent"); ok {
			trace = traceID(raw)
		}
	}
	now := g.opts.Now()
	c.gate, c.in, c.ticket, c.source, c.engine = g, in, &noTicket, gateway, *g.policy.Load()
	c.start, c.asOf = now, now
	var ids [3]string
	signal.NewIDs(ids[:], "dec_", "sig_", "trc_")
	c.decisionID, c.signalID, c.traceID = ids[0], cmp.Or(in.SignalID, ids[1]), cmp.Or(trace, ids[2])
}

// runRoad takes r down a road and closes c, its call. Too many requests at once are
// refused.
func runRoad[R any](ctx context.Context, r R, c *call, stages []stage[R]) (*Reply, *Failure) {
	if c.gate.opts.Tracer != nil {
		ctx = c.startTrace(ctx)
	}
	defer c.gate.inFlight.Add(-1)
	if c.gate.inFlight.Add(1) > int64(c.gate.settings.Load().InFlight) {
		return c.close(ctx, c.fail(signal.CodeOverloaded, "too many calls are in flight").remedy(callLater))
	}
	return c.close(ctx, walk(ctx, r, c, stages))
}

// walk runs the stages until one fails or replies. A panic fails this request
// and no other.
func walk[R any](ctx context.Context, r R, c *call, stages []stage[R]) (f *Failure) {
	defer func() {
		if v := recover(); v != nil {
			c.gate.opts.Log.Error("panic on the road", "stage", c.source.Function, "decision", c.decisionID,
				"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			c.reply = nil
			f = c.fail(signal.CodeInternal, "")
		}
	}()
	for _, s := range stages {
		c.source.Function = s.name
		if c.trace != nil && c.trace.Sampled() {
			f = traceStage(ctx, r, c, s)
		} else {
			f = s.run(r, ctx)
		}
		if f != nil || c.reply != nil {
			return f
		}
	}
	return nil
}

// ClientProfile says how long one kind of client waits for a decision, and how its model
// is shown errors and results. A client's name is claimed: a profile changes no verdict,
// limit or record.
type ClientProfile struct {
	// Name is what the client calls itself, without its version and without
	// regard to case; a trailing "*" matches any rest, "" every client.
	Name      string
	Transport string         // of the call, "" = any; see Call
	Hold      *time.Duration // nil = the default
	Longest   *time.Duration // upper bound, whatever else says; nil = none
	Errors    string         // of its tool calls: result, a dialect, or "" = as the route does
	Results   string         // in place of Settings.Results; "" = not said
}

// matches reports whether the profile is that of a caller; client is name/version.
func (p ClientProfile) matches(client, transport string) bool {
	if p.Transport != "" && p.Transport != transport {
		return false
	}
	name, prefix := strings.CutSuffix(p.Name, "*")
	if len(client) < len(name) || !strings.EqualFold(client[:len(name)], name) {
		return false
	}
	rest := client[len(name):]
	// mcp-remote appends itself to the name of the client that it connects.
	return prefix || p.Name == "" || rest == "" || rest[0] == '/' || strings.HasPrefix(rest, " (via ")
}

// profile returns the first profile that is a caller's, the zero value for none.
func (s *Settings) profile(client, transport string) ClientProfile {
	for _, p := range s.Clients {
		if p.matches(client, transport) {
			return p
		}
	}
	return ClientProfile{}
}

// resultsMode returns how results are sent to the caller, as the first of these says:
// the credential, the server, the client's profile, the settings. Only a few profiles say.
func (c *call) resultsMode() string {
	s := c.gate.settings.Load()
	mode := cmp.Or(c.principal.Shape.Results, s.Shapes[cmp.Or(c.server, c.in.Route)].Results)
	if mode == "" && slices.ContainsFunc(s.shaped, func(p ClientProfile) bool { return p.matches(c.principal.Client, c.in.Transport) }) {
		mode = s.profile(c.principal.Client, c.in.Transport).Results
	}
	return cmp.Or(mode, s.Results)
}
