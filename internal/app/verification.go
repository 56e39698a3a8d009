package app

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/verify"
	"github.com/toolgate/toolgate/proxy"
)

// verification verifies a sample of the decisions of an App while it serves.
type verification struct {
	sampler *verify.Sampler
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// startVerification starts verifying. The caller must call close before the audit
// trail closes.
func (a *App) startVerification() *verification {
	verified := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolgate_policy_verified_total", Help: "Decisions sampled by policy.verify: same = OPA decides the same again, differed = it does not (an alarm), failed = it did not decide in time, dropped = the queue was full.",
	}, []string{"outcome"})
	for _, o := range verify.Outcomes() {
		verified.WithLabelValues(string(o))
	}
	a.metrics.registry.MustRegister(verified)
	ctx, stop := context.WithCancel(context.Background())
	v := &verification{stop: stop, sampler: verify.New(verify.Options{
		Share:   a.Config().Policy.Verify.Sample,
		Record:  func(ctx context.Context, r *audit.Record) error { return a.state.trail.Outcome(ctx, r) },
		Observe: func(o verify.Outcome) { verified.WithLabelValues(string(o)).Inc() },
		Log:     a.log.Named("verify"),
	})}
	v.done.Go(func() { v.sampler.Run(ctx) })
	return v
}

// close stops verifying and waits for the decision that is being verified.
func (v *verification) close() {
	v.stop()
	v.done.Wait()
}

// sampled is an engine whose decisions are sampled. Decisions that the engine failed
// to make are denials and are not sampled.
type sampled struct {
	*rego.Engine
	reference *rego.Reference
	sampler   *verify.Sampler
}

// The gate uses more of an engine than proxy.Policy.
var _ proxy.Metered = (*sampled)(nil)

func (v *verification) watch(engine *rego.Engine) *sampled {
	return &sampled{Engine: engine, reference: engine.Reference(), sampler: v.sampler}
}

// Decide implements proxy.Policy.
func (s *sampled) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	d, err := s.Engine.Decide(ctx, in)
	if err == nil {
		s.sampler.Offer(in, &d, s.reference)
	}
	return d, err
}
