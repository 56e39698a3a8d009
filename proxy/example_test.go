package proxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// town is the controls of a gate whose policy allows calls with n up to 10, and an
// upstream that says hello.
type town struct{}

func (town) Identify(context.Context, identity.Credential) (policy.Principal, error) {
	return policy.Principal{Subject: "ann", Roles: []string{"researcher"}}, nil
}

func (town) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	var arguments struct{ N int }
	if err := json.Unmarshal(in.Arguments, &arguments); err != nil || arguments.N > 10 {
		return policy.Decision{Effect: policy.Deny, Rule: "small", Reason: "n is at most 10"}, err
	}
	return policy.Decision{Effect: policy.Allow, Rule: "small"}, nil
}

func (town) Visible(context.Context, policy.Principal, policy.Tool) (bool, error) { return true, nil }
func (town) Revision() string                                                     { return "sha256:example" }

func (town) Spend(time.Time, policy.Principal, policy.Tool, *policy.Limit) *limit.Exceeded {
	return nil
}

func (town) Claim(context.Context, approval.Held) (approval.Claim, error) {
	return approval.Claim{}, nil
}
func (town) Release(context.Context, string) error { return nil }
func (town) Finish(context.Context, string, approval.State, []byte, string) error {
	return nil
}

func (town) Write(kind audit.Kind, r *audit.Record) error {
	if kind == audit.KindOutcome {
		fmt.Println("closed:", r.Outcome)
		return nil
	}
	fmt.Println("recorded:", r.Policy.Effect, r.Exposed)
	return nil
}

func (town) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	input, err := schema.Compile(json.RawMessage(`{"type":"object"}`))
	if err != nil {
		panic(err)
	}
	greet := &registry.Tool{Server: "town", Name: "greet", Exposed: "town__greet", Fingerprint: "sha256:greet", Input: input}
	return registry.NewCatalogue([]string{"town"}, greet).View(route)
}

func (town) Forward(context.Context, *registry.Tool, registry.Outgoing) (json.RawMessage, error) {
	return json.RawMessage(`{"content":[{"type":"text","text":"hello"}]}`), nil
}

// A door decodes a request, and the gate takes it down the road. What the policy
// denies reaches no upstream; each call leaves its outcome in the trail.
func ExampleGate_Call() {
	gate, err := proxy.New(proxy.Options{
		Identifier: town{}, Policy: town{}, Limiter: town{}, Tickets: town{}, Recorder: town{}, Upstreams: town{},
		Settings: proxy.Settings{Results: "off"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range []int{3, 30} {
		text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"town__greet","arguments":{"n":%d}}}`, n)
		message, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{})
		if err != nil {
			fmt.Println(err)
			return
		}
		reply, failure := gate.Call(context.Background(), &proxy.Call{Message: message, Transport: "http"})
		if failure != nil {
			fmt.Println("refused:", failure.Reason)
			continue
		}
		fmt.Println("result:", string(reply.Result))
	}
	// Output:
	// recorded: allow town__greet
	// closed: allowed
	// result: {"content":[{"type":"text","text":"hello"}]}
	// closed: denied
	// refused: n is at most 10
}
