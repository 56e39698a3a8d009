package mcp_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// panicking is a gate that panics on every call.
type panicking struct{ *fakeGate }

func (panicking) Call(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	panic("planted")
}

// A panic ends its own request, however it is answered, and the door goes on.
func TestAPanicIsOneFailedRequest(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, func(o *mcp.Options) { o.Gate = panicking{g} })
	h := open(t, srv, "alice")
	for _, params := range []string{`{"name":"demo__echo"}`, `{"name":"demo__echo","_meta":{"progressToken":1}}`} {
		res, body := h.post(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":` + params + `}`)
		if res.StatusCode != http.StatusOK || !strings.Contains(body, `"id":5,"error":{"code":-32603,"message":"Internal error"}`) {
			t.Errorf("%s: %d %s", params, res.StatusCode, body)
		}
	}
	if _, body := h.post(`{"jsonrpc":"2.0","id":6,"method":"ping"}`); !strings.Contains(body, `"id":6,"result":{}`) {
		t.Errorf("afterwards: %s", body)
	}
	pipe := dial(t, d).open()
	if got := pipe.Ask(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"demo__echo"}}`); !strings.Contains(got, "-32603") {
		t.Errorf("over stdio: %s", got)
	}
}
