package registry

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Offer is what one server says that it can do.
type Offer struct {
	Server string
	Order  int    // its place in the configuration, from 0
	Prefix string // before the names of its tools and prompts where all servers are
	// Capabilities is an object as the server declared it last, nil before it was ever
	// seen. What needs a connection of one's own is left out where all
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

// Offers gives the running servers, in configured order, that have not failed or of which
// lists are kept. It waits as Settle does.
func (r *Registry) Offers(ctx context.Context) []Offer {
	return r.offers(ctx, "", func(e *entry) bool {
		return e.server == nil || e.server.Status().State != upstream.StateFailed || e.server.Recalls()
	})
}

// offers returns the offers of those servers of a route, "" for all, that are wanted.
func (r *Registry) offers(ctx context.Context, route string, wanted func(*entry) bool) []Offer {
	awaitUnseen(ctx, r.Catalogue().running[route], every)
	var out []Offer
	for i, e := range r.Catalogue().entries {
		if !e.cfg.Disabled && (route == "" || route == e.cfg.Name) && wanted(e) {
			out = append(out, offerOf(e.cfg, i, e.listed.Capabilities))
		}
	}
	return out
}

// Offered is what a route offers, an object: on that of one server what that
// offers, nil while it is not known, and with route "" the union of all, as far
// as it can be had of all together. A server that has failed may come back, so it counts
// as it was. Offered waits for its servers as Settle does.
func (r *Registry) Offered(ctx context.Context, route string) json.RawMessage {
	offers := r.offers(ctx, route, every)
	switch {
	case route == "":
		return Union(offers)
	case len(offers) == 1:
		return offers[0].Capabilities
	}
	return nil
}

// features are the capabilities of a union with the members that each may have.
var features = []struct {
	name    string
	members []string
}{
	{"tools", []string{"listChanged"}}, {"resources", []string{"subscribe", "listChanged"}}, {"prompts", []string{"listChanged"}},
	{"completions", nil}, {"logging", nil},
}

// Extensions are those that work where all servers are: what they add is in
// tools, resources, skills and requests about tasks. It must not be changed.
var Extensions = []string{"io.modelcontextprotocol/skills", "io.modelcontextprotocol/tasks", "io.modelcontextprotocol/ui"}

// OtherExtension stands for every extension that is not in Extensions.
const OtherExtension = "other"

// ExtensionsIn names the extensions in capabilities, a client's or a server's: those of
// Extensions, and OtherExtension for all others together.
func ExtensionsIn(capabilities json.RawMessage) (found []string) {
	declared, _ := jsonrpc.Get(capabilities, "extensions")
	for name := range jsonrpc.Members(declared) {
		if !slices.Contains(Extensions, name) {
			name = OtherExtension
		}
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// Negotiated returns how many servers declare each extension, by the names of ExtensionsIn.
func (r *Registry) Negotiated() map[string]float64 {
	out := make(map[string]float64)
	for _, e := range r.Catalogue().running[""] {
		for _, name := range ExtensionsIn(e.listed.Capabilities) {
			out[name]++
		}
	}
	return out
}

// The most names, and the most bytes of each, that a status shows of what a server declares.
const (
	maxDeclared      = 64
	maxDeclaredBytes = 128
)

// declaredIn returns the names of the members of an object, nil for none.
func declaredIn(object json.RawMessage) (names []string) {
	for name := range jsonrpc.Members(object) {
		if len(names) < maxDeclared {
			names = append(names, text.EscapeHidden(text.Clip(name, maxDeclaredBytes, "...")))
		}
	}
	return names
}

// Union returns the capabilities that at least one of offers has. Each extension
// is as the first server declares it; directories of skills can be read if one server
// says so. Tool calls can be tasks (MCP 2025-11-25) if
// one server says so; listing and cancelling tasks needs every such server.
func Union(offers []Offer) json.RawMessage {
	out := json.RawMessage(`{}`)
	put := func(object *json.RawMessage, name string, value json.RawMessage) {
		*object, _ = jsonrpc.Set(*object, name, value) // the parts are well-formed
	}
	for _, f := range features {
		feature := json.RawMessage(`{}`)
		for _, name := range f.members {
			if slices.ContainsFunc(offers, func(o Offer) bool { return string(o.member(f.name, name)) == "true" }) {
				put(&feature, name, json.RawMessage(`true`))
			}
		}
		if slices.ContainsFunc(offers, func(o Offer) bool { return o.member(f.name) != nil }) {
			put(&out, f.name, feature)
		}
	}
	declared := json.RawMessage(`{}`)
	for _, name := range Extensions {
		having := slices.DeleteFunc(slices.Clone(offers), func(o Offer) bool { return o.member("extensions", name) == nil })
		if len(having) == 0 {
			continue
		}
		value := having[0].member("extensions", name)
		if slices.ContainsFunc(having, func(o Offer) bool { return string(o.member("extensions", name, "directoryRead")) == "true" }) {
			put(&value, "directoryRead", json.RawMessage("true"))
		}
		put(&declared, name, value)
	}
	if len(declared) > len(`{}`) {
		put(&out, "extensions", declared)
	}
	tasks := json.RawMessage(`{"requests":{"tools":{"call":{}}}}`)
	tasking := slices.DeleteFunc(slices.Clone(offers), func(o Offer) bool { return o.member("tasks", "requests", "tools", "call") == nil })
	for _, name := range []string{"cancel", "list"} {
		if !slices.ContainsFunc(tasking, func(o Offer) bool { return o.member("tasks", name) == nil }) {
			put(&tasks, name, json.RawMessage(`{}`))
		}
	}
	if len(tasking) > 0 {
		put(&out, "tasks", tasks)
	}
	return out
}

// member returns a value within the capabilities, nil when it is not there.
func (o Offer) member(path ...string) json.RawMessage {
	value := o.Capabilities
	for _, name := range path {
		value, _ = jsonrpc.Get(value, name)
	}
	return value
}
