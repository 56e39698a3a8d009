package verify_test

import (
	"context"
	"fmt"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rejudge/verify"
)

// denies is a reference that denies everything.
type denies struct{}

func (denies) Decide(context.Context, *policy.Input) (policy.Decision, error) {
	return policy.Decision{Effect: policy.Deny, Rule: "nothing-passes"}, nil
}

// A decision that the reference does not confirm is recorded.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	sampler := verify.New(verify.Options{Share: 1, Record: func(_ context.Context, r *audit.Record) error {
		fmt.Println(r.Stage, r.Exposed, r.Error)
		stop()
		return nil
	}})
	in := &policy.Input{Principal: policy.Principal{Subject: "agent-7"}, Tool: policy.Tool{Exposed: "web__search"}}
	sampler.Offer(in, &policy.Decision{Effect: policy.Allow, Rule: "role-has-tool"}, denies{})
	sampler.Run(ctx)
	// Output: verify web__search the served decision is not OPA's: served allow (role-has-tool), OPA decides deny (nothing-passes)
}
