package rest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/rest"
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

// A handler serves /v1. Close it before the server that it is in.
func ExampleHandler() {
	handler, err := rest.New(rest.Options{
		Gate: openRoad{}, Refuser: openRoad{}, Bus: bus.New(bus.Options{}), Artifacts: struct{ rest.Artifacts }{},
		ToolIO: func(string) (*registry.ToolIO, error) { return nil, registry.ErrUnknownTool },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	defer handler.Close()
	body := strings.NewReader(`{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"name":"echo","arguments":{"n":1}}}`)
	response, err := server.Client().Post(server.URL+"/v1/rpc", "application/json", body)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode == http.StatusOK, string(text))
	// Output:
	// true {"jsonrpc":"2.0","id":"req-1","result":{"content":[],"structuredContent":{"n":1}}}
}
