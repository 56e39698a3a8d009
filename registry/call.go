package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/registry/config"
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
	servers []*entry // that may offer the client something of its own
	now     *Catalogue
}

// View gives the catalogue of route as from's connections offer it. A connection is
// opened for that only when no client of the same capabilities had one so far; where it
// cannot be had within five seconds, the client sees what those see that can do nothing.
// Of a server that is starting, a View has what the server listed last, in an earlier
// process too; for a server that was never seen its methods wait.
func (r *Registry) View(ctx context.Context, route string, from Downstream) View {
	v := View{r: r, ctx: ctx, from: from, route: route, now: r.catalogue.Load()}
	if from.Session != "" || slices.ContainsFunc(v.now.running[route], (*entry).personal) {
		v.servers = v.now.running[route]
	}
	return v
}

// await waits for the servers of the route that were never seen and may offer what is
// looked for, as awaitUnseen does. It returns v as it is then.
func (v View) await(may func(*entry) bool) View {
	if v.r == nil || !awaitUnseen(v.ctx, v.now.running[v.route], may) {
		return v
	}
	return v.r.View(v.ctx, v.route, v.from)
}

// View gives the catalogue of route as a client sees it that can do nothing.
func (c *Catalogue) View(route string) View { return View{route: route, now: c} }

// Lookup finds a tool that the client's connection offers. Its names are those
// of Catalogue.Lookup. Tools in quarantine are found too, so that a caller who
// may see one learns why it does not serve; one that serves goes before one that
// does not. For a tool that no server offers, it waits for servers that were never
// seen and may have it.
func (v View) Lookup(name string) (*Tool, bool) {
	t, ok := v.now.serving[v.route][name]
	if !ok {
		v = v.await(func(s *entry) bool { return v.route != "" || strings.HasPrefix(name, s.cfg.Prefix) })
		t, ok = v.now.serving[v.route][name]
	}
	if !ok {
		return v.discover(name)
	}
	for _, s := range v.servers {
		if s.cfg.Name == t.Server && s.isolated {
			if p := v.profile(s); p != nil && !p.Lists(t.Name, t.Form) {
				return v.r.learned(v.now, s, p).offer(t.Server, t.Name, p)
			} else if p != nil {
				return t, true
			}
		}
	}
	return t, !t.own || slices.ContainsFunc(v.now.running[t.Server], (*entry).personal)
}

// personal reports whether each caller has a credential of his own at the server.
func (e *entry) personal() bool { return e.people != nil }

// Withdrew reports whether a server has listed its tools and no longer lists one. Of a
// tool that only connections of some clients may list, it reports false.
func (v View) Withdrew(server, tool string) bool {
	if len(v.now.byName[server][tool]) > 0 {
		return false
	}
	return slices.ContainsFunc(v.now.running[server], func(e *entry) bool {
		listed, known := e.names[tool]
		return e.names != nil && !listed && (known || !e.isolated)
	})
}

// discover finds a tool that no client has been offered so far, or one in
// quarantine.
func (v View) discover(name string) (*Tool, bool) {
	for _, s := range v.servers {
		own, ok := name, true // the upstream's own name
		if v.route == "" {
			own, ok = strings.CutPrefix(name, s.cfg.Prefix)
		}
		if !ok {
			continue
		}
		if p := v.profile(s); p.Offers(own) != "" {
			if t, ok := v.r.learned(v.now, s, p).offer(s.cfg.Name, own, p); ok {
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
// every client, or the client's person is not connected. Where one Downstream stands for
// several servers, its peers have a method For that returns the peer for one server.
func (v View) profile(s *entry) *upstream.Profile {
	from := v.from
	if p, ok := from.Peer.(perServer); ok {
		from.Peer = p.For(s.cfg.Name)
	}
	if p, ok := from.Home.(perServer); ok {
		from.Home = p.For(s.cfg.Name)
	}
	server, err := v.r.serverOf(v.ctx, s, from)
	if err != nil {
		return nil
	}
	p := server.Profile(v.ctx, from)
	if p == nil && s.people != nil {
		p = server.Listed(v.ctx)
	}
	return p
}

// perServer is a Peer that tells servers apart.
type perServer interface{ For(server string) Peer }

// Tools lists what serves, servers in configured order, tools in the order in
// which their server lists them for this client. The slice may be shared:
// callers must not change it.
func (v View) Tools() []*Tool {
	tools, _ := v.List()
	return tools
}

// List returns Tools, and the catalogue that has them for everybody whose
// connections offer what all offer; nil when the list is this client's own.
func (v View) List() ([]*Tool, *Catalogue) {
	v = v.await(every)
	profiles := v.profiles()
	if profiles == nil {
		return v.now.shared[v.route], v.now
	}
	var out []*Tool
	for i, s := range v.servers {
		p := profiles[i]
		if p == nil {
			out = append(out, v.now.before(s)...)
			continue
		}
		c := v.r.learned(v.now, s, p)
		for _, offer := range p.Tools {
			if t, ok := c.offer(s.cfg.Name, offer.Name, p); ok && t.Quarantine == "" {
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// before returns the tools of a server that a client sees whose own list is not known: those that
// every connection lists. Where each caller has a credential of his own, they are the accepted tools,
// or none with before_connection hide.
func (c *Catalogue) before(s *entry) []*Tool {
	switch {
	case s.people == nil:
		return c.shared[s.cfg.Name]
	case s.cfg.BeforeConnection == config.BeforeHide:
		return nil
	}
	return c.listed[s.cfg.Name]
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
	for i, p := range out {
		if p != nil || v.servers[i].people != nil {
			return out
		}
	}
	return nil
}

// offer gives the definition of a tool that a connection offers.
func (c *Catalogue) offer(server, name string, p *upstream.Profile) (*Tool, bool) {
	return c.find(server, name, func(t *Tool) bool { return p.Lists(name, t.Form) && t.Condition.Admits(p.Condition) })
}

// Bound finds the definition to which a ticket is bound, by its fingerprint. Where the
// server offers its clients another by now, Bound returns that. It reports false for an
// unknown tool, and for a definition that is accepted for clients of which none has listed
// the tools since the server listed them last.
func (v View) Bound(name, fingerprint string) (*Tool, bool) {
	shared, ok := v.Lookup(name)
	if ok && shared.Fingerprint == fingerprint {
		return shared, true
	}
	// Some connections may still have listed the old one when another has listed its successor.
	for _, bound := range []func(*Tool) bool{
		func(t *Tool) bool { return t.former == fingerprint },
		func(t *Tool) bool { return t.Fingerprint == fingerprint },
	} {
		if t, found := v.now.find(v.route, name, bound); found {
			return t, true
		}
	}
	if ok && slices.ContainsFunc(v.now.running[shared.Server], func(e *entry) bool { return e.variants[shared.Name+" "+fingerprint] }) {
		return nil, false
	}
	return shared, ok
}

// learned returns a catalogue that knows all that a connection offers: c, or a
// newer one.
func (r *Registry) learned(c *Catalogue, s *entry, p *upstream.Profile) *Catalogue {
	if !slices.ContainsFunc(p.Tools, func(o upstream.Offer) bool { return !s.knows(o, p) }) {
		return c
	}
	r.learn(s, p)
	return r.Catalogue()
}

// knows reports whether the definition that a connection lists is known for its client.
func (e *entry) knows(o upstream.Offer, p *upstream.Profile) bool {
	return slices.ContainsFunc(e.known[o.Form], func(c upstream.Condition) bool { return c.Admits(p.Condition) })
}

// maxOwn bounds the definitions of one server that only some connections list.
const maxOwn = 1000

// learn adds to a server what only some connection lists. It stays until the
// server lists something new.
func (r *Registry) learn(of *entry, p *upstream.Profile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.entries, func(e *entry) bool { return e.server == of.server && e.people == of.people })
	if i < 0 {
		return
	}
	e, before := r.entries[i], len(r.entries[i].listed.Own)
	for _, offer := range p.Tools {
		if e.knows(offer, p) {
			continue
		}
		switch {
		case e.people != nil:
			e.learnOwn(upstream.Variant{Condition: upstream.ConditionOfForm(offer.Definition), Definition: offer.Definition, Live: true, Unproven: true})
		case len(e.listed.Own) < maxOwn:
			e.listed.Own = append(e.listed.Own, upstream.Variant{Condition: p.Condition, Definition: offer.Definition, Live: true})
		}
	}
	if len(e.listed.Own) > before {
		r.rebuildLocked(false, e)
	}
}

// Forward sends a judged call to its upstream and gives the raw result. The
// error is always a *ForwardError. A tool that is quarantined by now, or has
// another definition than t, is not called: the control fails closed. A server that is
// starting is waited for first, so that what it lists now counts.
func (r *Registry) Forward(ctx context.Context, t *Tool, out Outgoing) (json.RawMessage, error) {
	c := r.catalogue.Load()
	if servers := c.running[t.Server]; len(servers) > 0 && !servers[0].fresh && servers[0].server != nil {
		servers[0].awaitStart(ctx, t.Timeout)
		c = r.catalogue.Load()
	}
	servers := c.running[t.Server]
	now, same := c.Defined(t.Server, t.Name, t.Fingerprint)
	switch {
	case len(servers) == 0:
		return nil, notRunning(t.Server)
	case len(c.byName[t.Server][t.Name]) == 0:
		return nil, &ForwardError{Kind: Unavailable, Err: fmt.Errorf("server %s no longer offers %s", t.Server, t.Name)}
	case !same:
		return nil, &ForwardError{Kind: Quarantined, Err: fmt.Errorf("the definition of tool %s has changed since the call was judged", t.Name)}
	case now.Quarantine != "" || t.Quarantine != "":
		return nil, &ForwardError{Kind: Quarantined, Err: fmt.Errorf("tool %s is quarantined", t.Name)}
	}
	out.Tool, out.Fingerprint, out.Form = t.Name, t.Fingerprint, t.Form
	out.Timeout, out.MaxTimeout = t.Timeout, t.MaxTimeout
	server := servers[0].server
	if servers[0].people != nil {
		var err error
		if server, err = r.serverOf(ctx, servers[0], out.From); err != nil {
			return nil, err
		}
	}
	result, e := server.Do(ctx, out)
	if e != nil {
		return nil, e
	}
	return result, nil
}

// awaitStart waits until the server has answered, failed or had its StartWait, at most
// for a while.
func (e *entry) awaitStart(ctx context.Context, most time.Duration) {
	ctx, stop := context.WithTimeout(ctx, most)
	defer stop()
	select {
	case <-e.server.Started():
	case <-ctx.Done():
	}
}

// notRunning is the error of a request to a server that is not configured or
// disabled.
func notRunning(server string) error {
	return &ForwardError{Kind: Unavailable, Err: fmt.Errorf("server %s is not running", server)}
}

// Ask sends a judged request that calls no tool to a server and returns the raw
// result. The error is always a *ForwardError.
func (r *Registry) Ask(ctx context.Context, server string, ask Ask) (json.RawMessage, error) {
	e := r.Catalogue().entry(server)
	if e == nil {
		return nil, notRunning(server)
	}
	s, err := r.serverOf(ctx, e, ask.From)
	if err != nil {
		return nil, err
	}
	result, fault := s.Ask(ctx, ask)
	if fault != nil {
		return nil, fault
	}
	return result, nil
}

// Notify passes a client's notification to the connections that its session has:
// the one to server, or with "" all of them.
func (r *Registry) Notify(server, session, method string, params json.RawMessage) {
	for _, e := range r.Catalogue().running[server] {
		for _, s := range e.connections() {
			s.Notify(session, method, params)
		}
	}
}
