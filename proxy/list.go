package proxy

import (
	"context"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
)

// Viewer is a Policy that judges many tools at once, and knows whom it cannot tell
// apart.
type Viewer interface {
	// Rights returns the same text for principals whom the policy cannot tell apart.
	// With claims it holds what the client says of itself.
	Rights(p policy.Principal) (rights string, claims bool)
	// Seen is Visible for each of tools. With an error, those that could not be judged
	// are hidden.
	Seen(ctx context.Context, p policy.Principal, tools []policy.Tool) ([]bool, error)
}

// A Listing is what one principal sees of the tools of a route, in catalogue order,
// with StatusTool at the end for principals with tickets. Principals of the same
// rights may share it.
type Listing struct {
	Tools []*registry.Tool // shared: callers must not change it

	kept  *listings // nil = nobody else gets this Listing
	key   listingKey
	pages map[any][]byte
	bytes int // counted in kept.bytes
}

// listingKey is what a kept Listing depends on besides policy and catalogue.
type listingKey struct {
	route, rights string
	status        bool // it ends with StatusTool
}

// maxListingBytes bounds the lists and pages that a gate keeps.
const maxListingBytes = 32 << 20

// listings are kept Listings of one policy and one catalogue, the least recently
// used dropped first. A list of another policy or catalogue, and so of other pins or
// quarantines, replaces them all.
type listings struct {
	mu        sync.Mutex // protects the fields below, and pages and bytes of every kept Listing
	policy    Policy
	catalogue *registry.Catalogue
	lists     *simplelru.LRU[listingKey, *Listing]
	bytes     int
}

// get returns the Listing under key, nil for none.
func (k *listings) get(p Policy, c *registry.Catalogue, key listingKey) *Listing {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lists == nil || k.policy != p || k.catalogue != c {
		return nil
	}
	l, _ := k.lists.Get(key)
	return l
}

// put keeps l, which was made with p and c.
func (k *listings) put(p Policy, c *registry.Catalogue, key listingKey, l *Listing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lists == nil || k.policy != p || k.catalogue != c {
		k.policy, k.catalogue, k.bytes = p, c, 0
		k.lists, _ = simplelru.NewLRU(maxListingBytes/64, func(_ listingKey, l *Listing) { k.bytes -= l.bytes }) // an error means a size below 1
	}
	l.kept, l.key, l.pages = k, key, make(map[any][]byte)
	k.lists.Remove(key)
	k.lists.Add(key, l)
	k.grow(l, 256+len(key.route)+len(key.rights)+8*len(l.Tools))
}

// grow counts n bytes more of l, and drops lists until all fit. The caller must
// hold k.mu.
func (k *listings) grow(l *Listing, n int) {
	l.bytes += n
	k.bytes += n
	for k.bytes > maxListingBytes {
		k.lists.RemoveOldest()
	}
}

// Page returns what build makes of l.Tools, from memory if it was made under key
// before. The bytes are shared and must not be changed.
func (l *Listing) Page(key any, build func() []byte) []byte {
	k := l.kept
	if k == nil {
		return build()
	}
	k.mu.Lock()
	page, ok := l.pages[key]
	k.mu.Unlock()
	if ok {
		return page
	}
	page = build()
	k.mu.Lock()
	defer k.mu.Unlock()
	if now, ok := k.lists.Peek(l.key); ok && now == l && l.pages[key] == nil {
		l.pages[key] = page
		k.grow(l, 64+len(page))
	}
	return page
}

// List returns the tools of Listing.
func (g *Gate) List(ctx context.Context, in *Call, who policy.Principal) []*registry.Tool {
	return g.Listing(ctx, in, who).Tools
}

// Listing returns the tools that who sees on the route of in. From in it takes the
// route, session, capabilities, level and peers. It asks the same question as
// the resolve stage, so that what is not listed cannot be called and the
// reverse. It waits for upstreams that are still starting.
//
// A list that every connection offers is kept for principals of the same rights, as
// long as policy and catalogue are the same, unless the policy reads what clients say
// of themselves.
func (g *Gate) Listing(ctx context.Context, in *Call, who policy.Principal) *Listing {
	engine, view := *g.policy.Load(), g.view(ctx, in, who)
	status := g.offersStatus(ctx, view, who)
	tools, catalogue := view.List()
	viewer, ok := engine.(Viewer)
	if !ok || catalogue == nil {
		shown, _ := g.shown(ctx, engine, who, tools)
		return newListing(shown, status)
	}
	rights, claims := viewer.Rights(who)
	key := listingKey{route: in.Route, rights: rights, status: status}
	if l := g.listings.get(engine, catalogue, key); l != nil {
		return l
	}
	shown, err := g.shown(ctx, engine, who, tools)
	l := newListing(shown, status)
	if err == nil && !claims { // clients of one principal would replace the lists of others
		g.listings.put(engine, catalogue, key, l)
	}
	return l
}

func newListing(tools []*registry.Tool, status bool) *Listing {
	if status {
		tools = append(tools, StatusTool())
	}
	return &Listing{Tools: tools}
}

// shown returns those of tools that who sees. An error means that some could not
// be judged, and are hidden.
func (g *Gate) shown(ctx context.Context, engine Policy, who policy.Principal, tools []*registry.Tool) (seen []*registry.Tool, err error) {
	viewer, ok := engine.(Viewer)
	if !ok {
		for _, t := range tools {
			if _, ok := g.visible(ctx, engine, who, t); ok {
				seen = append(seen, t)
			}
		}
		return seen, nil
	}
	subjects := make([]policy.Tool, len(tools))
	for i, t := range tools {
		subjects[i] = subjectOf(t)
	}
	shown, err := viewer.Seen(ctx, who, subjects)
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "error", err)
	}
	for i, t := range tools {
		if shown[i] {
			seen = append(seen, t)
		}
	}
	return seen, err
}

// Find returns the one tool that List gives under name, nil when there is none.
func (g *Gate) Find(ctx context.Context, in *Call, who policy.Principal, name string) *registry.Tool {
	view := g.view(ctx, in, who)
	t, ok := view.Lookup(name)
	if !ok && name == StatusName && g.offersStatus(ctx, view, who) {
		return StatusTool()
	}
	if ok && t.Quarantine == "" {
		if _, ok := g.visible(ctx, *g.policy.Load(), who, t); ok {
			return t
		}
	}
	return nil
}

// view returns the tools of the route of in, as who's connections offer them.
func (g *Gate) view(ctx context.Context, in *Call, who policy.Principal) registry.View {
	c := &call{gate: g, in: in, principal: who}
	return g.opts.Upstreams.View(ctx, in.Route, c.from(""))
}
