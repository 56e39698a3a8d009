package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
)

const (
	// reportEvery is how often a client that wants progress hears that its call
	// still waits.
	reportEvery = 10 * time.Second
	// lookEvery is how soon a call looks again that has found nothing new: an
	// identical one that runs, for one, whose result it waits for.
	lookEvery = 500 * time.Millisecond
)

// await does what can be done for a call that waits for a person, or for an
// identical call that runs: it brings the word of it to the client, holds the
// call for a while, and looks again when there may be news.
func (g *Gate) await(ctx context.Context, p *passage, c approval.Claim) (approval.Claim, *Failure) {
	if c.Outcome == approval.Pending {
		told := g.deliver(ctx, p, c.Ticket)
		defer told()
	}
	if p.reply != nil {
		return c, nil
	}
	hold := g.hold(p)
	if hold <= 0 {
		return c, nil
	}
	ctx, stop := context.WithTimeout(ctx, hold)
	defer stop()
	for waits(c) {
		if c.Outcome == approval.Pending && !g.wait(ctx, p, c) {
			return c, nil
		}
		before := c
		var f *Failure
		if c, f = g.lookAgain(ctx, p, c); f != nil {
			return c, f
		}
		if c.Outcome == before.Outcome && c.Ticket.ID == before.Ticket.ID && !pause(ctx) {
			return c, nil
		}
	}
	return c, nil
}

// pause lets lookEvery pass, and reports false when ctx ends before.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(lookEvery):
		return true
	}
}

// waits reports whether a claim may have another answer later.
func waits(c approval.Claim) bool {
	return c.Outcome == approval.Pending || c.Outcome == approval.InFlight
}

// wait holds the call until people have decided, and reports false when ctx has
// ended before.
func (g *Gate) wait(ctx context.Context, p *passage, c approval.Claim) bool {
	for {
		p.waiting(c.Ticket)
		step, stop := context.WithTimeout(ctx, reportEvery)
		err := g.opts.Waiter.Wait(step, c.Ticket.ID)
		late := step.Err() != nil
		stop()
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case !late:
			g.opts.Log.Error("waiting for a decision", "ticket", c.Ticket.ID, "error", err)
			return false
		}
	}
}

// waiting tells the client, if it wants to know, that its call waits. The steps
// are small, so that what the tool itself reports later is more.
func (p *passage) waiting(t approval.Ticket) {
	if p.in.Progress == nil {
		return
	}
	p.steps++
	text := fmt.Sprintf("waiting for a person with role %s to approve this call (ticket %s)", strings.Join(t.Roles, " or "), t.ID)
	p.in.Progress(json.RawMessage(fmt.Sprintf(`{"progress":%g,"message":%s}`, p.waited(), jsonrpc.Quote(text))))
}

// waited is the progress that the client has heard of while its call waited.
func (p *passage) waited() float64 { return float64(p.steps) / 1000 }

// onward takes the tool's progress to the client, nil when it wants none. What is
// no more than it has heard already stays back: progress only grows (MCP,
// basic/utilities/progress).
func (p *passage) onward() func(json.RawMessage) {
	if p.steps == 0 {
		return p.in.Progress
	}
	return func(params json.RawMessage) {
		raw, _ := jsonrpc.Get(params, "progress")
		if n, err := strconv.ParseFloat(string(raw), 64); err == nil && n <= p.waited() {
			return
		}
		p.in.Progress(params)
	}
}
