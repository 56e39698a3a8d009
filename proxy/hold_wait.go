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
	// lookEvery is the pause before a call that found nothing new looks again, for
	// example for the result of an identical call that runs.
	lookEvery = 500 * time.Millisecond
)

// await notifies the client of a call that waits for a person, or for an
// identical call that runs, holds the call for a while, and judges it again when
// something may have changed.
func (t *toolCall) await(ctx context.Context, c approval.Claim) (approval.Claim, *Failure) {
	if c.Outcome == approval.Pending {
		done := t.notifyClient(ctx, c.Ticket)
		defer done()
	}
	if t.reply != nil {
		return c, nil
	}
	limit := t.holdTime()
	if limit <= 0 {
		return c, nil
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for waits(c) {
		if c.Outcome == approval.Pending && !t.waitForDecision(ctx, c.Ticket) {
			return c, nil
		}
		before := c
		var f *Failure
		if c, f = t.claimAgain(ctx, c); f != nil {
			return c, f
		}
		if c.Outcome == before.Outcome && c.Ticket.ID == before.Ticket.ID && !pause(ctx) {
			return c, nil
		}
	}
	return c, nil
}

// pause waits for lookEvery, and reports false when ctx ends first.
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

// waitForDecision holds the call until people have decided, and reports false
// when ctx ends first.
func (t *toolCall) waitForDecision(ctx context.Context, ticket approval.Ticket) bool {
	for {
		t.reportWaiting(ticket)
		step, stop := context.WithTimeout(ctx, reportEvery)
		err := t.gate.opts.Waiter.Wait(step, ticket.ID)
		late := step.Err() != nil
		stop()
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case !late:
			t.gate.opts.Log.Error("waiting for a decision", "ticket", ticket.ID, "error", err)
			return false
		}
	}
}

// reportWaiting reports progress for a call that waits. The steps are small, so
// that the tool's own progress is larger.
func (t *toolCall) reportWaiting(ticket approval.Ticket) {
	if t.in.Progress == nil {
		return
	}
	t.hold.reports++
	text := fmt.Sprintf("waiting for a person with role %s to approve this call (ticket %s)", strings.Join(ticket.Roles, " or "), ticket.ID)
	t.in.Progress(json.RawMessage(fmt.Sprintf(`{"progress":%g,"message":%s}`, t.hold.progress(), jsonrpc.Quote(text))))
}

// progress is what the client has heard while its call waited.
func (h *hold) progress() float64 { return float64(h.reports) / 1000 }

// growing drops the tool's progress that is not beyond what the client has heard
// while its call waited: progress only grows (MCP, basic/utilities/progress).
func (t *toolCall) growing(client func(json.RawMessage)) func(json.RawMessage) {
	return func(params json.RawMessage) {
		raw, _ := jsonrpc.Get(params, "progress")
		if n, err := strconv.ParseFloat(string(raw), 64); err == nil && n <= t.hold.progress() {
			return
		}
		client(params)
	}
}
