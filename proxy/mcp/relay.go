package mcp

import (
	"encoding/json"
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// relayable are the capabilities that are relayed, as far as they are: neither
// subscriptions nor changes of these lists.
var relayable = []string{"resources", "prompts", "completions"}

// capabilities is what the road of x can do: tools, and of what its one server
// offers the part that is relayed.
func (d *Door) capabilities(x *exchange) json.RawMessage {
	out := []byte(`{"tools":{"listChanged":true}`)
	if x.call.Route != "" && d.opts.Relayer != nil {
		offered := d.opts.Offers(d.base, x.call.Route)
		for _, name := range relayable {
			if _, ok := jsonrpc.Get(offered, name); ok {
				out = append(append(out, ','), jsonrpc.Quote(name)...)
				out = append(out, `:{}`...)
			}
		}
	}
	return append(out, '}')
}

// relay passes a request that calls no tool through the gate, which alone
// judges it.
func (d *Door) relay(x *exchange) answer {
	if d.opts.Relayer == nil {
		return d.unserved(x)
	}
	return d.govern(x, d.opts.Relayer.Relay)
}

// enumerate answers one page of a list as the principal may see it. The page,
// its cursor included, is the upstream's.
func (d *Door) enumerate(x *exchange) answer {
	if d.opts.Relayer == nil {
		return d.unserved(x)
	}
	result, failure := d.opts.Relayer.Enumerate(x.ctx, &x.call, x.who)
	switch {
	case failure != nil && failure.Kernel.Code == signal.CodeEnvelopeMethod:
		return d.refuse(x, failure.Kernel.Code, failure.Reason) // recorded, as for any method that is not served
	case failure != nil:
		return d.failed(x, failure)
	}
	return answer{status: http.StatusOK, body: success(x.id(), result)}
}

func (d *Door) unserved(x *exchange) answer {
	return d.refuse(x, signal.CodeEnvelopeMethod, "method "+x.call.Message.Method+" is not served here")
}
