package policy_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// An Input is the document that a policy sees.
func Example() {
	document, err := json.Marshal(policy.Input{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}},
		Tool:      policy.Tool{Server: "web", Name: "search", Exposed: "web__search"},
		Arguments: json.RawMessage(`{"query":"mcp"}`),
		Request:   policy.Request{ID: "1", Transport: "http", Time: time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)},
	})
	fmt.Println(string(document), err)
	// Output: {"action":"tools/call","principal":{"subject":"agent-7","roles":["researcher"],"scopes":[]},"tool":{"server":"web","name":"search","exposed":"web__search","risk":"","fingerprint":""},"arguments":{"query":"mcp"},"request":{"id":"1","transport":"http","era":"","trace_id":"","time":"2026-01-05T12:00:00Z"}} <nil>
}
