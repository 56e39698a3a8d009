package ndjson_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/ndjson"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// openRoad is a road that lets everybody call one tool, which returns its arguments.
type openRoad struct{}

func (openRoad) Identify(context.Context, identity.Credential) (policy.Principal, *proxy.Failure) {
	return policy.Principal{Subject: "local"}, nil
}

func (openRoad) List(context.Context, *proxy.Call, policy.Principal) []*registry.Tool { return nil }

func (openRoad) Refuse(_ context.Context, _ *proxy.Call, code, reason string) *proxy.Failure {
	return &proxy.Failure{Kernel: &signal.KernelError{Code: code}, Reason: reason}
}

func (openRoad) Call(_ context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	arguments, _ := in.Message.Param("arguments")
	result := append([]byte(`{"content":[],"structuredContent":`), arguments...)
	return &proxy.Reply{Result: append(result, 0x7d), Kernel: signal.OK(nil, signal.Metrics{})}, nil
}

// Each line is one request, and each answer is one line. An invoke takes the road
// of every other tool call.
func ExampleDoor_Serve() {
	door, err := ndjson.New(ndjson.Options{Gate: openRoad{}, Refuser: openRoad{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	lines := `{"type":"invoke","payload":{"action":"echo","input":{"n":9007199254740993}}}`
	if err := door.Serve(context.Background(), strings.NewReader(lines), os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"ok":true,"data":{"action":"echo","boundaryNotice":"No boundary notice is given for this action.","uncertainty":"low","assumptions":["Allowed by the policy"],"output":{"n":9007199254740993}}}
}
