package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// A server is started once and called as soon as it has listed its tools. A call
// names the definition that was judged; the server's current one has to be the
// same.
func Example() {
	const definition = `{"name":"add","inputSchema":{"type":"object"}}`
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var msg struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(req.Body).Decode(&msg)
		results := map[string]string{
			"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`,
			"tools/list": `{"tools":[` + definition + `]}`,
			"tools/call": `{"content":[{"type":"text","text":"42"}]}`,
		}
		switch result := results[msg.Method]; {
		case req.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case msg.ID == nil:
			w.WriteHeader(http.StatusAccepted)
		case result == "":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, msg.ID)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, msg.ID, result)
		}
	}))
	defer remote.Close()

	listed := make(chan struct{}, 1)
	server := upstream.Start(config.Server{Name: "sums", Type: config.TypeHTTP, URL: remote.URL, Isolation: config.IsolationShared},
		upstream.Options{Listed: func(upstream.Listing) { listed <- struct{}{} }})
	defer server.Close(context.Background())
	<-listed
	result, e := server.Do(context.Background(), upstream.Call{
		Tool: "add", Fingerprint: upstream.Fingerprint(json.RawMessage(definition)), Arguments: json.RawMessage(`{"a":40,"b":2}`),
	})
	fmt.Println(string(result), e)
	// Output:
	// {"content":[{"type":"text","text":"42"}]} <nil>
}
