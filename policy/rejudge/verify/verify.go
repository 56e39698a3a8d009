// Package verify judges a sample of served decisions a second time and raises an
// alarm when the second decision differs from the one that was served.
//
// The call that is sampled does not wait: Offer copies what was judged into a bounded
// queue and returns. One goroutine, Run, asks the Reference about each copy. Copies
// that do not fit into the queue are dropped and counted.
//
//	sampler := verify.New(verify.Options{Share: 0.001, Record: trail.Outcome, Log: log})
//	go sampler.Run(ctx)
//	…
//	decision, err := engine.Decide(ctx, input)
//	sampler.Offer(input, &decision, engine.Reference())
//
// A difference is never expected. Each one is an error in the log, an audit record
// whose stage is "verify", and the outcome Differed.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Outcome is the result of verifying one sampled decision.
type Outcome string

// The outcomes.
const (
	Same     Outcome = "same"     // the reference decides the same
	Differed Outcome = "differed" // it decides otherwise: an alarm
	Failed   Outcome = "failed"   // it did not decide in time
	Dropped  Outcome = "dropped"  // the queue was full, or toolgate ended first
)

// Outcomes returns every outcome.
func Outcomes() []Outcome { return []Outcome{Same, Differed, Failed, Dropped} }

// Bounds of a Sampler.
const (
	queued      = 256             // decisions
	queuedBytes = 16 << 20        // of their arguments
	longest     = 5 * time.Second // for one decision of the reference
)

// Stage is the stage of the audit record of a difference.
const Stage = "verify"

// Reference judges a decision a second time.
type Reference interface {
	Decide(ctx context.Context, in *policy.Input) (policy.Decision, error)
}

// Options configure a Sampler. Record is required.
type Options struct {
	Share float64 // of decisions that are verified; from 0 (none) to 1 (every one)
	// Record writes the audit record of a difference.
	Record func(context.Context, *audit.Record) error
	// Observe is called once for each sampled decision and must not block; nil =
	// nothing is called.
	Observe func(Outcome)
	Log     hclog.Logger // nil = nothing is logged
}

// Sampler verifies a share of the decisions that it is offered. It is safe for
// concurrent use.
type Sampler struct {
	opts  Options
	share atomic.Uint64 // bits of a float64
	queue chan sample
	bytes atomic.Int64 // of arguments in queue
}

// sample is one decision to verify.
type sample struct {
	input     *policy.Input
	served    policy.Decision
	reference Reference
}

// New returns a Sampler that verifies nothing until Run is called.
func New(o Options) *Sampler {
	if o.Observe == nil {
		o.Observe = func(Outcome) {}
	}
	o.Log = cmp.Or(o.Log, hclog.NewNullLogger())
	s := &Sampler{opts: o, queue: make(chan sample, queued)}
	s.SetShare(o.Share)
	return s
}

// SetShare changes the share of decisions that are verified.
func (s *Sampler) SetShare(share float64) { s.share.Store(math.Float64bits(share)) }

// Offer may queue served, the decision on in, for verification by r. It neither
// blocks nor keeps in or served.
func (s *Sampler) Offer(in *policy.Input, served *policy.Decision, r Reference) {
	share := math.Float64frombits(s.share.Load())
	if share <= 0 || rand.Float64() >= share {
		return
	}
	size := int64(len(in.Arguments))
	if s.bytes.Add(size) <= queuedBytes {
		select {
		case s.queue <- sample{clone(in), *served, r}:
			return
		default:
		}
	}
	s.bytes.Add(-size)
	s.opts.Observe(Dropped)
}

// clone copies the parts of in that the call may change or reuse later.
func clone(in *policy.Input) *policy.Input {
	out := *in
	out.Principal = in.Principal.Clone()
	out.Arguments = bytes.Clone(in.Arguments)
	out.Usage = maps.Clone(in.Usage)
	return &out
}

// Run verifies queued decisions until ctx ends, and then drops the rest.
func (s *Sampler) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.drop()
			return
		case next := <-s.queue:
			s.bytes.Add(-int64(len(next.input.Arguments)))
			s.opts.Observe(s.verify(ctx, &next))
		}
	}
}

// drop counts what is left in the queue, from which nobody else takes.
func (s *Sampler) drop() {
	for len(s.queue) > 0 {
		<-s.queue
		s.opts.Observe(Dropped)
	}
}

func (s *Sampler) verify(ctx context.Context, next *sample) Outcome {
	bounded, stop := context.WithTimeout(ctx, longest)
	defer stop()
	now, err := next.reference.Decide(bounded, next.input)
	switch {
	case ctx.Err() != nil:
		return Dropped
	case bounded.Err() != nil:
		s.opts.Log.Warn("a decision could not be verified in time", "tool", judgement.SubjectName(next.input), "trace", next.input.Request.TraceID)
		return Failed
	case judgement.Equal(&next.served, &now):
		return Same
	}
	s.alarm(ctx, next, &now, err)
	return Differed
}

// alarm reports a difference in the log and in the audit trail.
func (s *Sampler) alarm(ctx context.Context, next *sample, now *policy.Decision, cause error) {
	in := next.input
	text := fmt.Sprintf("the served decision is not OPA's: served %v, OPA decides %v", judgement.VerdictOf(&next.served), judgement.VerdictOf(now))
	if cause != nil {
		text = fmt.Sprintf("%s: %v", text, cause)
	}
	s.opts.Log.Error("a served decision is not the policy's", "served", judgement.VerdictOf(&next.served).String(), "verified", judgement.VerdictOf(now).String(),
		"tool", judgement.SubjectName(in), "principal", judgement.PrincipalName(&in.Principal), "trace", in.Request.TraceID, "policy", next.served.Revision, "cause", cause)
	r := &audit.Record{
		TraceID: in.Request.TraceID, RequestID: in.Request.ID, Transport: in.Request.Transport, Era: in.Request.Era, Tags: in.Request.Tags,
		Principal: audit.Principal{Subject: in.Principal.Subject, Person: in.Principal.Person, Roles: in.Principal.Roles, Client: in.Principal.Client, Tenant: in.Principal.Tenant},
		Server:    in.Tool.Server, Tool: in.Tool.Name, Exposed: in.Tool.Exposed, Fingerprint: in.Tool.Fingerprint, Arguments: in.Arguments,
		Outcome: audit.Failed, Stage: Stage, Error: text,
	}
	if !in.Calls() {
		r.Method = in.Action
	}
	if err := s.opts.Record(context.WithoutCancel(ctx), r); err != nil && !errors.Is(err, context.Canceled) {
		s.opts.Log.Error("recording a difference of decisions", "error", err)
	}
}
