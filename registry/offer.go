package registry

import (
	"context"
	"encoding/json"

	jsonv2 "github.com/go-json-experiment/json"

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

// sharable returns capabilities without what clients cannot share a connection
// for, nil for malformed ones.
func sharable(declared json.RawMessage) json.RawMessage {
	changes := []jsonrpc.Change{{Name: "logging"}, {Name: "tasks"}}
	if resources, ok := jsonrpc.Get(declared, "resources"); ok {
		rest, err := jsonrpc.Delete(resources, "subscribe")
		if err != nil {
			return nil
		}
		changes = append(changes, jsonrpc.Change{Name: "resources", Value: rest})
	}
	out, err := jsonrpc.Edit(declared, changes...)
	if err != nil {
		return nil
	}
	return out
}

// Offers gives the running servers in configured order. It waits until each has
// answered, failed or had its first second, or until ctx ends.
func (r *Registry) Offers(ctx context.Context) []Offer {
	r.Settle(ctx)
	var out []Offer
	for i, e := range r.Catalogue().entries {
		if e.server != nil {
			out = append(out, offerOf(e.cfg, i, e.server.Capabilities()))
		}
	}
	return out
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

// A union holds the capabilities that all servers can have together.
type union struct {
	Tools       *feature                   `json:"tools,omitzero"`
	Resources   *feature                   `json:"resources,omitzero"`
	Prompts     *feature                   `json:"prompts,omitzero"`
	Completions *feature                   `json:"completions,omitzero"`
	Logging     *feature                   `json:"logging,omitzero"`
	Extensions  map[string]json.RawMessage `json:"extensions,omitzero"`
	Tasks       *taskFeature               `json:"tasks,omitzero"`
}

// feature is one capability, with the members that it may have.
type feature struct {
	Subscribe   bool `json:"subscribe,omitzero"`   // of resources
	ListChanged bool `json:"listChanged,omitzero"` // of tools, resources and prompts
}

// taskFeature is the capability to run tool calls as tasks (MCP 2025-11-25).
type taskFeature struct {
	Requests json.RawMessage `json:"requests"`
	Cancel   *struct{}       `json:"cancel,omitzero"`
	List     *struct{}       `json:"list,omitzero"`
}

// extensions are those that work where all servers are: what they add is in
// tools, resources and requests about tasks.
var extensions = []string{"io.modelcontextprotocol/tasks", "io.modelcontextprotocol/ui"}

// Union returns what at least one of offers has. Each extension is as the first
// server declares it.
func Union(offers []Offer) json.RawMessage {
	var out union
	for _, o := range offers {
		for name, to := range map[string]**feature{
			"tools": &out.Tools, "resources": &out.Resources, "prompts": &out.Prompts, "completions": &out.Completions, "logging": &out.Logging,
		} {
			if _, ok := jsonrpc.Get(o.Capabilities, name); !ok {
				continue
			}
			if *to == nil {
				*to = new(feature)
			}
			subscribe, _ := o.member(name, "subscribe")
			changed, _ := o.member(name, "listChanged")
			(*to).Subscribe = (*to).Subscribe || name == "resources" && string(subscribe) == "true"
			(*to).ListChanged = (*to).ListChanged || name != "completions" && name != "logging" && string(changed) == "true"
		}
		for _, name := range extensions {
			if value, ok := o.member("extensions", name); ok && out.Extensions[name] == nil {
				if out.Extensions == nil {
					out.Extensions = make(map[string]json.RawMessage)
				}
				out.Extensions[name] = value
			}
		}
		out.addTasks(o)
	}
	text, _ := jsonv2.Marshal(out, jsonv2.Deterministic(true)) // its raw parts are well-formed
	return text
}

// addTasks adds the tasks of tool calls, if a server has them: listing and
// cancelling only when each that has tasks can do it.
func (u *union) addTasks(o Offer) {
	if _, ok := o.member("tasks", "requests", "tools", "call"); !ok {
		return
	}
	if u.Tasks == nil {
		u.Tasks = &taskFeature{Requests: json.RawMessage(`{"tools":{"call":{}}}`), Cancel: new(struct{}), List: new(struct{})}
	}
	if _, ok := o.member("tasks", "cancel"); !ok {
		u.Tasks.Cancel = nil
	}
	if _, ok := o.member("tasks", "list"); !ok {
		u.Tasks.List = nil
	}
}

// member returns a value within the capabilities, and whether it is there.
func (o Offer) member(path ...string) (value json.RawMessage, ok bool) {
	value, ok = o.Capabilities, true
	for _, name := range path {
		value, ok = jsonrpc.Get(value, name)
	}
	return value, ok
}
