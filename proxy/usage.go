package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/signal"
)

// Metered is a Policy that wants calls counted. One that is not knows no usage: it
// judges without, and nothing is counted for it.
type Metered interface {
	// Meters gives what is counted of calls of t, nil for nothing. The gate does not
	// write to it.
	Meters(t policy.Tool) []policy.Meter
}

// Usage counts what calls use. Every error refuses the call.
type Usage interface {
	// Read gives what the meters of a call stand at, by their names.
	Read(ctx context.Context, use *limit.Use) (map[string]policy.Reading, error)
	// Reserve counts a call, durably. When its meters stand elsewhere than judged, it
	// asks again whether the call may be made so, and returns limit.ErrRefused when it
	// may not.
	Reserve(ctx context.Context, use *limit.Use, judged map[string]policy.Reading, again func(map[string]policy.Reading) bool) (*limit.Reservation, error)
	// Return takes back what Reserve has counted.
	Return(ctx context.Context, r *limit.Reservation) error
}

// retryUsed is what a caller is told to wait whose call could not be counted at this
// moment.
const retryUsed = time.Second

// gauge reads what the meters of the tool stand at, for the policy to judge by.
// What cannot be read refuses the call.
func (g *Gate) gauge(ctx context.Context, p *passage) *Failure {
	p.use, p.usage = nil, nil
	engine, ok := p.engine.(Metered)
	if !ok {
		return nil
	}
	meters := engine.Meters(p.subject)
	if len(meters) == 0 {
		return nil
	}
	err := errors.New("the gate has no store of usage")
	if g.opts.Usage != nil {
		if p.use, err = limit.Measure(p.principal, p.subject.Exposed, p.digest, p.args, meters); err == nil {
			p.usage, err = g.opts.Usage.Read(ctx, p.use)
		}
	}
	if err != nil {
		return g.uncounted(ctx, p, "reading what has been used", err)
	}
	return nil
}

// uncounted refuses a call that the store of usage could not serve.
func (g *Gate) uncounted(ctx context.Context, p *passage, doing string, err error) *Failure {
	if ctx.Err() != nil {
		return p.fail(signal.CodeCancelled, "the caller cancelled the call")
	}
	g.opts.Log.Error(doing, "decision", p.decisionID, "tool", p.subject.Exposed, "error", err)
	if !errors.Is(err, limit.ErrBusy) {
		return p.fail(signal.CodeInternal, "")
	}
	f := p.fail(signal.CodeOverloaded, "too many calls are being counted")
	f.RetryAfter = retryUsed
	return f.remedy("call again a little later")
}

// ration takes quota, and counts a call that is allowed. One that is held is
// counted with its grant: see draw.
func ration(ctx context.Context, g *Gate, p *passage) *Failure {
	if f := p.countable(); f != nil {
		return f
	}
	if f := spend(ctx, g, p); f != nil || p.decision.Effect != policy.Allow {
		return f
	}
	spent := p.decision.Limit
	f, refused := g.reserve(ctx, p, func() bool { return p.decision.Effect == policy.Allow })
	switch {
	case f != nil:
		return f
	case refused && p.decision.Effect != policy.Hold:
		return p.denied()
	case p.decision.Limit != nil && (spent == nil || *spent != *p.decision.Limit):
		return spend(ctx, g, p) // the policy lowers the rate by what has been used
	}
	return nil
}

// draw counts a call that goes on after it was held: with the grant of its ticket,
// which goes back when the call may not be made by what has been used meanwhile, or
// without one, as nobody needs to approve it any more.
func (g *Gate) draw(ctx context.Context, p *passage) *Failure {
	if p.use == nil {
		return nil
	}
	if p.ticket.ID != "" {
		p.use.For(p.ticket.ID, p.ticket.Expires)
	}
	f, refused := g.reserve(ctx, p, func() bool {
		switch p.decision.Effect {
		case policy.Allow:
			return true
		case policy.Hold:
			return p.ticket.ID != "" && p.differs(p.ticket) == ""
		}
		return false
	})
	if f == nil && !refused {
		return nil
	}
	g.release(ctx, p)
	switch {
	case f != nil:
		return f
	case p.decision.Effect != policy.Hold:
		return p.denied()
	}
	f = p.fail(signal.CodeRateLimited, "what the caller has used has changed while the call waited, and others have to approve it by now")
	f.RetryAfter = retryUsed
	return f.remedy("call again with the same arguments")
}

// reserve counts the call before it is made. When its meters stand elsewhere than
// where they were judged it is judged again, and counted if passes then says so;
// refused means that it says not.
func (g *Gate) reserve(ctx context.Context, p *passage, passes func() bool) (f *Failure, refused bool) {
	if p.use == nil {
		return nil, false
	}
	if f := p.countable(); f != nil {
		return f, false
	}
	taken, err := g.opts.Usage.Reserve(ctx, p.use, p.usage, func(now map[string]policy.Reading) bool {
		p.usage = now
		g.judge(ctx, p, p.input(), "call")
		return passes()
	})
	switch {
	case errors.Is(err, limit.ErrRefused):
		return nil, true
	case err != nil:
		return g.uncounted(ctx, p, "counting a call", err), false
	}
	p.taken = taken
	return nil, false
}

// countable refuses a call that its meters cannot count: it would be made without
// being seen by the calls after it.
func (p *passage) countable() *Failure {
	if p.use == nil || p.use.Fault() == nil {
		return nil
	}
	fault := p.use.Fault()
	return p.fail(signal.CodeSchemaMismatch, fault.Error()).with("pointer", fault.Pointer).with("meter", fault.Meter).
		remedy("send a JSON number there and call again")
}

// giveBack takes the call out of what has been used. It is only for a call of which
// it is certain that nothing was sent. A store that fails leaves it counted.
func (g *Gate) giveBack(ctx context.Context, p *passage) {
	if p.taken == nil {
		return
	}
	taken := p.taken
	p.taken = nil
	if err := g.opts.Usage.Return(context.WithoutCancel(ctx), taken); err != nil {
		g.opts.Log.Error("giving back what a call would have used", "decision", p.decisionID, "error", err)
	}
}
