package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// receive reads the parts of a tools/call. The arguments are the bytes that
// were decoded: nothing marshals them again.
func (t *toolCall) receive(context.Context) *Failure {
	m := t.in.Message
	if m == nil {
		return t.undecoded(t.in.Fault)
	}
	t.id = jsonrpc.IDText(m.ID)
	if m.Kind != jsonrpc.Request {
		return t.fail(signal.CodeEnvelopeInvalid, "tools/call needs an id")
	}
	name, ok := m.Param("name")
	if !ok {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name is missing")
	}
	if t.name, _ = jsonrpc.Text(name); t.name == "" {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name must be a string that is not empty")
	}
	t.body = json.RawMessage("{}")
	if args, ok := m.Param("arguments"); ok {
		if args[0] != '{' {
			return t.fail(signal.CodeEnvelopeInvalid, "params.arguments must be an object")
		}
		t.body = args
	}
	t.digest = digest(t.body)
	task, ok := m.Param("task") // MCP 2025-11-25, tasks
	switch {
	case ok && task[0] != '{':
		return t.fail(signal.CodeEnvelopeInvalid, "params.task must be an object")
	case ok && t.in.Session == "":
		return t.fail(signal.CodeEnvelopeInvalid, "a task belongs to a session, and this call has none")
	}
	t.task = task
	if meta, ok := m.Param("_meta"); ok {
		return t.receiveMeta(meta)
	}
	return nil
}

// isObject reports whether raw, a JSON value or nothing, is an object.
func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// isError reports whether a result is an error of its tool.
func isError(result json.RawMessage) bool {
	v, ok := jsonrpc.Get(result, "isError")
	return ok && string(v) == "true"
}

// textMember returns a string member of an object, "" when there is none.
func textMember(object json.RawMessage, key string) string {
	text, _ := jsonrpc.TextAt(object, key)
	return text
}

// digest returns the name of bytes, "sha256:" and lower-case hex.
func digest(judged []byte) string {
	sum := sha256.Sum256(judged)
	text := [len("sha256:") + 2*sha256.Size]byte{}
	hex.Encode(text[copy(text[:], "sha256:"):], sum[:])
	return string(text[:])
}

// receiveMeta stores the caller's _meta without the members of this hop.
func (c *call) receiveMeta(meta json.RawMessage) *Failure {
	var ours []jsonrpc.Change
	jsonrpc.Each(meta, func(name []byte, _ json.RawMessage) bool {
		key := string(name)
		// The related task concerns the ends beyond this connection too.
		mcp := strings.HasPrefix(key, "io.modelcontextprotocol/") && key != "io.modelcontextprotocol/related-task"
		if mcp || key == "progressToken" || strings.HasPrefix(key, "io.toolgate/") {
			ours = append(ours, jsonrpc.Change{Name: key})
		}
		return true
	})
	var err error
	if c.meta, err = jsonrpc.Extend(meta, ours...); err != nil {
		return c.fail(signal.CodeEnvelopeInvalid, "params._meta must be an object")
	}
	return nil
}

// undecoded refuses bytes that are no request.
func (c *call) undecoded(f *jsonrpc.Fault) *Failure {
	if f == nil {
		return c.fail(signal.CodeEnvelopeInvalid, "there is no message")
	}
	c.id = jsonrpc.IDText(f.ID)
	codes := map[jsonrpc.FaultKind]string{jsonrpc.Parse: signal.CodeEnvelopeParse, jsonrpc.TooLarge: signal.CodeEnvelopeTooLarge}
	return c.fail(cmp.Or(codes[f.Kind], signal.CodeEnvelopeInvalid), f.Reason).with("pointer", f.Pointer).with("want", f.Want).with("got", f.Got)
}

// traceID reads version-trace-parent-flags of the W3C Trace Context, "" for what is
// none.
func traceID(raw json.RawMessage) string {
	traceparent, _ := jsonrpc.Text(raw)
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	return parts[1]
}

// identify takes the principal that the door has identified for this request,
// or identifies the credential; once more for a call that was held, because tokens
// are revoked and expire meanwhile. It fails closed: no principal, no call. Another
// principal behind the same credential is a refusal.
func (c *call) identify(ctx context.Context) *Failure {
	who, earlier := c.in.Principal, c.principal
	if earlier.Valid() || !who.Valid() {
		var f *Failure
		if who, f = c.gate.Identify(ctx, c.in.Credential); f != nil {
			return c.fail(f.Kernel.Code, f.Reason)
		}
	}
	if earlier.Valid() && (who.Subject != earlier.Subject || who.Tenant != earlier.Tenant) {
		return c.fail(signal.CodeUnauthenticated, "the credential names somebody else by now")
	}
	c.principal = who
	c.principal.Client = c.in.Client
	return nil
}

// Identify returns the principal of a credential, for doors that need one before
// there is a call: for sessions, lists, and Call.Principal. It leaves no record;
// a door records a refusal with Refuse.
func (g *Gate) Identify(ctx context.Context, cred identity.Credential) (policy.Principal, *Failure) {
	who, err := g.opts.Identifier.Identify(ctx, cred)
	if err == nil && who.Valid() {
		return who, nil
	}
	late := (*identity.Throttled)(nil)
	c, reason := call{gate: g, source: gateway}, "missing or unknown bearer token"
	c.source.Function = "identify"
	switch {
	case errors.As(err, &late):
		return policy.Principal{}, c.fail(signal.CodeRateLimited, "too many credentials from your address were refused").
			after(late.RetryAfter).remedy("show a valid one: it is accepted at any time")
	case store.Away(err):
		return policy.Principal{}, c.fail(signal.CodeStoreUnavailable, "whether the credential is valid cannot be read from the state").
			after(retryUsed).remedy(callLater)
	case cred.Malformed:
		reason = "the Authorization header is not one bearer token"
	case err != nil && !errors.Is(err, identity.ErrUnauthenticated):
		g.opts.Log.Error("identifying a caller", "error", err)
		reason = "the credential could not be checked"
	}
	return policy.Principal{}, c.fail(signal.CodeUnauthenticated, reason)
}

// resolve finds the tool of the call as this principal sees it. A tool that does
// not exist and one that is hidden get the same answer. A call of the gate's own
// tool, where no server has one of its name, leaves the road here.
func (t *toolCall) resolve(ctx context.Context) *Failure {
	view := t.gate.opts.Upstreams.View(ctx, t.in.Route, t.from(t.server))
	tool, ok := view.Lookup(t.name)
	if t.in.resumed != nil { // it belongs to no client, and so is offered what all are
		tool, ok = view.Bound(t.name, t.in.resumed.Fingerprint)
	}
	switch {
	case !ok && t.name == StatusName && t.ticket.ID == "":
		return t.leave(ctx)
	case !ok:
		return t.unknownTool(ctx)
	}
	if t.subject, ok = t.gate.visible(ctx, t.engine, t.principal, tool); !ok {
		return t.unknownTool(ctx)
	}
	t.tool, t.server = tool, tool.Server
	if tool.Quarantine != "" {
		return t.fail(signal.CodeToolQuarantined, tool.Refusal()).remedy(useAnother)
	}
	if v := t.in.Message.Variants; v != nil && !tool.AllowVariants {
		return t.ambiguous(v)
	}
	return nil
}

// ambiguous refuses keys that some JSON parsers take for the same.
func (c *call) ambiguous(v *jsonrpc.Variants) *Failure {
	return c.fail(signal.CodeEnvelopeInvalid, fmt.Sprintf("arguments name %q and %q, which differ only by case", v.First, v.Second)).
		with("pointer", v.Pointer).remedy("send one of the two")
}

// visible returns what a policy knows of t, and whether p sees it. It hides a tool
// when the policy says that every call is denied, and when the policy fails.
func (g *Gate) visible(ctx context.Context, engine Policy, p policy.Principal, t *registry.Tool) (policy.Tool, bool) {
	subject := subjectOf(t)
	ok, err := engine.Visible(ctx, p, subject)
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "tool", t.Exposed, "error", err)
		return subject, false
	}
	return subject, ok
}

// subjectOf returns what a policy knows of t.
func subjectOf(t *registry.Tool) policy.Tool {
	return policy.Tool{
		Server: t.Server, Name: t.Name, Exposed: t.Exposed,
		Risk: t.Risk, Annotations: t.Annotations, Fingerprint: t.Fingerprint,
	}
}

// decide asks the policy about a tool call, with what the caller has used so far. A
// meter that cannot be read refuses the call.
func (t *toolCall) decide(ctx context.Context) *Failure {
	t.usage.use, t.usage.readings = nil, nil
	if engine, ok := t.engine.(Metered); ok {
		if meters := engine.Meters(t.subject); len(meters) > 0 {
			err := errors.New("the gate has no store of usage")
			if store := t.gate.opts.Usage; store != nil {
				if t.usage.use, err = limit.Measure(t.principal, t.subject.Exposed, t.digest, t.body, meters); err == nil {
					t.usage.readings, err = store.Read(ctx, t.usage.use)
				}
			}
			if err != nil {
				return t.uncounted(ctx, "reading what has been used", err)
			}
		}
	}
	t.judge(ctx, &policy.Input{Tool: t.subject, Arguments: t.body, Usage: t.usage.readings})
	if t.decision.Effect == policy.Allow || t.decision.Effect == policy.Hold {
		return nil
	}
	return t.deniedCall()
}

// judge is the origin of the policy's denials.
var judge = signal.ModuleRef{Tier: 5, Module: "policy", Function: "decide"}

// ruleFailed is the rule of a decision that the policy could not make.
const ruleFailed = "policy_error"

// judge asks the policy about in, of which it fills in what all requests have. A
// policy that fails denies.
func (c *call) judge(ctx context.Context, in *policy.Input) {
	in.Principal = c.principal
	in.Request = policy.Request{ID: c.id, Transport: c.in.Transport, Era: c.in.Era, TraceID: c.traceID, Time: c.asOf.UTC(), Tags: c.in.Tags}
	d, err := c.engine.Decide(ctx, in)
	c.decision, c.asked = d, in
	if err != nil {
		what := "request"
		if c.method == "" {
			what = "call"
		}
		c.gate.opts.Log.Error("judging a "+what, "decision", c.decisionID, "tool", in.Tool.Exposed, "method", c.in.Message.Method, "error", err)
		c.decision = policy.Decision{Effect: policy.Deny, Rule: ruleFailed, Reason: "the policy could not judge this " + what, Revision: c.engine.Revision()}
	}
	c.obligations = judgement.EncodeObligations(&c.decision)
}

// denied refuses a request for the decision's rule.
func (c *call) denied(reason string) *Failure {
	c.decision.Effect = policy.Deny
	said := signal.PolicyError(cmp.Or(c.decision.Reason, "the policy gives no reason"), judge, map[string]any{"rule": c.decision.Rule, "revision": c.decision.Revision})
	return c.wrap(signal.CodePolicyDenied, said, reason).with("rule", c.decision.Rule).
		about(c.decision.Rule, &c.principal).remedy(c.decision.Remedy)
}

// Metered is a Policy that has calls counted. Any other policy judges without
// usage, and nothing is counted for it.
type Metered interface {
	// Meters returns what is counted for calls of t, nil for nothing. The gate
	// does not write to it.
	Meters(t policy.Tool) []policy.Meter
}

// Usage counts what calls use. Every error refuses the call.
type Usage interface {
	// Read returns the readings of a call's meters, by name.
	Read(ctx context.Context, use *limit.Use) (map[string]policy.Reading, error)
	// Reserve counts a call, durably. When its meters have moved since judged, it
	// asks again whether the call may be made, and returns limit.ErrRefused when it
	// may not.
	Reserve(ctx context.Context, use *limit.Use, judged map[string]policy.Reading, again func(map[string]policy.Reading) bool) (*limit.Reservation, error)
	// Return undoes what Reserve has counted.
	Return(ctx context.Context, r *limit.Reservation) error
}

// retryUsed is the wait for callers whose call could not be counted now.
const retryUsed = time.Second

// metering is the use that one call makes of its tool's meters.
type metering struct {
	use      *limit.Use                // what the call adds; nil = the tool has no meters
	readings map[string]policy.Reading // by which the call was judged
	reserved *limit.Reservation        // the call is counted; nil = it is not, or was given back
}

// uncounted refuses a call that the store of usage could not serve.
func (t *toolCall) uncounted(ctx context.Context, doing string, err error) *Failure {
	if ctx.Err() != nil {
		return t.cancelled(ctx, false, "the caller cancelled the call")
	}
	t.gate.opts.Log.Error(doing, "decision", t.decisionID, "tool", t.subject.Exposed, "error", err)
	switch {
	case errors.Is(err, limit.ErrBusy):
	case store.Away(err):
		return t.away(err)
	default:
		return t.fail(signal.CodeInternal, "")
	}
	return t.fail(signal.CodeOverloaded, "too many calls are being counted").after(retryUsed).remedy("call again a little later")
}

// limited refuses a request for which an empty bucket gave no token. A denied
// request costs none.
func (c *call) limited(over *limit.Exceeded) *Failure {
	empty := signal.ResourceError("no token is left for "+over.Scope, limiter, map[string]any{"limit": over.Limit})
	then := "waiting does not help"
	if over.RetryAfter > 0 {
		then = "try again in " + seconds(over.RetryAfter)
	}
	reason := fmt.Sprintf("rate limit %s exceeded; %s", over.Limit, then)
	return c.wrap(signal.CodeRateLimited, empty, reason).with("limit", over.Limit).with("scope", over.Scope).with("rule", over.Rule).
		about(over.Rule, c.caller()).after(over.RetryAfter)
}

// limiter is the origin of errors about empty buckets.
var limiter = signal.ModuleRef{Tier: 4, Module: "limit", Function: "spend"}

// seconds formats a wait, rounded up to tenths: "0.6 s".
func seconds(wait time.Duration) string {
	const tenth = time.Second / 10
	return strconv.FormatFloat(float64((wait+tenth-1)/tenth)/10, 'f', -1, 64) + " s"
}

// limit takes quota, and counts a call that is allowed. A held call is counted
// with its grant: see chargeHeld. One that comes back for its ticket as it was told
// costs no quota.
func (t *toolCall) limit(ctx context.Context) *Failure {
	if t.usage.use != nil {
		if f := t.countable(); f != nil {
			return f
		}
	}
	if t.decision.Effect == policy.Hold && t.repeats(ctx) {
		return nil
	}
	spent := t.decision.Limit
	if over := t.gate.opts.Limiter.Spend(t.start, t.principal, t.subject, spent); over != nil {
		return t.limited(over)
	}
	if t.usage.use == nil || t.decision.Effect != policy.Allow {
		return nil
	}
	if _, f := t.reserve(ctx); f != nil {
		return f
	}
	if now := t.decision.Limit; now != nil && (spent == nil || *spent != *now) { // the policy lowers the rate by what has been used
		if over := t.gate.opts.Limiter.Spend(t.start, t.principal, t.subject, now); over != nil {
			return t.limited(over)
		}
	}
	return nil
}

// chargeHeld counts a call that continues after a hold: with the grant of its
// ticket, which is given back when usage has changed too much meanwhile, or
// without one when the call needs no approval any more.
func (t *toolCall) chargeHeld(ctx context.Context) *Failure {
	if t.usage.use == nil {
		return nil
	}
	if t.ticket.ID != "" {
		t.usage.use.For(t.ticket.ID, t.ticket.Expires)
	}
	if counted, f := t.reserve(ctx); f != nil || counted {
		return f
	}
	return t.fail(signal.CodeRateLimited, "what the caller has used has changed while the call waited, and others have to approve it by now").
		after(retryUsed).remedy("call again with the same arguments")
}

// reserve counts the call before it is made. When its meters have moved since
// it was judged, it is judged again: it is counted when it is allowed, or held on
// the terms of its ticket, and otherwise only refused when it is denied.
func (t *toolCall) reserve(ctx context.Context) (counted bool, f *Failure) {
	if f := t.countable(); f != nil {
		return false, f
	}
	reserved, err := t.gate.opts.Usage.Reserve(ctx, t.usage.use, t.usage.readings, func(now map[string]policy.Reading) bool {
		t.usage.readings = now
		t.judge(ctx, &policy.Input{Tool: t.subject, Arguments: t.body, Usage: now})
		return t.decision.Effect == policy.Allow || t.decision.Effect == policy.Hold && t.ticket.ID != "" && t.differs(*t.ticket) == ""
	})
	switch {
	case err == nil:
		t.usage.reserved, t.settle = reserved, t.giveBack
		return true, nil
	case !errors.Is(err, limit.ErrRefused):
		return false, t.uncounted(ctx, "counting a call", err)
	case t.decision.Effect != policy.Hold:
		return false, t.deniedCall()
	}
	return false, nil
}

// countable refuses a call that its meters cannot count: later calls would not
// see it.
func (t *toolCall) countable() *Failure {
	fault := t.usage.use.Fault()
	if fault == nil {
		return nil
	}
	return t.fail(signal.CodeSchemaMismatch, fault.Error()).with("pointer", fault.Pointer).with("meter", fault.Meter).
		remedy("send a JSON number there and call again")
}

// validate checks the arguments against the tool's schema. Where that only warns, a call
// that breaks it is made, and a validator that fails counts as a fault. Elsewhere either
// refuses the call.
func (t *toolCall) validate(context.Context) *Failure {
	if t.tool.Input == nil {
		return t.fail(signal.CodeToolQuarantined, "the tool has no usable schema").remedy(useAnother)
	}
	check := t.tool.Input.Validate
	if t.in.Message.Vouches(t.body) { // it was read strictly
		check = t.tool.Input.ValidateAccepted
	}
	faults, err := check(t.body)
	warns := t.tool.InputMode == "warn"
	t.warnings = nil // of an earlier judgement
	switch {
	case err != nil && warns:
		t.gate.opts.Log.Error("validating arguments", "decision", t.decisionID, "error", err)
		t.warn(signal.CodeSchemaMismatch, "the arguments could not be validated against the tool's schema")
		return nil
	case err != nil:
		return t.internal("validating arguments", err)
	case len(faults) == 0:
		return nil
	}
	reason := argumentFault(faults[0])
	if warns {
		t.warn(signal.CodeSchemaMismatch, "the arguments break the tool's schema: "+reason)
		return nil
	}
	return t.fail(signal.CodeSchemaMismatch, reason).because(signal.InputError(reason, validator, nil)).with("faults", faults).
		remedy(correct(faults[1:], "correct the arguments and call again"))
}

// validator is the origin of errors about arguments.
var validator = signal.ModuleRef{Tier: 0, Module: "validation", Function: "validate"}

// approve lets a held call continue only with a grant, which it spends here,
// before anything is sent. A ticket store that fails refuses the call. A resumed
// call continues with its own grant or not at all.
func (t *toolCall) approve(ctx context.Context) *Failure {
	if own := t.in.resumed; own != nil {
		if f := t.onlyFor(*own); f != nil {
			return f
		}
	}
	if t.decision.Effect != policy.Hold {
		return nil
	}
	claim, f := t.claim(ctx)
	if f == nil && waits(claim) {
		t.note(span.EventHeld, string(claim.Ticket.State))
	}
	// A caller that asked for a task gets one in every state of the ticket.
	if f == nil && claim.Ticket.ID != "" && (t.task != nil || waits(claim)) && t.knowsTasks() {
		return t.replyTask(claim)
	}
	if f == nil && waits(claim) && t.in.resumed == nil {
		if claim, f = t.await(ctx, claim); f != nil || !waits(claim) {
			t.note(span.EventDecided, string(claim.Ticket.State))
		}
	}
	if f != nil {
		return f
	}
	switch claim.Outcome {
	case approval.Granted: // only this continues down the road
		return t.chargeHeld(ctx)
	case approval.Pending, approval.InFlight:
		return t.pending(claim)
	case approval.Replay:
		return t.replyStored(ctx, claim.Ticket)
	case approval.TooMany:
		t.crowded = true
		return t.fail(signal.CodeOverloaded, "too many of your calls are waiting for approval").remedy("wait until some have been decided")
	}
	return t.ended(claim.Ticket)
}
