package rego_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// Partial evaluation of pairs that are new goes on beside full evaluation of
// others. OPA writes to shared terms while it splits a policy, which only the
// race detector sees.
func TestNewPairsBesideDecisions(t *testing.T) {
	e, err := rego.Load(context.Background(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for _, role := range []string{"observer", "researcher", "treasurer", "creator"} {
				for _, tool := range []string{"search_internet", "manage_wallet", "generate_media"} {
					who := policy.Principal{Subject: fmt.Sprint("s", i), Roles: []string{role, fmt.Sprint("r", i)}}
					what := policy.Tool{Server: "standard", Name: tool, Exposed: tool, Fingerprint: fmt.Sprint("sha256:", i)}
					if _, err := e.Visible(context.Background(), who, what); err != nil {
						t.Error(err)
					}
					for _, args := range []string{`{"action":"balance"}`, `{"action":"transfer","amount":500}`, `{"model":"card-1"}`} {
						if _, err := e.Decide(context.Background(), &policy.Input{Principal: who, Tool: what, Arguments: json.RawMessage(args)}); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	group.Wait()
}
