package proxy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

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

// readUsage reads the meters of the tool for the policy. A meter that cannot be
// read refuses the call.
func (t *toolCall) readUsage(ctx context.Context) *Failure {
	t.usage.use, t.usage.readings = nil, nil
	engine, ok := t.engine.(Metered)
	if !ok {
		return nil
	}
	meters := engine.Meters(t.subject)
	if len(meters) == 0 {
		return nil
	}
	err := errors.New("the gate has no store of usage")
	if store := t.gate.opts.Usage; store != nil {
		if t.usage.use, err = limit.Measure(t.principal, t.subject.Exposed, t.digest, t.body, meters); err == nil {
			t.usage.readings, err = store.Read(ctx, t.usage.use)
		}
	}
	if err != nil {
		return t.uncounted(ctx, "reading what has been used", err)
	}
	return nil
}

// uncounted refuses a call that the store of usage could not serve.
func (t *toolCall) uncounted(ctx context.Context, doing string, err error) *Failure {
	if ctx.Err() != nil {
		return t.fail(signal.CodeCancelled, "the caller cancelled the call")
	}
	t.gate.opts.Log.Error(doing, "decision", t.decisionID, "tool", t.subject.Exposed, "error", err)
	if !errors.Is(err, limit.ErrBusy) {
		return t.fail(signal.CodeInternal, "")
	}
	return t.fail(signal.CodeOverloaded, "too many calls are being counted").after(retryUsed).remedy("call again a little later")
}

// takeTokens takes quota for an allowed request: a denied one costs no token.
// Rules know the request as subject.
func (c *call) takeTokens(subject policy.Tool) *Failure {
	over := c.gate.opts.Limiter.Spend(c.start, c.principal, subject, c.decision.Limit)
	if over == nil {
		return nil
	}
	empty := signal.ResourceError("no token is left for "+over.Scope, limiter, map[string]any{"limit": over.Limit})
	reason := fmt.Sprintf("rate limit %s exceeded; try again in %s", over.Limit, seconds(over.RetryAfter))
	return c.wrap(signal.CodeRateLimited, empty, reason).with("limit", over.Limit).with("scope", over.Scope).with("rule", over.Rule).
		after(over.RetryAfter)
}

// limiter is the origin of errors about empty buckets.
var limiter = signal.ModuleRef{Tier: 4, Module: "limit", Function: "spend"}

// seconds formats a wait, rounded up to tenths: "0.6 s".
func seconds(wait time.Duration) string {
	const tenth = time.Second / 10
	return strconv.FormatFloat(float64((wait+tenth-1)/tenth)/10, 'f', -1, 64) + " s"
}

func (t *toolCall) limitCall(context.Context) *Failure { return t.takeTokens(t.subject) }

// limit takes quota, and counts a call that is allowed. A held call is counted
// with its grant: see chargeHeld.
func (t *toolCall) limit(ctx context.Context) *Failure {
	if t.usage.use != nil {
		if f := t.countable(); f != nil {
			return f
		}
	}
	if f := t.takeTokens(t.subject); f != nil || t.usage.use == nil || t.decision.Effect != policy.Allow {
		return f
	}
	spent := t.decision.Limit
	f, refused := t.reserve(ctx, func() bool { return t.decision.Effect == policy.Allow })
	switch {
	case f != nil:
		return f
	case refused && t.decision.Effect != policy.Hold:
		return t.denied(t.decision.Reason)
	case t.decision.Limit != nil && (spent == nil || *spent != *t.decision.Limit):
		return t.takeTokens(t.subject) // the policy lowers the rate by what has been used
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
	ticket := t.ticket
	if ticket.ID != "" {
		t.usage.use.For(ticket.ID, ticket.Expires)
	}
	f, refused := t.reserve(ctx, func() bool {
		switch t.decision.Effect {
		case policy.Allow:
			return true
		case policy.Hold:
			return ticket.ID != "" && t.differs(ticket) == ""
		}
		return false
	})
	switch {
	case f != nil || !refused:
		return f
	case t.decision.Effect != policy.Hold:
		return t.denied(t.decision.Reason)
	}
	return t.fail(signal.CodeRateLimited, "what the caller has used has changed while the call waited, and others have to approve it by now").
		after(retryUsed).remedy("call again with the same arguments")
}

// reserve counts the call before it is made. When its meters have moved since
// it was judged, it is judged again and counted if passes then reports true;
// refused means that passes reported false.
func (t *toolCall) reserve(ctx context.Context, passes func() bool) (f *Failure, refused bool) {
	if f := t.countable(); f != nil {
		return f, false
	}
	reserved, err := t.gate.opts.Usage.Reserve(ctx, t.usage.use, t.usage.readings, func(now map[string]policy.Reading) bool {
		t.usage.readings = now
		t.judge(ctx, &policy.Input{Tool: t.subject, Arguments: t.body, Usage: now})
		return passes()
	})
	switch {
	case errors.Is(err, limit.ErrRefused):
		return nil, true
	case err != nil:
		return t.uncounted(ctx, "counting a call", err), false
	}
	t.usage.reserved = reserved
	return nil, false
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

// returnUsage undoes the count of a call that was certainly not sent. A store
// that fails leaves it counted.
func (t *toolCall) returnUsage(ctx context.Context) {
	if t.usage.reserved == nil {
		return
	}
	if err := t.gate.opts.Usage.Return(context.WithoutCancel(ctx), t.usage.reserved); err != nil {
		t.gate.opts.Log.Error("giving back what a call would have used", "decision", t.decisionID, "error", err)
	}
}
