package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/clip"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/judgement"
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
	{"resolve", (*toolCall).resolve},
	{"decide", (*toolCall).decide},
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
	method    string           // "" for tools/call
	name      string           // of the tool, prompt, resource or task, as the caller gave it
	server    string           // "" until it is known, or for all
	tool      *registry.Tool   // that is called, or of the call that a task came of; nil until it is known
	ticket    *approval.Ticket // of a held call, or of the task that a ticket is; else noTicket
	body      json.RawMessage  // the judged bytes: a tool's arguments, the params of other requests
	digest    string           // "sha256:<hex>" of body
	task      json.RawMessage  // params.task: the caller wants a task instead of a result
	meta      json.RawMessage  // the caller's _meta without the members of this hop

	engine      Policy
	decision    policy.Decision
	asked       *policy.Input   // what decision answers; nil = the policy was not asked
	obligations json.RawMessage // of decision, as records hold them

	upstream time.Duration // from handing a tool call to the server to its answer; 0 = it was not handed over
	sent     bool          // a server may have the request
	recorded bool          // the decision record was offered to the trail
	replayed bool          // the reply is the stored result of an earlier run
	reply    *Reply
	crowded  bool                  // by other calls of its own caller
	unseen   []string              // kinds of hidden characters in a result, or in a question
	warnings []*signal.KernelError // of a call that is made all the same, or of its result
	settle   func(context.Context) // ends what the request took, see giveBack; nil = it took nothing
}

// gateway is the origin of what no stage has said yet.
var gateway = signal.ModuleRef{Tier: 4, Module: "gate", Function: "receive"}

// noTicket is never written to.
var noTicket approval.Ticket

// toolCall is a tools/call.
type toolCall struct {
	call
	subject policy.Tool // tool as the policy sees it
	usage   metering
	hold    hold
	raw     json.RawMessage   // the upstream's result
	plain   bool              // its strings are known to be plain, as in jsonrpc.Message
	chunks  int               // STREAM signals published so far
	tickets []approval.Ticket // of the principal, for a call of StatusName
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
// It returns a reply or a failure, never both. A panic in a stage fails this
// call alone, with INTERNAL_ERROR. When the outcome cannot be recorded, Call
// withholds the reply and returns AUDIT_UNAVAILABLE.
func (g *Gate) Call(ctx context.Context, in *Call) (*Reply, *Failure) {
	t := &toolCall{call: g.newCall(in)}
	return runRoad(ctx, t, &t.call, road)
}

// Refuse records what a door itself refuses: a lost session, a header that
// contradicts the body, an unknown method. It writes one outcome record and
// returns the failure to answer with.
func (g *Gate) Refuse(ctx context.Context, in *Call, code, reason string) *Failure {
	c := g.newCall(in)
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

// newCall begins a request with new ids and the current policy. It continues the
// caller's trace (the door's, else the W3C traceparent in params._meta), if any.
func (g *Gate) newCall(in *Call) call {
	trace := in.TraceID
	if trace == "" && in.Message != nil {
		if raw, ok := in.Message.Param("_meta", "traceparent"); ok {
			trace = traceID(raw)
		}
	}
	now := g.opts.Now()
	return call{
		gate: g, in: in, ticket: &noTicket, start: now, asOf: now, source: gateway, engine: *g.policy.Load(),
		decisionID: signal.NewID("dec_"), signalID: cmp.Or(in.SignalID, signal.NewID("sig_")), traceID: cmp.Or(trace, signal.NewID("trc_")),
	}
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

// record writes the decision to the audit trail. No record, no call: what was
// taken for it, a grant included, is given back when it is closed.
func (c *call) record(ctx context.Context) *Failure {
	c.recorded = true
	if err := c.gate.opts.Recorder.Write(audit.KindDecision, c.newRecord(true)); err != nil {
		c.gate.opts.Log.Error("writing the decision record", "decision", c.decisionID, "error", err)
		return c.fail(signal.CodeAuditUnavailable, "the decision could not be recorded, so the call was not made").remedy(callLater).
			because(signal.ProcessingError("the audit log took no record", auditLog, nil, nil))
	}
	return nil
}

// auditLog is the origin of errors about records.
var auditLog = signal.ModuleRef{Tier: 0, Module: "audit", Function: "decision"}

// close is the last stage: it settles the request and writes the one outcome
// record, which carries the decision, so that a refusal can be explained. It runs
// detached from the caller, who cannot cancel a record by hanging up.
func (c *call) close(ctx context.Context, f *Failure) (*Reply, *Failure) {
	g := c.gate
	if f != nil {
		c.reply = nil
		g.suggestDelay(f)
	}
	if c.settle != nil {
		c.settle(context.WithoutCancel(ctx))
	}
	o := Observation{Effect: c.decision.Effect, Duration: g.opts.Now().Sub(c.start), Upstream: c.upstream}
	rec := c.newRecord(!c.recorded) // what was judged is in the decision record, if there is one
	rec.DurationMS = float64(o.Duration.Microseconds()) / 1000
	if f != nil {
		rec.Outcome, rec.Code, rec.Error = cmp.Or(outcomes[f.Kernel.Code], categories[f.Kernel.Category], audit.Failed), f.Kernel.Code, f.Reason
	} else {
		rec.Outcome, rec.Stage, rec.Replayed = audit.Allowed, "close", c.replayed
		if e := c.reply.Kernel.Error; e != nil && e.Code == signal.CodeApprovalPending {
			rec.Outcome = audit.Held
		}
		rec.Hidden = c.unseen
		rec.ResultSHA256, rec.ResultBytes = strings.TrimPrefix(digest(c.reply.Result), "sha256:"), len(c.reply.Result)
		rec.ResultTokens = (rec.ResultBytes + 3) / 4
	}
	for _, w := range c.warnings {
		rec.Warnings, o.Warnings = append(rec.Warnings, w.Message), append(o.Warnings, w.Code)
	}
	if f != nil && !c.recorded {
		shorten(rec)
	}
	over := (*Failure)(nil)
	if f != nil && g.opts.Refused != nil {
		over = c.limitRefused(f, rec)
	}
	if over != nil {
		f = over
	} else if err := g.opts.Recorder.Write(audit.KindOutcome, rec); err != nil {
		g.opts.Log.Error("writing the outcome record", "decision", c.decisionID, "error", err)
		c.reply, f = nil, c.unrecorded(f)
	}
	if rec.Method == "" && rec.Tool != "" {
		o.Server, o.Tool = rec.Server, rec.Exposed
	}
	if f != nil {
		o.Code, f.Errors = f.Kernel.Code, c.errorForm()
		if o.Code == signal.CodeRateLimited {
			o.Limit, _ = f.Kernel.Detail["rule"].(string)
		}
		if g.opts.Log.IsDebug() {
			c.logRefusal(f, rec)
		}
	}
	o.Hidden, o.From = c.unseen, c.server
	if c.trace != nil {
		c.endTrace(ctx, f, o.Duration)
		if c.trace.Sampled() {
			o.TraceID = c.traceID
		}
	}
	g.opts.Observe(o)
	if g.opts.Bus.Listening(c.principal) {
		c.publishOutcome(f)
	}
	return c.reply, f
}

// logRefusal logs that a request failed. Of what the caller sent it has the name of the
// tool; a reason can quote arguments, so it has none.
func (c *call) logRefusal(f *Failure, rec *audit.Record) {
	rule := cmp.Or(f.Kernel.Detail["rule"], any(rec.Policy.Rule))
	c.gate.opts.Log.Debug("refused", "decision", c.decisionID, "code", f.Kernel.Code, "rule", rule, "stage", rec.Stage,
		"method", rec.Method, "server", rec.Server, "tool", rec.Exposed, "subject", rec.Principal.Subject)
}

// suggestDelay gives a transient failure that a retry may fix the configured delay
// (seed 002, error_to_problem_details). Wrong input has to be corrected instead.
func (g *Gate) suggestDelay(f *Failure) {
	if k := f.Kernel; f.RetryAfter == 0 && k.RetryEligible && k.Severity == signal.Transient && k.Category != signal.Input {
		f.RetryAfter = g.settings.Load().RetryAfter
	}
}

// unrecorded is the failure of a request whose outcome could not be recorded. A
// call that may have been made must not look like one to retry.
func (c *call) unrecorded(f *Failure) *Failure {
	if f != nil && f.Kernel.Code == signal.CodeAuditUnavailable {
		return f
	}
	if !c.sent {
		return c.fail(signal.CodeAuditUnavailable, "the outcome could not be recorded; the call was not made").remedy(callLater)
	}
	out := c.fail(signal.CodeAuditUnavailable, "the call may have been made, and its outcome could not be recorded; the result is withheld")
	out.Kernel.RetryEligible = false
	return out.remedy("find out whether the call took effect before making it again")
}

// caller returns the principal of c: for one that was refused before the stage
// identify, whom the door has identified.
func (c *call) caller() *policy.Principal {
	if c.principal.Valid() {
		return &c.principal
	}
	return &c.in.Principal
}

// newRecord returns a record of what is known of c, whatever its outcome; with
// judged also what the policy judged, so that it can be judged again.
func (c *call) newRecord(judged bool) *audit.Record {
	who := &c.principal
	if !who.Valid() {
		who = c.caller()
	}
	r := &audit.Record{
		CallID: c.signalID, DecisionID: c.decisionID, TraceID: c.traceID, ParentID: c.parentID,
		Principal: audit.Principal{Subject: who.Subject, Person: who.Person, Roles: who.Roles, Client: who.Client, Tenant: who.Tenant},
		Transport: c.in.Transport, Era: c.in.Era, Route: c.in.Route, Session: c.in.Session, RequestID: c.id, Tags: c.in.Tags,
		Method: c.method, Server: c.server, Exposed: c.name, About: c.body, ArgumentsSHA256: strings.TrimPrefix(c.digest, "sha256:"),
		Ticket: c.ticket.ID, Task: c.task, Stage: c.source.Function,
		Policy: audit.Policy{
			Effect: string(c.decision.Effect), Rule: c.decision.Rule,
			Reason: c.decision.Reason, Remedy: c.decision.Remedy, Revision: c.decision.Revision,
			Obligations: c.obligations,
		},
	}
	if c.tool != nil {
		r.Tool, r.Exposed, r.Fingerprint = c.tool.Name, c.tool.Exposed, c.tool.Fingerprint
	}
	if judged {
		r.Arguments = c.body
		if c.asked != nil {
			r.Input = judgement.EncodeInput(c.asked, r)
		}
	}
	return r
}

// The words for refusals: that of its code, else that of its category, else failed.
var (
	outcomes = map[string]audit.Outcome{
		signal.CodeToolNotFound: audit.Unknown, signal.CodeNotFound: audit.Unknown,
		signal.CodeSessionLost: audit.Denied, signal.CodeCancelled: audit.Cancelled,
	}
	categories = map[signal.Category]audit.Outcome{signal.Input: audit.Invalid, signal.Policy: audit.Denied, signal.Resource: audit.Limited}
)

// giveBack ends what a held call has of its ticket, and gives back what was taken
// for a call that was certainly not sent: the counted usage and the grant. A call
// that was sent and has no end state is unknown. A store that fails leaves usage
// counted, and the ticket dispatching, which the next start turns into unknown:
// never into a second run.
func (t *toolCall) giveBack(ctx context.Context) {
	log := t.gate.opts.Log
	if !t.sent && t.usage.reserved != nil {
		if err := t.gate.opts.Usage.Return(ctx, t.usage.reserved); err != nil {
			log.Error("giving back what a call would have used", "decision", t.decisionID, "error", err)
		}
	}
	if !t.hold.granted {
		return
	}
	var err error
	tickets, id := t.gate.opts.Tickets, t.ticket.ID
	switch {
	case !t.sent:
		err = tickets.Release(ctx, id)
	case t.hold.end == "":
		err = tickets.Finish(ctx, id, approval.StateUnknown, nil, "the call broke off inside toolgate")
	default:
		err = tickets.Finish(ctx, id, t.hold.end, t.hold.result, t.hold.note)
	}
	if err != nil {
		log.Error("settling a ticket", "ticket", id, "state", string(t.hold.end), "error", err)
	}
}

// ends notes the end state of a call that was sent, for its ticket.
func (t *toolCall) ends(s approval.State, result []byte, note string) {
	t.hold.end, t.hold.result, t.hold.note = s, result, note
}

// silent is the Bus without listeners.
type silent struct{}

func (silent) Listening(policy.Principal) bool         { return false }
func (silent) Publish(policy.Principal, signal.Signal) {}

// publishOutcome puts what became of a request on the bus, for its principal:
// the signals of its result as the rules of composition let them pass (seed 002),
// a failure as an error signal, a cancellation as the command abort. The cause of
// an internal error is for the log.
func (c *call) publishOutcome(f *Failure) {
	var result signal.Result
	switch {
	case f == nil:
		result = c.reply.Kernel
	case f.Kernel.Code == signal.CodeInternal:
		result = signal.Fail(c.fail(signal.CodeInternal, "").Kernel, c.metrics())
	default:
		result = signal.Fail(f.Kernel, c.metrics())
	}
	next := signal.Compose(result)
	for _, s := range next.Signals {
		c.publish(s, signal.ValidateSignal(s))
	}
	tags := c.tags()
	lineage := []signal.Option{signal.WithTags(tags), signal.WithParent(c.signalID)}
	switch {
	case f != nil && f.Kernel.Code == signal.CodeCancelled:
		c.publish(signal.CreateCommand("abort", c.source, c.source, c.traceID, map[string]any{"reason": f.Reason}, lineage...))
	case next.Stop != nil:
		tags[signal.TagNext] = "escalate"
		if next.Retry {
			tags[signal.TagNext] = "retry"
		}
		c.publish(signal.CreateErrorSignal(next.Stop, c.source, c.traceID, lineage...))
	}
}

// tags are those of a signal about a request that is not part of its result.
func (c *call) tags() map[string]string {
	return map[string]string{signal.TagTool: c.name, signal.TagDecision: c.decisionID}
}

// publish puts one signal on the bus. One that could not be made is logged: the
// bus is telemetry and fails no call.
func (c *call) publish(s signal.Signal, err error) {
	if err != nil {
		c.gate.opts.Log.Error("making a signal for the bus", "decision", c.decisionID, "error", err)
		return
	}
	c.gate.opts.Bus.Publish(c.principal, s)
}

// publishChunk puts the next STREAM signal on the bus.
func (t *toolCall) publishChunk(text string, final bool, params json.RawMessage) {
	body := map[string]any{"chunk": text, "sequence": t.chunks, "final": final}
	if params != nil {
		body["progress"] = params
	}
	t.chunks++
	t.publish(signal.Create(signal.Stream, body, t.source, t.traceID, t.tags(), t.signalID))
}

// Bounds of what a refused call leaves in the trail, in bytes: so that callers cannot
// fill the disk with what they may not do.
const (
	wholeArguments = 4 << 10 // arguments up to this size are recorded whole
	excerptBytes   = 1 << 10 // of larger ones
	recordedText   = 512     // of a name, an id or a reason
)

// shorten bounds the record of a refused call. Large arguments are recorded as their
// digest, their length and an excerpt, and cannot be judged again.
func shorten(r *audit.Record) {
	for _, text := range []*string{&r.Exposed, &r.Method, &r.RequestID, &r.Error} {
		*text = clip.Bytes(*text, recordedText, "")
	}
	if len(r.Task) > wholeArguments {
		r.Task = nil
	}
	if n := len(r.Arguments); n > wholeArguments {
		r.ArgumentsBytes, r.ArgumentsExcerpt = n, clip.Bytes(string(r.Arguments[:excerptBytes+1]), excerptBytes, "")
		r.Arguments, r.Input = nil, nil
	}
}

// limitRefused takes from the principal's limit of refused calls for f, whose outcome
// is in rec. It returns nil when there was a token; otherwise the call is counted in a
// folded record, and the failure is the one to answer with. Callers without a name
// share one limit. What others cause (OVERLOADED) costs no token, so that honest retries pass.
func (c *call) limitRefused(f *Failure, rec *audit.Record) *Failure {
	g := c.gate
	refusals := []audit.Outcome{audit.Denied, audit.Invalid, audit.Unknown, audit.Limited}
	if c.sent || c.in.resumed != nil || f.Kernel.Code == signal.CodeOverloaded && !c.crowded ||
		!slices.Contains(refusals, rec.Outcome) && f.Kernel.Code != signal.CodeAuditUnavailable {
		return nil
	}
	who := c.caller()
	over := g.opts.Refused.Spend(c.start, *who, policy.Tool{}, nil)
	if over == nil {
		return nil
	}
	g.opts.Fold(audit.Principal{Subject: who.Subject, Roles: who.Roles, Client: who.Client, Tenant: who.Tenant},
		audit.Event{Name: audit.EventCallsRefused, Reason: f.Kernel.Code})
	if f.Kernel.Code == signal.CodeUnauthenticated { // a status of the transport, which clients act on
		return f
	}
	over.Rule = "refused"
	return c.limited(over).remedy("correct the calls: those that are denied, unknown or malformed are limited too")
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

// profile returns the first profile that is the caller's, the zero value for none.
func (c *call) profile() ClientProfile {
	clients := c.gate.settings.Load().Clients
	i := slices.IndexFunc(clients, func(p ClientProfile) bool { return p.matches(c.principal.Client, c.in.Transport) })
	if i < 0 {
		return ClientProfile{}
	}
	return clients[i]
}

// resultsMode returns how results are sent to the caller, as the first of these says:
// the credential, the server, the client's profile, the settings. Only a few profiles say.
func (c *call) resultsMode() string {
	s := c.gate.settings.Load()
	mode := cmp.Or(c.principal.Shape.Results, s.Shapes[cmp.Or(c.server, c.in.Route)].Results)
	if mode == "" && slices.ContainsFunc(s.shaped, func(p ClientProfile) bool { return p.matches(c.principal.Client, c.in.Transport) }) {
		mode = c.profile().Results
	}
	return cmp.Or(mode, s.Results)
}
