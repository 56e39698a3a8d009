package limit_test

import (
	"fmt"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
)

// Two calls in a minute pass, the third has to wait for the next token.
func Example() {
	rate, err := limit.ParseRate("2/1m")
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter := limit.New(limit.Rules{Default: &rate})
	agent, tool := policy.Principal{Subject: "agent-7"}, policy.Tool{Exposed: "web__search"}
	now := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	for range 3 {
		if refused := limiter.Spend(now, agent, tool, nil); refused != nil {
			fmt.Printf("rate limit %s exceeded; try again in %v\n", refused.Limit, refused.RetryAfter)
			continue
		}
		fmt.Println("passes")
	}
	// Output:
	// passes
	// passes
	// rate limit 2/1m exceeded; try again in 30s
}
