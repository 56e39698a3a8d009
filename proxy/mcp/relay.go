package mcp

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/signal"
)

// offered is the capabilities of x's road: what its servers offer, as they
// declared it, and tools, whose list may always change.
func (c *core) offered(x *exchange) json.RawMessage {
	const least = `{"tools":{"listChanged":true}}`
	if c.opts.Relayer == nil {
		return json.RawMessage(least)
	}
	all := c.opts.Offers(c.base, x.call.Route)
	tools, _ := jsonrpc.Get(all, "tools")
	tools, err := jsonrpc.Set(tools, "listChanged", json.RawMessage("true"))
	if err != nil {
		tools = json.RawMessage(`{"listChanged":true}`)
	}
	if all, err = jsonrpc.Set(all, "tools", tools); err != nil {
		return json.RawMessage(least)
	}
	return all
}

// enumerate answers one page of a list as the principal may see it. The page,
// its cursor included, is the upstream's.
func (s *sessionServer) enumerate(x *exchange) answer {
	if s.opts.Relayer == nil {
		return s.refuseUnserved(x)
	}
	result, failure := s.opts.Relayer.Enumerate(x.ctx, &x.call, x.who)
	switch {
	case failure != nil && failure.Kernel.Code == signal.CodeEnvelopeMethod:
		return s.refuse(x, failure.Kernel.Code, failure.Reason) // recorded, as for any method that is not served
	case failure != nil:
		return s.failed(x, failure)
	}
	return answer{status: http.StatusOK, body: success(x.id, result)}
}

func (s *sessionServer) refuseUnserved(x *exchange) answer {
	return s.refuse(x, signal.CodeEnvelopeMethod, "method "+x.call.Message.Method+" is not served here")
}

// setLevel keeps the least severe log message that the client wants to hear of,
// which goes with all that it asks, if the road lets it. The server of a road of
// its own is told at once.
func (s *sessionServer) setLevel(x *exchange) answer {
	if s.opts.Relayer == nil {
		return s.refuseUnserved(x)
	}
	raw, _ := x.call.Message.Param("level")
	level, _ := jsonrpc.Text(raw)
	if !slices.Contains(proxy.Levels, level) {
		return s.refuse(x, signal.CodeEnvelopeParams, "params.level is not one of "+strings.Join(proxy.Levels, ", "))
	}
	x.call.Level = level
	a := s.govern(x)
	if a.fault == nil {
		x.session.level.Store(&level)
	}
	return a
}
