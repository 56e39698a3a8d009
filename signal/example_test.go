package signal_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/signal"
)

// A tool result becomes Signals and a Result; Compose says what to do with it.
func Example() {
	gate := signal.ModuleRef{Tier: 4, Module: "gate", Function: "call"}
	result := json.RawMessage(`{"content":[{"type":"text","text":"3 hits"}],"structuredContent":{"hits":3}}`)
	signals, refs, err := signal.FromToolResult(result, signal.Lineage{Origin: gate, Tool: "search", TraceID: "trc_1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	next := signal.Compose(signal.OK(signals, signal.Metrics{ModuleRef: gate}))
	for i, s := range next.Signals {
		fmt.Println(s.Kind(), refs[i], s.Body())
	}
	// Output:
	// text /content/0 map[text:3 hits]
	// data /structuredContent map[data:map[hits:3] schema:json]
}

// A kernel code decides category, severity and retry; the category decides the
// HTTP status.
func ExampleErrorFor() {
	gate := signal.ModuleRef{Tier: 4, Module: "gate", Function: "limit"}
	e, err := signal.ErrorFor(signal.CodeRateLimited, "rate limit 60/1m exceeded", gate, nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Category, e.Severity, e.RetryEligible, signal.ErrorToProblemDetails(e, 0).Status)
	// Output: resource transient true 429
}
