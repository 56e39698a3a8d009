package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/registry/upstream"
)

// View is the catalogue of one route as the connections of one client offer
// it: a server may list more tools, or others, for a client that can do more.
// It is for one request and lives no longer than its context.
type View struct {
	r       *Registry
	ctx     context.Context
	from    Downstream
	route   string
	servers []*running // that may offer the client something of its own
	now     *Catalogue
}

// View waits until the upstreams of route have answered, failed or had a second
// since they were started, or until ctx ends, and gives the catalogue of route
// as from's connections offer it. A connection is opened for that only when no
// client of the same capabilities had one so far; where it cannot be had within
// five seconds, the client sees what those see that can do nothing.
func (r *Registry) View(ctx context.Context, route string, from Downstream) View {
	servers := (*r.running.Load())[route]
	for _, s := range servers {
		select {
		case <-s.settled:
		case <-ctx.Done():
		}
	}
	v := View{r: r, ctx: ctx, from: from, route: route, now: r.catalogue.Load()}
	if from.Session != "" {
		v.servers = servers
	}
	return v
}

// View gives the catalogue of route as a client sees it that can do nothing.
func (c *Catalogue) View(route string) View { return View{route: route, now: c} }

// Lookup finds a tool that the client's connection offers. Its names are those
// of Catalogue.Lookup. Tools in quarantine are found too, so that a caller who
// may see one learns why it does not serve; one that serves goes before one that
// does not.
func (v View) Lookup(name string) (*Tool, bool) {
	t, ok := v.now.serving[v.route][name]
	if !ok {
		return v.discover(name)
	}
	for _, s := range v.servers {
		if s.name == t.Server && s.isolated {
			if p := v.profile(s); p != nil {
				return t, p.Offers(t.Name) == t.Fingerprint
			}
		}
	}
	return t, !t.own
}

// discover finds a tool that no client has been offered so far, or one in
// quarantine.
func (v View) discover(name string) (*Tool, bool) {
	for _, s := range v.servers {
		upstreamName, ok := s.upstreamName(v.route, name)
		if !ok {
			continue
		}
		if p := v.profile(s); p.Offers(upstreamName) != "" {
			if t, ok := v.r.learned(v.now, s, p).offer(s.name, upstreamName, p); ok {
				return t, true
			}
		}
	}
	for _, t := range v.now.Quarantined() {
		if v.route == "" && t.Exposed == name || v.route == t.Server && t.Name == name {
			return t, true
		}
	}
	return nil, false
}

// profile returns what s offers the client, or nil when that is what s offers
// every client. Where one Downstream stands for several servers, its peers have a
// method For that returns the peer for one server.
func (v View) profile(s *running) *upstream.Profile {
	from := v.from
	if p, ok := from.Peer.(perServer); ok {
		from.Peer = p.For(s.name)
	}
	if p, ok := from.Home.(perServer); ok {
		from.Home = p.For(s.name)
	}
	return s.Profile(v.ctx, from)
}

// perServer is a Peer that tells servers apart.
type perServer interface{ For(server string) Peer }

// Tools lists what serves, servers in configured order, tools in the order in
// which their server lists them for this client. The slice may be shared:
// callers must not change it.
func (v View) Tools() []*Tool {
	profiles := v.profiles()
	if profiles == nil {
		return v.now.shared[v.route]
	}
	var out []*Tool
	for i, s := range v.servers {
		p := profiles[i]
		if p == nil {
			out = append(out, v.now.shared[s.name]...)
			continue
		}
		c := v.r.learned(v.now, s, p)
		for _, offer := range p.Tools {
			if t, ok := c.offer(s.name, offer.Name, p); ok {
				out = append(out, t)
			}
		}
	}
	return out
}

// profiles gives what each server offers the client, nil when all of them
// offer what they offer everybody.
func (v View) profiles() []*upstream.Profile {
	out := make([]*upstream.Profile, len(v.servers))
	var all sync.WaitGroup
	for i, s := range v.servers {
		all.Go(func() { out[i] = v.profile(s) })
	}
	all.Wait()
	for _, p := range out {
		if p != nil {
			return out
		}
	}
	return nil
}

// offer gives a tool that a connection offers, if it serves.
func (c *Catalogue) offer(server, name string, p *upstream.Profile) (*Tool, bool) {
	t := c.byName[server][name]
	if t == nil || t.Quarantine != "" || t.Fingerprint != p.Offers(name) {
		return nil, false
	}
	return t, true
}

// learned gives a catalogue that knows all that a connection offers: c, or a
// newer one.
func (r *Registry) learned(c *Catalogue, s *running, p *upstream.Profile) *Catalogue {
	for _, offer := range p.Tools {
		if !c.known[s.name][offer.Fingerprint] {
			r.learn(s, p)
			return r.Catalogue()
		}
	}
	return c
}

// maxOwn bounds the definitions of one server that only some connections list.
const maxOwn = 1000

// learn adds to a server what only some connection lists. It stays until the
// server lists something new.
func (r *Registry) learn(s *running, p *upstream.Profile) {
	r.building.Lock()
	defer r.building.Unlock()
	e := r.entryOf(s)
	if e == nil {
		return
	}
	r.mu.Lock()
	own := e.own
	for _, offer := range p.Tools {
		if !e.known[offer.Fingerprint] && len(own) < maxOwn {
			own = append(own, offer.Definition)
		}
	}
	news := len(own) > len(e.own)
	e.own = own
	r.mu.Unlock()
	if news {
		r.build(e)
		r.publish()
	}
}

// relisted forgets what only some connections of a server listed, because one
// of them lists something else by now, and has every client look again.
func (r *Registry) relisted(e *entry) {
	r.building.Lock()
	defer r.building.Unlock()
	r.mu.Lock()
	e.own = nil
	tell := r.onChange
	r.mu.Unlock()
	r.build(e)
	r.publish()
	for _, f := range tell {
		f()
	}
}

// entryOf finds the entry of a server that is running.
func (r *Registry) entryOf(s *running) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.server == s.Server {
			return e
		}
	}
	return nil
}

// running is one server that is not disabled.
type running struct {
	*upstream.Server
	name, prefix string
	settled      <-chan struct{} // Server.Settled
	isolated     bool            // Server.Isolated
}

// upstreamName gives the server's own name for the tool that goes by name on a
// route, and whether it can be one of the server's.
func (s *running) upstreamName(route, name string) (string, bool) {
	if route != "" {
		return name, true
	}
	return strings.CutPrefix(name, s.prefix)
}

// fleet holds the running servers by route: those of "" are all of them, in
// configured order. It is immutable.
type fleet map[string][]*running

// newFleet returns the running servers of entries.
func newFleet(entries []*entry) *fleet {
	f := make(fleet, len(entries)+1)
	for _, e := range entries {
		if e.server != nil {
			s := &running{e.server, e.cfg.Name, e.cfg.Prefix, e.server.Settled(), e.server.Isolated()}
			f[""] = append(f[""], s)
			f[s.name] = []*running{s}
		}
	}
	return &f
}

// Forward sends a judged call to its upstream and gives the raw result. The
// error is always a *ForwardError. A tool that is quarantined by now, or has
// another definition than t, is not called: the control fails closed.
func (r *Registry) Forward(ctx context.Context, t *Tool, out Outgoing) (json.RawMessage, error) {
	now := r.catalogue.Load().byName[t.Server][t.Name]
	switch {
	case now == nil:
		return nil, &ForwardError{Kind: Unavailable, Err: fmt.Errorf("server %s no longer offers %s", t.Server, t.Name)}
	case now.Quarantine != "" || t.Quarantine != "":
		return nil, &ForwardError{Kind: Quarantined, Err: fmt.Errorf("tool %s is quarantined: %s", t.Name, now.Quarantine+t.Quarantine)}
	case now.Fingerprint != t.Fingerprint:
		return nil, &ForwardError{Kind: Quarantined, Err: fmt.Errorf("the definition of tool %s has changed since the call was judged", t.Name)}
	}
	servers := (*r.running.Load())[t.Server]
	if len(servers) == 0 {
		return nil, &ForwardError{Kind: Unavailable, Err: fmt.Errorf("server %s is not running", t.Server)}
	}
	out.Tool, out.Fingerprint, out.Timeout = t.Name, t.Fingerprint, t.Timeout
	result, err := servers[0].Do(ctx, out)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Ask sends a judged request that calls no tool to a server and gives the raw
// result. The error is always a *ForwardError.
func (r *Registry) Ask(ctx context.Context, server string, ask Ask) (json.RawMessage, error) {
	up := r.server(server)
	if up == nil {
		return nil, &ForwardError{Kind: Unavailable, Err: fmt.Errorf("server %s is not running", server)}
	}
	result, err := up.Ask(ctx, ask)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Notify passes a notification of a client's on to the connections that its
// session has: that to one server, or with server "" every one.
func (r *Registry) Notify(server, session, method string, params json.RawMessage) {
	if server == "" {
		for _, up := range r.servers() {
			up.Notify(session, method, params)
		}
	} else if up := r.server(server); up != nil {
		up.Notify(session, method, params)
	}
}
