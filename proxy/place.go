package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Bounds of looking for what no list of the session has named.
const (
	lookFor       = 5 * time.Second // all servers together
	lookAgain     = 5 * time.Second // before the lists are read anew
	lookPages     = 20              // of each list
	maxLooks      = 3               // for one request, while the lists change under it
	templateBytes = 2 << 10
)

// The kinds of what has a place.
const (
	aResource = "resources"
	aTemplate = "resourceTemplates"
	aPrompt   = "prompts"
)

// findServer is for requests about the one server of the route.
func findServer(_ context.Context, _ *Gate, p *passage) *Failure {
	p.args, p.whole = p.params, &policy.Server{Name: p.server}
	return nil
}

// findTools is for requests about the tools of the route, all servers' where all
// servers are.
func findTools(ctx context.Context, g *Gate, p *passage) *Failure {
	names := []string{}
	for _, t := range g.opts.Upstreams.View(ctx, p.in.Route, g.from(p)).Tools() {
		names = append(names, t.Exposed)
	}
	p.args, p.whole = p.params, &policy.Server{Name: p.server, Tools: names}
	return nil
}

// findResource finds the server of a resource. A subscription ends where it was
// begun, wherever the resource is by now.
func findResource(ctx context.Context, g *Gate, p *passage) *Failure {
	if server, ok := g.memory.subscription(p); ok {
		p.server, p.resource = server, &policy.Resource{Server: server, URI: p.name}
		return nil
	}
	at, ok := g.find(ctx, p, p.name, aResource, aTemplate)
	if !ok {
		return p.fail(signal.CodeNotFound, fmt.Sprintf("no server has the resource %q", p.name))
	}
	p.server, p.resource = at.server, &policy.Resource{Server: at.server, URI: at.name}
	return nil
}

func findPrompt(ctx context.Context, g *Gate, p *passage) *Failure {
	at, ok := g.find(ctx, p, p.name, aPrompt)
	if !ok {
		return p.fail(signal.CodeNotFound, fmt.Sprintf("no prompt is called %q", p.name))
	}
	p.server, p.prompt = at.server, &policy.Prompt{Server: at.server, Name: at.name}
	return p.rename(at.name)
}

// rename puts the server's own name in place of the exposed one.
func (p *passage) rename(path ...string) *Failure {
	name := path[len(path)-1]
	if name == p.name {
		return nil
	}
	value := jsonrpc.Quote(name)
	var err error
	if len(path) == 1 {
		p.params, err = jsonrpc.Set(p.params, "name", value)
	} else {
		inner, _ := jsonrpc.Get(p.params, path[0])
		if inner, err = jsonrpc.Set(inner, "name", value); err == nil {
			p.params, err = jsonrpc.Set(p.params, path[0], inner)
		}
	}
	if err != nil {
		return p.fail(signal.CodeEnvelopeInvalid, "params cannot be read")
	}
	p.digest = digest(p.params)
	return nil
}

// findReference finds what a completion is for: a template, or a resource that
// is none, by its uri.
func findReference(ctx context.Context, g *Gate, p *passage) *Failure {
	ref, _ := jsonrpc.Get(p.params, "ref")
	if kind, _ := jsonrpc.Get(ref, "type"); string(kind) != `"ref/prompt"` {
		at, ok := g.find(ctx, p, p.name, aTemplate, aResource)
		if !ok {
			return p.fail(signal.CodeNotFound, fmt.Sprintf("no server has the resource %q", p.name))
		}
		p.server, p.resource = at.server, &policy.Resource{Server: at.server, URI: at.name}
		return nil
	}
	at, ok := g.find(ctx, p, p.name, aPrompt)
	if !ok {
		return p.fail(signal.CodeNotFound, fmt.Sprintf("no prompt is called %q", p.name))
	}
	p.server, p.prompt = at.server, &policy.Prompt{Server: at.server, Name: at.name}
	return p.rename("ref", at.name)
}

// find finds where something of one of kinds is. On the route of one server it
// is there; where all servers are, where a list of the session had it, else
// where a look at all lists finds it. Of two servers that list the same the
// first configured one has it, and what is listed goes before what a template
// describes.
func (g *Gate) find(ctx context.Context, p *passage, name string, kinds ...string) (place, bool) {
	if p.in.Route != "" {
		return place{server: p.in.Route, name: name}, true
	}
	if at, ok := g.memory.placed(p, name, kinds); ok {
		return at, true
	}
	for range maxLooks {
		mine, others := g.memory.turn(p)
		switch {
		case mine != nil:
			g.look(ctx, p, mine)
		case others != nil:
			select {
			case <-others:
			case <-ctx.Done():
			}
		}
		if at, ok := g.memory.placed(p, name, kinds); ok || !g.memory.moved(p) {
			return at, ok
		}
	}
	return place{}, false
}

// lists are the requests that name what has a place.
var lists = []struct{ method, kind, key string }{
	{"resources/list", aResource, "uri"},
	{"resources/templates/list", aTemplate, "uriTemplate"},
	{"prompts/list", aPrompt, "name"},
}

// look reads all lists of all servers, side by side: one that is slow keeps
// nobody longer than lookFor.
func (g *Gate) look(ctx context.Context, p *passage, turn chan struct{}) {
	defer g.memory.hasLooked(p, turn)
	ctx, stop := context.WithTimeout(ctx, lookFor)
	defer stop()
	from := g.from(p)
	var servers sync.WaitGroup
	for _, o := range g.opts.Servers.Offers(ctx) {
		servers.Go(func() {
			defer g.survive(p, "looking for a resource")
			for _, l := range lists {
				if capability, _, _ := strings.Cut(l.method, "/"); offers(o.Capabilities, capability) {
					g.lookAt(ctx, p, o, from, l.method, l.kind, l.key)
				}
			}
		})
	}
	servers.Wait()
}

// survive keeps a panic beside the road from ending the program.
func (g *Gate) survive(p *passage, doing string) {
	if r := recover(); r != nil {
		g.opts.Log.Error("panic while "+doing, "decision", p.decisionID, "panic", fmt.Sprint(r))
	}
}

// lookAt reads one list of one server.
func (g *Gate) lookAt(ctx context.Context, p *passage, o registry.Offer, from registry.Downstream, method, kind, key string) {
	if named, ok := from.Peer.(*peer); ok {
		from.Peer = named.For(o.Server)
	}
	if named, ok := from.Home.(*peer); ok {
		from.Home = named.For(o.Server)
	}
	params, cursor := json.RawMessage("{}"), ""
	for range lookPages {
		page, err := g.enquire(ctx, o.Server, registry.Ask{Method: method, Params: params, From: from})
		if err != nil {
			g.opts.Log.Debug("looking for a resource", "server", o.Server, "method", method, "error", err)
			return
		}
		elements, _ := jsonrpc.Get(page, kind)
		for e := range jsonrpc.Elements(elements) {
			raw, _ := jsonrpc.Get(e, key)
			if name, ok := jsonrpc.Text(raw); ok {
				g.memory.put(p, kind, o, name)
			}
		}
		raw, _ := jsonrpc.Get(page, "nextCursor")
		next, _ := jsonrpc.Text(raw)
		if next == "" || next == cursor {
			return
		}
		cursor = next
		params = json.RawMessage(`{"cursor":` + string(jsonrpc.Quote(next)) + `}`)
	}
}

// place remembers where an element of a list that p asked for is.
func (m *memory) place(p *passage, o registry.Offer, name string) {
	if kind := p.method.list; kind != "tasks" {
		m.put(p, kind, o, name)
	}
}

// put remembers that o has name. The first configured server that has it stays.
func (m *memory) put(p *passage, kind string, o registry.Offer, name string) {
	shown := name
	if kind == aPrompt {
		shown = o.Prefix + name
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recallLocked(p.owner(), p.now)
	key := kind + "\x00" + shown
	for i, at := range r.places[key] {
		if at.server == o.Server {
			r.places[key][i].name = name
			return
		}
	}
	if r.placed < maxPlaces {
		r.places[key] = append(r.places[key], place{server: o.Server, name: name, order: o.Order})
		slices.SortStableFunc(r.places[key], func(a, b place) int { return a.order - b.order })
		r.placed++
	}
}

// placed gives where something is, as far as it is remembered.
func (m *memory) placed(p *passage, name string, kinds []string) (place, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of[p.owner()]
	if r == nil {
		return place{}, false
	}
	for _, kind := range kinds {
		if at := r.places[kind+"\x00"+name]; len(at) > 0 {
			return at[0], true
		}
	}
	if !slices.Contains(kinds, aTemplate) {
		return place{}, false
	}
	return r.describedLocked(name)
}

// describedLocked finds the server whose template describes a uri (RFC 6570).
// The caller must hold the memory's mu.
func (r *recollection) describedLocked(uri string) (found place, ok bool) {
	for key, at := range r.places {
		text, is := strings.CutPrefix(key, aTemplate+"\x00")
		if !is || len(text) > templateBytes || ok && found.order <= at[0].order {
			continue
		}
		t, err := uritemplate.New(text)
		if err == nil && t.Match(uri) != nil {
			found, ok = place{server: at[0].server, name: uri, order: at[0].order}, true
		}
	}
	return found, ok
}

// subscription gives the server that p's subscription is to end at.
func (m *memory) subscription(p *passage) (server string, ok bool) {
	if p.in.Route != "" || p.in.Message.Method != "resources/unsubscribe" {
		return "", false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.of[p.owner()]; r != nil {
		server, ok = r.subscribed[p.name]
	}
	return server, ok
}

// subscribe remembers what came of p, if it begins or ends a subscription.
func (m *memory) subscribe(p *passage) {
	if p.in.Route != "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recallLocked(p.owner(), p.now)
	switch p.in.Message.Method {
	case "resources/subscribe":
		if len(r.subscribed) < maxPlaces {
			r.subscribed[p.name] = p.server
		}
	case "resources/unsubscribe":
		delete(r.subscribed, p.name)
	}
}

// turn gives p the turn to read all lists, which hasLooked ends; if somebody
// else has it, others is closed when that is done. Both are nil when the lists
// were read a moment ago.
func (m *memory) turn(p *passage) (mine chan struct{}, others <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recallLocked(p.owner(), p.now)
	if r.looking != nil || !r.looked.IsZero() && p.now.Sub(r.looked) < lookAgain {
		return nil, r.looking
	}
	r.looking, r.places, r.placed = make(chan struct{}), map[string][]place{}, 0
	return r.looking, nil
}

// hasLooked ends a turn of p.
func (m *memory) hasLooked(p *passage, turn chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(turn)
	if r := m.recallLocked(p.owner(), p.now); r.looking == turn {
		r.looked, r.looking = p.now, nil
		if r.stale {
			r.looked, r.stale = time.Time{}, false
		}
	}
}

// moved reports whether what is remembered of where things are has been
// forgotten since it was looked for, so that it is worth looking again.
func (m *memory) moved(p *passage) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of[p.owner()]
	return r == nil || r.looked.IsZero()
}

// unlist forgets where things are for o: a server says that its lists have
// changed.
func (m *memory) unlist(o owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.of[o]; r != nil {
		r.unlistLocked()
	}
}

// unlistAll forgets where things are for everybody.
func (m *memory) unlistAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.of {
		r.unlistLocked()
	}
}

// unlistLocked forgets where things are. The caller must hold the memory's mu.
func (r *recollection) unlistLocked() {
	r.looked, r.places, r.placed = time.Time{}, map[string][]place{}, 0
	r.stale = r.looking != nil
}
