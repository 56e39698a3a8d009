package proxy

import (
	"context"
	"errors"
	"sync"

	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
	"github.com/toolgate/toolgate/signal"
)

// Stops says which requests people have stopped. It is a stop.Stops.
type Stops interface {
	// Find returns what stops a request of p at a server, by an exposed tool, "" = not known or
	// none; nil = nothing does.
	Find(p *policy.Principal, server, tool string) *stop.Stop
}

// noStops are the Stops of a Gate that is given none.
type noStops struct{}

// Find implements Stops.
func (noStops) Find(*policy.Principal, string, string) *stop.Stop { return nil }

// stopping is the cause with which a request at its server is cancelled that people have stopped.
type stopping struct{ by *stop.Stop }

func (s stopping) Error() string { return "stopped: " + s.by.Reason }

// stop refuses a request that people have stopped. It is a stage before resolve, which may ask
// servers where something is. Resolve calls it again when server and tool are known. Forward calls it
// after begin, so that a stop is found either here or by CancelStopped.
func (c *call) stop(context.Context) *Failure {
	if by := c.stoppedBy(); by != nil {
		return c.stopped(by, "")
	}
	return nil
}

// stoppedBy returns what stops the request, as far as it is known what it is about.
func (c *call) stoppedBy() *stop.Stop {
	tool := ""
	if c.tool != nil {
		tool = c.tool.Exposed
	}
	return c.gate.opts.Stops.Find(&c.principal, c.server, tool)
}

// stopped returns the failure of a stopped request. Then says what became of the request.
func (c *call) stopped(by *stop.Stop, then string) *Failure {
	return c.fail(signal.CodeStopped, by.About()+" is stopped ("+by.ID+"): "+by.Reason+then).with("stop", by.ID).
		remedy("make no more such calls until a person resumes them")
}

// running are the requests that may be at a server.
type running struct {
	mu    sync.Mutex // protects the field below
	calls map[*call]wait.Ender
}

// begin returns the context of a request that goes to its server, and what ends it: people do when
// they stop the request. The caller calls end.
func (r *running) begin(ctx context.Context, c *call) (context.Context, wait.Ender) {
	ender := c.in.Cancel
	if ender == nil {
		ctx, ender = wait.WithEnder(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[c] = ender
	return ctx, ender
}

// end forgets a request, and frees the resources of a context that begin has made.
func (r *running) end(c *call) {
	r.mu.Lock()
	ender := r.calls[c]
	delete(r.calls, c)
	r.mu.Unlock()
	if c.in.Cancel == nil {
		ender.End(nil)
	}
}

// CancelStopped cancels the requests at servers that people have stopped. It is called whenever
// others are stopped; a request that begins meanwhile finds its stop itself.
func (g *Gate) CancelStopped() {
	g.running.mu.Lock()
	defer g.running.mu.Unlock()
	for c, ender := range g.running.calls {
		if by := c.stoppedBy(); by != nil {
			ender.End(stopping{by})
		}
	}
}

// halted returns the failure of a request whose context ended because people stopped it, nil for any
// other. sent means that the request reached its server.
func (c *call) halted(ctx context.Context, sent bool) *Failure {
	cause := stopping{}
	if !errors.As(context.Cause(ctx), &cause) {
		return nil
	}
	c.cut = true
	if !sent {
		return c.stopped(cause.by, "; the call was not made")
	}
	return c.stopped(cause.by, "; the call was cancelled, and whether it took effect is unknown").remedy(mayHaveRun)
}
