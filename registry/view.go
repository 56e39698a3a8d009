package registry

import "context"

// View is the tools of one route as one client's connections offer them. It is
// immutable and safe for concurrent use.
type View struct {
	catalogue *Catalogue
	route     string
}

// View waits until every upstream has answered, failed or had its first second,
// or until ctx ends, and gives the tools of route as the connections of from
// offer them. Route "" is all servers.
func (r *Registry) View(ctx context.Context, route string, _ Downstream) View {
	r.Settle(ctx)
	return r.Catalogue().View(route)
}

// View gives the tools of route as the catalogue has them, for everybody alike.
func (c *Catalogue) View(route string) View { return View{catalogue: c, route: route} }

// Tools lists what serves, servers in configured order, tools in the order of
// their upstream. The slice is shared: callers must not change it.
func (v View) Tools() []*Tool { return v.catalogue.Tools(v.route) }

// Lookup finds a tool by the name that it has on the route: its exposed name
// where all servers are, else the upstream's own. Tools in quarantine are found
// too, so that a caller who may see one learns why it does not serve; one that
// serves goes before one that does not.
func (v View) Lookup(name string) (*Tool, bool) {
	if t, ok := v.catalogue.Lookup(v.route, name); ok {
		return t, true
	}
	for _, t := range v.catalogue.Quarantined() {
		if v.route == "" && t.Exposed == name || v.route == t.Server && t.Name == name {
			return t, true
		}
	}
	return nil, false
}
