package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// stage is one step of the road. A failure ends the passage; a passage with a
// reply goes no further either.
type stage struct {
	name string
	run  func(ctx context.Context, g *Gate, p *passage) *Failure
}

// road is every stage in its order, but for close, which Call runs on every
// path. Call's comment draws it; a test holds the two equal.
var road = []stage{
	{"receive", receive},
	{"identify", identify},
	{"resolve", resolve},
	{"decide", decide},
	{"limit", ration},
	{"validate", validate},
	{"approve", approve},
	{"record", record},
	{"forward", forward},
	{"normalise", normalise},
}

// passage is one call on the road: what each stage has learnt of it.
type passage struct {
	in     *Call
	now    time.Time // when it was received
	moment time.Time // as of which it is judged
	stage  string    // the stage it is in, or ended in

	id         string // request id as text
	traceID    string
	decisionID string
	callID     string // the signal id of the call, parent of what it returns

	name   string          // the tool as the caller named it
	args   json.RawMessage // the judged bytes
	digest string          // "sha256:<hex>" of args
	meta   json.RawMessage // the caller's _meta without what belongs to this hop
	wanted json.RawMessage // params.task: the caller wants a task in place of a result

	engine    Policy
	principal policy.Principal
	tool      *registry.Tool
	subject   policy.Tool // tool as the policy sees it
	decision  policy.Decision
	asked     *policy.Input             // what decision is of; nil = the policy was not asked
	use       *limit.Use                // what the call is to the tool's meters; nil = it has none
	usage     map[string]policy.Reading // where they stood when the call was judged
	taken     *limit.Reservation        // the call is counted; nil = it is not, or was given back
	ticket    approval.Ticket
	own       []approval.Ticket // of the principal, for a call of StatusName
	detoured  bool              // the client went by way of the approval page
	spent     bool              // the ticket's grant was spent by this passage
	settled   bool              // the ticket has its end state
	sent      bool              // forward was entered: the call may have been made
	raw       json.RawMessage
	reply     *Reply
	recorded  bool // the decision record was offered to the trail
	replayed  bool // the reply is the stored result of an earlier run
	chunks    int  // STREAM signals told so far
	steps     int  // progress told while it waited for a person

	// Of a request that calls no tool:
	method   method
	server   string
	resource *policy.Resource
	prompt   *policy.Prompt
	whole    *policy.Server
	params   json.RawMessage // the judged bytes that are sent
	task     *task           // what it is about
	kernel   *signal.Result  // what a task's result came to; nil = plain success

	// Of what a server asks its client:
	question *registry.Question
	round    *round
	parentID string // signal id of the call in whose course it asks, "" for none
}

// Call takes one tool call down the road:
//
//	receive    the decoded request is a tools/call with an id, a name and arguments
//	identify   the credential names a principal
//	resolve    the name is a tool that this principal can see
//	decide     the policy allows it, holds it or denies it
//	limit      every bucket that applies gives a token; a call that is not held is counted
//	validate   the arguments fit the tool's schema
//	approve    a held call has a grant, spent here, and is counted
//	record     the decision is in the audit trail
//	forward    the judged bytes go to the upstream
//	normalise  the result becomes Signals
//	close      one outcome record, on every path
//
// It returns a reply or a failure, never both. A panic in a stage is
// INTERNAL_ERROR for this call alone. When the outcome cannot be recorded the
// reply is withheld and the caller gets AUDIT_UNAVAILABLE.
func (g *Gate) Call(ctx context.Context, in *Call) (*Reply, *Failure) { return g.take(ctx, in, road) }

// take takes a request down a road.
func (g *Gate) take(ctx context.Context, in *Call, stages []stage) (*Reply, *Failure) {
	p := g.enter(in)
	if n := g.inFlight.Add(1); n > int64(g.settings.Load().InFlight) {
		g.inFlight.Add(-1)
		p.stage = "receive"
		return g.close(ctx, p, p.fail(signal.CodeOverloaded, "too many calls are under way"))
	}
	defer g.inFlight.Add(-1)
	return g.close(ctx, p, g.walk(ctx, p, stages))
}

// Refuse records what a door itself refused: a lost session, a header that
// contradicts the body, an unknown method. It leaves one outcome record and
// returns the failure to answer with.
func (g *Gate) Refuse(ctx context.Context, in *Call, code, reason string) *Failure {
	p := g.enter(in)
	p.stage = "receive"
	if in.Message != nil {
		p.id = jsonrpc.IDText(in.Message.ID)
	}
	if code != signal.CodeUnauthenticated {
		// The record should say who; that nobody can be named is no second fault.
		if who, err := g.opts.Identifier.Identify(ctx, in.Credential); err == nil {
			p.principal = who
		}
	}
	_, f := g.close(ctx, p, p.fail(code, reason))
	return f
}

func (g *Gate) enter(in *Call) *passage {
	now := g.opts.Now()
	return &passage{
		in: in, now: now, moment: now, engine: *g.policy.Load(),
		decisionID: signal.NewID("dec_"), callID: cmp.Or(in.SignalID, signal.NewID("sig_")),
		traceID: traceOf(in),
	}
}

// walk runs the stages until one fails or has the reply. A panic fails the
// passage and nothing else.
func (g *Gate) walk(ctx context.Context, p *passage, stages []stage) (f *Failure) {
	defer func() {
		if r := recover(); r != nil {
			g.opts.Log.Error("panic on the road", "stage", p.stage, "decision", p.decisionID,
				"panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			p.reply = nil
			f = p.fail(signal.CodeInternal, "")
			g.abandon(ctx, p)
		}
	}()
	for _, s := range stages {
		p.stage = s.name
		if f := s.run(ctx, g, p); f != nil {
			return f
		}
		if p.reply != nil {
			return nil
		}
	}
	return nil
}

// close is the last stage: it writes the one outcome record. It runs detached
// from the caller, who cannot cancel a record by hanging up.
func (g *Gate) close(ctx context.Context, p *passage, f *Failure) (*Reply, *Failure) {
	if f != nil {
		p.reply = nil
	}
	if !p.sent {
		g.giveBack(ctx, p)
	}
	err := g.opts.Recorder.Outcome(context.WithoutCancel(ctx), p.outcomeRecord(f, g.opts.Now()))
	if err != nil {
		g.opts.Log.Error("writing the outcome record", "decision", p.decisionID, "error", err)
		p.reply, f = nil, p.unrecorded(f)
	}
	o := Observation{Effect: p.decision.Effect, Duration: g.opts.Now().Sub(p.now)}
	if p.tool != nil {
		o.Server, o.Tool = p.tool.Server, p.tool.Exposed
	}
	if f != nil {
		o.Code = f.Kernel.Code
	}
	g.opts.Observe(o)
	g.tell(p, f)
	return p.reply, f
}
