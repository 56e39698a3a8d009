package registry

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Offer is what one server says that it can do.
type Offer struct {
	Server string
	Order  int    // its place in the configuration, from 0
	Prefix string // before the names of its tools and prompts where all servers are
	// Capabilities is an object as the server declared it, nil while it is not
	// connected.
	Capabilities json.RawMessage
}

// Offers gives the running servers in configured order. It waits until each has
// answered, failed or had its first second, or until ctx ends.
func (r *Registry) Offers(ctx context.Context) []Offer {
	r.Settle(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Offer
	for i, e := range r.entries {
		if e.server != nil {
			out = append(out, Offer{Server: e.cfg.Name, Order: i, Prefix: e.cfg.Prefix, Capabilities: e.server.Capabilities()})
		}
	}
	return out
}

// united are the capabilities that all servers can have together, with the
// members that they may have.
var united = []struct {
	name    string
	members []string
}{
	{"tools", []string{"listChanged"}},
	{"resources", []string{"subscribe", "listChanged"}},
	{"prompts", []string{"listChanged"}},
	{"completions", nil},
	{"logging", nil},
}

// Offered is what a route offers, an object: on that of one server what it
// declared, nil while that is not known, and with route "" the union of all, as
// far as it can be had of all together. It waits as Offers does.
func (r *Registry) Offered(ctx context.Context, route string) json.RawMessage {
	if route != "" {
		r.Settle(ctx)
		return r.Capabilities(route)
	}
	return Union(r.Offers(ctx))
}

// Union is what can be had of one of offers at least.
func Union(offers []Offer) json.RawMessage {
	out := json.RawMessage("{}")
	for _, c := range united {
		value, any := json.RawMessage("{}"), false
		for _, o := range offers {
			declared, ok := jsonrpc.Get(o.Capabilities, c.name)
			any = any || ok
			for _, m := range c.members {
				if v, _ := jsonrpc.Get(declared, m); string(v) == "true" {
					value, _ = jsonrpc.Set(value, m, v) // both are objects of our own making
				}
			}
		}
		if any {
			out, _ = jsonrpc.Set(out, c.name, value)
		}
	}
	return withTasks(out, offers)
}

// withTasks adds the tasks of tool calls (MCP 2025-11-25), if a server has them:
// listing and cancelling only when each that has tasks can do it.
func withTasks(out json.RawMessage, offers []Offer) json.RawMessage {
	found, list, cancel := false, true, true
	for _, o := range offers {
		tasks, ok := jsonrpc.Get(o.Capabilities, "tasks")
		if !ok {
			continue
		}
		requests, _ := jsonrpc.Get(tasks, "requests")
		tools, _ := jsonrpc.Get(requests, "tools")
		if _, ok := jsonrpc.Get(tools, "call"); !ok {
			continue
		}
		_, lists := jsonrpc.Get(tasks, "list")
		_, cancels := jsonrpc.Get(tasks, "cancel")
		found, list, cancel = true, list && lists, cancel && cancels
	}
	if !found {
		return out
	}
	value := json.RawMessage(`{"requests":{"tools":{"call":{}}}}`)
	if cancel {
		value, _ = jsonrpc.Set(value, "cancel", json.RawMessage("{}"))
	}
	if list {
		value, _ = jsonrpc.Set(value, "list", json.RawMessage("{}"))
	}
	out, _ = jsonrpc.Set(out, "tasks", value)
	return out
}
