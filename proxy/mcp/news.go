package mcp

import (
	"slices"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
)

// toolsChanged is what a client hears when its tools may be others.
const toolsChanged = "notifications/tools/list_changed"

// kinds are the notifications that say no more than that something changed, so
// that two are worth one.
var kinds = []string{toolsChanged, "notifications/resources/list_changed", "notifications/prompts/list_changed"}

// news is what one client should hear of once, however often it happens. It is
// safe for concurrent use.
type news struct {
	wake    chan struct{} // holds a token when there is some
	unheard atomic.Uint32 // a bit for each of kinds
}

func newNews() *news { return &news{wake: make(chan struct{}, 1)} }

// add leaves word of method and reports false when it is none of kinds.
func (n *news) add(method string) bool {
	i := slices.Index(kinds, method)
	if i < 0 {
		return false
	}
	n.unheard.Or(1 << i)
	token(n.wake)
	return true
}

// forget drops what is unheard.
func (n *news) forget() { n.unheard.Store(0) }

// tell sends what is unheard; what cannot be sent stays so.
func (n *news) tell(send func(letter) bool) {
	unheard := n.unheard.Swap(0)
	for i, method := range kinds {
		if unheard&(1<<i) != 0 && !send(letter{message: jsonrpc.NewNotification(method, nil)}) {
			n.add(method)
		}
	}
}

// ToolsChanged tells every client that its list of tools may be another one.
// It never blocks; changes that a client has not yet heard of become one.
func (d *Door) ToolsChanged() { d.tellAll(toolsChanged, func(string) bool { return true }) }

// ListChanged tells the clients who see what server offers that a list of it
// may be another one. method is notifications/tools/list_changed, or that of
// resources or prompts; any other tells nothing. It never blocks; changes that
// a client has not yet heard of become one.
func (d *Door) ListChanged(server, method string) {
	if slices.Contains(kinds, method) {
		d.tellAll(method, func(route string) bool { return route == "" || route == server })
	}
}

// ToolsChangedFor tells the clients of one principal alone; else it is as
// [Door.ToolsChanged].
func (d *Door) ToolsChangedFor(who policy.Principal) {
	d.sessions.each(func(s *session) {
		if s.subject == who.Subject && s.tenant == who.Tenant {
			s.news.add(toolsChanged)
		}
	})
	owner := ownerOf(who)
	for _, p := range d.parties.all() {
		if p.owner == owner {
			p.Tell(toolsChanged, nil)
		}
	}
	if at, f := d.opts.Gate.Identify(d.base, d.opts.Stdio); f != nil || ownerOf(at) != owner {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.pipes {
		p.news.add(toolsChanged)
	}
}

// tellAll leaves word of method for the sessions and listeners of the routes
// that of picks, and on every pipe, whose road is that of all servers.
func (d *Door) tellAll(method string, of func(route string) bool) {
	d.sessions.each(func(s *session) {
		if of(s.route) {
			s.news.add(method)
		}
	})
	for _, p := range d.parties.all() {
		if of(p.route) {
			p.Tell(method, nil)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.pipes {
		p.news.add(method)
	}
}
