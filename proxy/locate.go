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
func (r *relayed) findServer(context.Context) *Failure {
	r.arguments, r.about.server = r.body, &policy.Server{Name: r.server}
	return nil
}

// findTools is for requests about the tools of the route, all servers' where all
// servers are.
func (r *relayed) findTools(ctx context.Context) *Failure {
	names := []string{}
	for _, t := range r.gate.opts.Upstreams.View(ctx, r.in.Route, r.from(r.server)).Tools() {
		names = append(names, t.Exposed)
	}
	r.arguments, r.about.server = r.body, &policy.Server{Name: r.server, Tools: names}
	return nil
}

// findResource finds the server of a resource. A subscription ends where it was
// begun, wherever the resource is by now.
func (r *relayed) findResource(ctx context.Context) *Failure {
	if server, ok := r.gate.memory.subscription(r); ok {
		r.server, r.about.resource = server, &policy.Resource{Server: server, URI: r.name}
		return nil
	}
	return r.resourceOf(ctx, aResource, aTemplate)
}

func (r *relayed) resourceOf(ctx context.Context, kinds ...string) *Failure {
	at, ok := r.locate(ctx, kinds...)
	if !ok {
		return r.fail(signal.CodeNotFound, fmt.Sprintf("no server has the resource %q", r.name))
	}
	r.server, r.about.resource = at.server, &policy.Resource{Server: at.server, URI: at.name}
	return nil
}

// findPrompt finds the server of a prompt, and puts the server's own name in
// place of the exposed one.
func (r *relayed) findPrompt(ctx context.Context) *Failure { return r.promptOf(ctx) }

// promptOf finds the prompt; path leads to the object in params that names it.
func (r *relayed) promptOf(ctx context.Context, path ...string) *Failure {
	at, ok := r.locate(ctx, aPrompt)
	if !ok {
		return r.fail(signal.CodeNotFound, fmt.Sprintf("no prompt is called %q", r.name))
	}
	r.server, r.about.prompt = at.server, &policy.Prompt{Server: at.server, Name: at.name}
	if at.name == r.name {
		return nil
	}
	params, err := setAt(r.body, append(path, "name"), jsonrpc.Quote(at.name))
	if err != nil {
		return r.fail(signal.CodeEnvelopeInvalid, "params cannot be read")
	}
	r.body, r.digest = params, digest(params)
	return nil
}

// setAt sets the member that path leads to, through objects.
func setAt(object json.RawMessage, path []string, value json.RawMessage) (json.RawMessage, error) {
	if len(path) > 1 {
		inner, _ := jsonrpc.Get(object, path[0])
		var err error
		if value, err = setAt(inner, path[1:], value); err != nil {
			return nil, err
		}
	}
	return jsonrpc.Set(object, path[0], value)
}

// findReference finds what a completion is for: a prompt, a template, or a
// resource that is none, by its uri.
func (r *relayed) findReference(ctx context.Context) *Failure {
	ref, _ := jsonrpc.Get(r.body, "ref")
	if textMember(ref, "type") == "ref/prompt" {
		return r.promptOf(ctx, "ref")
	}
	return r.resourceOf(ctx, aTemplate, aResource)
}

// locate finds where something of one of kinds is. On the route of one server it
// is there. Where all servers are, it is where a list of the session had it, else
// where a look at all lists finds it: the first configured server that lists it,
// then the first whose template describes it.
func (r *relayed) locate(ctx context.Context, kinds ...string) (place, bool) {
	if r.in.Route != "" {
		return place{server: r.in.Route, name: r.name}, true
	}
	memory := &r.gate.memory
	if at, ok := memory.placed(&r.call, r.name, kinds); ok {
		return at, true
	}
	for range maxLooks {
		mine, others := memory.beginLook(&r.call)
		switch {
		case mine != nil:
			r.readLists(ctx, mine)
		case others != nil:
			select {
			case <-others:
			case <-ctx.Done():
			}
		}
		if at, ok := memory.placed(&r.call, r.name, kinds); ok || !memory.moved(&r.call) {
			return at, ok
		}
	}
	return place{}, false
}

// listing is a request whose result names what has a place.
type listing struct{ method, kind, key string }

var lists = []listing{
	{"resources/list", aResource, "uri"},
	{"resources/templates/list", aTemplate, "uriTemplate"},
	{"prompts/list", aPrompt, "name"},
}

// readLists reads all lists of all servers, side by side: a slow server keeps
// nobody longer than lookFor.
func (c *call) readLists(ctx context.Context, look chan struct{}) {
	g := c.gate
	defer g.memory.endLook(c, look)
	ctx, stop := context.WithTimeout(ctx, lookFor)
	defer stop()
	var servers sync.WaitGroup
	for _, o := range g.opts.Servers.Offers(ctx) {
		servers.Go(func() {
			defer c.survive("looking for a resource")
			for _, l := range lists {
				if capability, _, _ := strings.Cut(l.method, "/"); offers(o.Capabilities, capability) {
					c.readList(ctx, o, l)
				}
			}
		})
	}
	servers.Wait()
}

// survive keeps a panic in a goroutine of a request from ending the program.
func (c *call) survive(doing string) {
	if v := recover(); v != nil {
		c.gate.opts.Log.Error("panic while "+doing, "decision", c.decisionID, "panic", fmt.Sprint(v))
	}
}

// readList reads one list of one server.
func (c *call) readList(ctx context.Context, o registry.Offer, l listing) {
	params, cursor := json.RawMessage("{}"), ""
	for range lookPages {
		page, err := c.gate.enquire(ctx, o.Server, registry.Ask{Method: l.method, Params: params, From: c.from(o.Server)})
		if err != nil {
			c.gate.opts.Log.Debug("looking for a resource", "server", o.Server, "method", l.method, "error", err)
			return
		}
		elements, _ := jsonrpc.Get(page, l.kind)
		for e := range jsonrpc.Elements(elements) {
			raw, _ := jsonrpc.Get(e, l.key)
			if name, ok := jsonrpc.Text(raw); ok {
				c.gate.memory.put(c, l.kind, o, name)
			}
		}
		next := textMember(page, "nextCursor")
		if next == "" || next == cursor {
			return
		}
		cursor = next
		params = json.RawMessage(`{"cursor":` + string(jsonrpc.Quote(next)) + `}`)
	}
}

// put remembers that o has name. The first configured server that has it stays.
func (m *memory) put(c *call, kind string, o registry.Offer, name string) {
	shown := name
	if kind == aPrompt {
		shown = o.Prefix + name
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recallLocked(c.owner(), c.start)
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

// placed returns where something is, as far as it is remembered.
func (m *memory) placed(c *call, name string, kinds []string) (place, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of[c.owner()]
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

// subscription returns the server where the subscription that r ends was begun.
func (m *memory) subscription(r *relayed) (server string, ok bool) {
	if r.in.Route != "" || r.in.Message.Method != "resources/unsubscribe" {
		return "", false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := m.of[r.owner()]; in != nil {
		server, ok = in.subscribed[r.name]
	}
	return server, ok
}

// subscribe remembers the subscription that r begins or ends, if it does.
func (m *memory) subscribe(r *relayed) {
	if r.in.Route != "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	in := m.recallLocked(r.owner(), r.start)
	switch r.in.Message.Method {
	case "resources/subscribe":
		if len(in.subscribed) < maxPlaces {
			in.subscribed[r.name] = r.server
		}
	case "resources/unsubscribe":
		delete(in.subscribed, r.name)
	}
}

// beginLook has c read all lists, until endLook. If somebody else reads them,
// others is closed at the end. Both are nil when the lists were read less than
// lookAgain ago.
func (m *memory) beginLook(c *call) (mine chan struct{}, others <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recallLocked(c.owner(), c.start)
	if r.looking != nil || !r.looked.IsZero() && c.start.Sub(r.looked) < lookAgain {
		return nil, r.looking
	}
	r.looking, r.places, r.placed = make(chan struct{}), map[string][]place{}, 0
	return r.looking, nil
}

// endLook ends a look of c.
func (m *memory) endLook(c *call, look chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(look)
	if r := m.recallLocked(c.owner(), c.start); r.looking == look {
		r.looked, r.looking = c.start, nil
		if r.stale {
			r.looked, r.stale = time.Time{}, false
		}
	}
}

// moved reports whether what is remembered of where things are has been
// forgotten since it was looked for, so that it is worth looking again.
func (m *memory) moved(c *call) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of[c.owner()]
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
