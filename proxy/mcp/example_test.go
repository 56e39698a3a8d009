package mcp_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// openRoad is a road that lets everybody call one tool, which returns its arguments.
type openRoad struct{}

func (openRoad) Identify(context.Context, identity.Credential) (policy.Principal, *proxy.Failure) {
	return policy.Principal{Subject: "local"}, nil
}

func (openRoad) Listing(context.Context, *proxy.Call, policy.Principal) *proxy.Listing {
	return &proxy.Listing{}
}

func (openRoad) Refuse(_ context.Context, _ *proxy.Call, code, reason string) *proxy.Failure {
	return &proxy.Failure{Kernel: &signal.KernelError{Code: code}, Reason: reason}
}

func (openRoad) Call(_ context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	arguments, _ := in.Message.Param("arguments")
	result := append([]byte(`{"content":[],"structuredContent":`), arguments...)
	return &proxy.Reply{Result: append(result, 0x7d), Kernel: signal.OK(nil, signal.Metrics{})}, nil
}

// A door serves one client on stdin and stdout with Serve, and any number over
// HTTP with ServeHTTP.
func ExampleDoor_Serve() {
	door, err := mcp.New(mcp.Options{Gate: openRoad{}, Refuser: openRoad{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")
	if err := door.Serve(context.Background(), in, os.Stdout); err != nil {
		fmt.Println(err)
	}
	if err := door.Close(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"jsonrpc":"2.0","id":1,"result":{}}
}
