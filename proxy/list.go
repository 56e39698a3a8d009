package proxy

import (
	"context"
	"encoding/binary"
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
// with StatusTool at the end for principals with tickets. Principals who see the same
// may share it.
type Listing struct {
	Tools []*registry.Tool // shared: callers must not change it

	kept  *listings // nil = nobody else gets this Listing
	key   contentKey
	users int // rights sets in kept.lists that have it
	pages map[any][]byte
	bytes int // counted in kept.bytes
}

// listingKey is what a kept Listing depends on besides policy and catalogue.
type listingKey struct {
	route, rights string
	status        bool // it ends with StatusTool
}

// size is what k counts for.
func (k listingKey) size() int { return 128 + len(k.route) + len(k.rights) }

// contentKey is what a kept Listing holds of its catalogue.
type contentKey struct {
	route, shown string // shown has a byte for each tool of the route: 1 = listed
	status       bool
}

// maxListingBytes bounds the lists and pages that a gate keeps.
const maxListingBytes = 32 << 20

// listings are kept Listings of one policy and one catalogue, the least recently
// used rights set dropped first. Rights sets that see the same share one, so that
// however many there are, its pages are made once and stay in the CPU's caches. A list
// of another policy or catalogue, and so of other pins or quarantines, replaces them
// all.
type listings struct {
	mu        sync.Mutex // protects the fields below, and users, pages and bytes of every kept Listing
	policy    Policy
	catalogue *registry.Catalogue
	lists     *simplelru.LRU[listingKey, *Listing]
	contents  map[contentKey]*Listing // those in lists
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

// put keeps a Listing of tools, those of the route of key in c, of which p shows the
// ones that shown says.
func (k *listings) put(p Policy, c *registry.Catalogue, key listingKey, tools []*registry.Tool, shown []bool) *Listing {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lists == nil || k.policy != p || k.catalogue != c {
		k.policy, k.catalogue, k.bytes, k.contents = p, c, 0, make(map[contentKey]*Listing)
		k.lists, _ = simplelru.NewLRU(maxListingBytes/64, k.drop) // an error means a size below 1
	}
	marks, _ := binary.Append(nil, binary.LittleEndian, shown) // the order matters to no byte, and []bool to no error
	content := contentKey{route: key.route, shown: string(marks), status: key.status}
	l, more := k.contents[content], 0
	if l == nil {
		l = newListing(tools, shown, key.status)
		l.kept, l.key, l.pages = k, content, make(map[any][]byte)
		more = 256 + len(content.route) + len(content.shown) + 8*len(l.Tools)
		k.contents[content] = l
	}
	l.users++
	k.bytes += key.size()
	k.lists.Remove(key)
	k.lists.Add(key, l)
	k.grow(l, more)
	return l
}

// drop subtracts the size of a rights set that has left k.lists, and the size of its
// Listing when no other rights set has that.
func (k *listings) drop(key listingKey, l *Listing) {
	k.bytes -= key.size()
	if l.users--; l.users == 0 {
		k.bytes -= l.bytes
		delete(k.contents, l.key)
	}
}

// grow counts n bytes more of l, and drops rights sets until all fit. The caller must
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
	if k.contents[l.key] == l && l.pages[key] == nil {
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
// reverse. It waits for upstreams that were never seen.
//
// A list that every connection offers is kept for principals of the same rights, as
// long as policy and catalogue are the same, unless the policy reads what clients say
// of themselves. Principals of other rights who see the same share it.
func (g *Gate) Listing(ctx context.Context, in *Call, who policy.Principal) *Listing {
	if g.opts.Tracer != nil && in.Message != nil && in.Message.Method == "tools/list" {
		c := new(call)
		g.begin(c, in)
		c.principal, c.decisionID = who, "" // it leaves no record
		ctx = c.startTrace(ctx)
		defer func() { c.endTrace(ctx, nil, g.opts.Now().Sub(c.start)) }()
	}
	engine, view := *g.policy.Load(), g.view(ctx, in, who)
	status := g.offersStatus(ctx, view, who)
	tools, catalogue := view.List()
	viewer, ok := engine.(Viewer)
	if !ok || catalogue == nil {
		shown, _ := g.shown(ctx, engine, who, tools)
		return newListing(tools, shown, status)
	}
	rights, claims := viewer.Rights(who)
	key := listingKey{route: in.Route, rights: rights, status: status}
	if l := g.listings.get(engine, catalogue, key); l != nil {
		return l
	}
	shown, err := g.shown(ctx, engine, who, tools)
	if err != nil || claims { // clients of one principal would replace the lists of others
		return newListing(tools, shown, status)
	}
	return g.listings.put(engine, catalogue, key, tools, shown)
}

// newListing returns a Listing of those of tools that are shown.
func newListing(tools []*registry.Tool, shown []bool, status bool) *Listing {
	l := new(Listing)
	for i, t := range tools {
		if shown[i] {
			l.Tools = append(l.Tools, t)
		}
	}
	if status {
		l.Tools = append(l.Tools, StatusTool())
	}
	return l
}

// shown reports for each of tools whether who sees it. An error means that some could
// not be judged, and are hidden.
func (g *Gate) shown(ctx context.Context, engine Policy, who policy.Principal, tools []*registry.Tool) ([]bool, error) {
	viewer, ok := engine.(Viewer)
	if !ok {
		shown := make([]bool, len(tools))
		for i, t := range tools {
			_, shown[i] = g.visible(ctx, engine, who, t)
		}
		return shown, nil
	}
	subjects := make([]policy.Tool, len(tools))
	for i, t := range tools {
		subjects[i] = subjectOf(t)
	}
	shown, err := viewer.Seen(ctx, who, subjects)
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "error", err)
	}
	return shown, err
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
