package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/signal"
)

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
