package registry

import (
	"context"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry/config"
)

// Offer is what one server says that it can do.
type Offer struct {
	Server string
	Order  int    // its place in the configuration, from 0
	Prefix string // before the names of its tools and prompts where all servers are
	// Capabilities is an object as the server declared it, nil while it is not
	// connected. What needs a connection of one's own is left out where all
	// clients share one: log messages, subscriptions and tasks.
	Capabilities json.RawMessage
}

// offerOf is what a server offers, given how its connections are kept.
func offerOf(cfg config.Server, order int, declared json.RawMessage) Offer {
	o := Offer{Server: cfg.Name, Order: order, Prefix: cfg.Prefix, Capabilities: declared}
	if cfg.Isolation == config.IsolationShared && declared != nil {
		o.Capabilities = sharable(declared)
	}
	return o
}

// sharable takes out of capabilities what clients cannot share a connection for.
// What cannot be taken out of is nothing.
func sharable(declared json.RawMessage) json.RawMessage {
	out := declared
	var err error
	for _, name := range []string{"logging", "tasks"} {
		if out, err = jsonrpc.Delete(out, name); err != nil {
			return nil
		}
	}
	resources, ok := jsonrpc.Get(out, "resources")
	if !ok {
		return out
	}
	if resources, err = jsonrpc.Delete(resources, "subscribe"); err == nil {
		out, err = jsonrpc.Set(out, "resources", resources)
	}
	if err != nil {
		return nil
	}
	return out
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
			out = append(out, offerOf(e.cfg, i, e.server.Capabilities()))
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

// Offered is what a route offers, an object: on that of one server what that
// offers, nil while it is not known, and with route "" the union of all, as far
// as it can be had of all together. It waits as Offers does.
func (r *Registry) Offered(ctx context.Context, route string) json.RawMessage {
	offers := r.Offers(ctx)
	if route == "" {
		return Union(offers)
	}
	for _, o := range offers {
		if o.Server == route {
			return o.Capabilities
		}
	}
	return nil
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
	return withTasks(withExtensions(out, offers), offers)
}

// extensions are those that work where all servers are: what they add is in
// tools, resources and requests about tasks.
var extensions = []string{"io.modelcontextprotocol/tasks", "io.modelcontextprotocol/ui"}

// withExtensions adds each extension that a server has, as the first declares it.
func withExtensions(out json.RawMessage, offers []Offer) json.RawMessage {
	value := json.RawMessage("{}")
	for _, name := range extensions {
		for _, o := range offers {
			declared, _ := jsonrpc.Get(o.Capabilities, "extensions")
			if v, ok := jsonrpc.Get(declared, name); ok {
				value, _ = jsonrpc.Set(value, name, v)
				break
			}
		}
	}
	if len(value) > len("{}") {
		out, _ = jsonrpc.Set(out, "extensions", value)
	}
	return out
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
