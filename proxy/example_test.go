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

// controls are the parts of a gate whose policy allows calls with n up to 10, and an
// upstream that says hello.
type controls struct{}

func (controls) Identify(context.Context, identity.Credential) (policy.Principal, error) {
	return policy.Principal{Subject: "ann", Roles: []string{"researcher"}}, nil
}

func (controls) Decide(_ context.Context, in *policy.Input) (policy.Decision, error) {
	var arguments struct{ N int }
	if err := json.Unmarshal(in.Arguments, &arguments); err != nil || arguments.N > 10 {
		return policy.Decision{Effect: policy.Deny, Rule: "small", Reason: "n is at most 10"}, err
	}
	return policy.Decision{Effect: policy.Allow, Rule: "small"}, nil
}

func (controls) Visible(context.Context, policy.Principal, policy.Tool) (bool, error) {
	return true, nil
}
func (controls) Revision() string { return "sha256:example" }

func (controls) Spend(time.Time, policy.Principal, policy.Tool, *policy.Limit) *limit.Exceeded {
	return nil
}

func (controls) Claim(context.Context, approval.Held) (approval.Claim, error) {
	return approval.Claim{}, nil
}
func (controls) Release(context.Context, string) error { return nil }
func (controls) Finish(context.Context, string, approval.State, []byte, string) error {
	return nil
}

func (controls) Write(kind audit.Kind, r *audit.Record) error {
	if kind == audit.KindOutcome {
		fmt.Println("closed:", r.Outcome)
		return nil
	}
	fmt.Println("recorded:", r.Policy.Effect, r.Exposed)
	return nil
}

func (controls) View(_ context.Context, route string, _ registry.Downstream) registry.View {
	input, err := schema.Compile(json.RawMessage(`{"type":"object"}`))
	if err != nil {
		panic(err)
	}
	greet := &registry.Tool{Server: "town", Name: "greet", Exposed: "town__greet", Fingerprint: "sha256:greet", Input: input}
	return registry.NewCatalogue([]string{"town"}, greet).View(route)
}

func (controls) Forward(context.Context, *registry.Tool, registry.Outgoing) (json.RawMessage, error) {
	return json.RawMessage(`{"content":[{"type":"text","text":"hello"}]}`), nil
}

// A door decodes a request, and the gate takes it down the road. What the policy
// denies reaches no upstream; each call leaves its outcome in the trail.
func ExampleGate_Call() {
	gate, err := proxy.New(proxy.Options{
		Identifier: controls{}, Policy: controls{}, Limiter: controls{}, Tickets: controls{}, Recorder: controls{}, Upstreams: controls{},
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
