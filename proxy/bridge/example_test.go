package bridge_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/toolgate/toolgate/proxy/bridge"
)

// A bridge carries each line to the endpoint and each answer back, byte for byte.
func ExampleBridge_Serve() {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"n":9007199254740993}}`)
	}))
	defer endpoint.Close()
	b, err := bridge.New(bridge.Options{URL: endpoint.URL + "/mcp"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := b.Serve(context.Background(), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"jsonrpc":"2.0","id":1,"result":{"n":9007199254740993}}
}
