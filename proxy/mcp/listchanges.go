package mcp

import (
	"slices"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
)

// toolsChanged reports that the client's list of tools may have changed.
const toolsChanged = "notifications/tools/list_changed"

// listMethods are the notifications that report a changed list and nothing
// more, so that two are worth one.
var listMethods = []string{toolsChanged, "notifications/resources/list_changed", "notifications/prompts/list_changed"}

// listChanges holds the list-change notifications that one client has not
// received; repeated changes become one. It is safe for concurrent use.
type listChanges struct {
	wake    chan struct{} // holds a token when changes are pending
	pending atomic.Uint32 // a bit for each of listMethods
}

func newListChanges() *listChanges { return &listChanges{wake: make(chan struct{}, 1)} }

// add notes a change. It returns false when method is not one of listMethods.
func (c *listChanges) add(method string) bool {
	i := slices.Index(listMethods, method)
	if i < 0 {
		return false
	}
	c.pending.Or(1 << i)
	token(c.wake)
	return true
}

// clear drops the pending changes.
func (c *listChanges) clear() { c.pending.Store(0) }

// flush sends the pending changes. A change that cannot be sent stays pending.
func (c *listChanges) flush(send func(outgoing) bool) {
	unheard := c.pending.Swap(0)
	for i, method := range listMethods {
		if unheard&(1<<i) != 0 && !send(outgoing{message: jsonrpc.NewNotification(method, nil)}) {
			c.add(method)
		}
	}
}

// ToolsChanged notifies every client that its list of tools may have changed.
// It never blocks; changes that a client has not yet received become one.
func (d *Door) ToolsChanged() {
	d.notifyAll(toolsChanged, func(owner, string) bool { return true })
}

// ListChanged notifies the clients on the route of server, or of all servers,
// that one of its lists may have changed. method is
// notifications/tools/list_changed, or that of resources or prompts; any other
// is ignored. It never blocks; changes that a client has not yet received
// become one.
func (d *Door) ListChanged(server, method string) {
	if slices.Contains(listMethods, method) {
		d.notifyAll(method, func(_ owner, route string) bool { return route == "" || route == server })
	}
}

// ToolsChangedFor is [Door.ToolsChanged] for the clients of one principal.
func (d *Door) ToolsChangedFor(who policy.Principal) {
	d.notifyAll(toolsChanged, func(of owner, _ string) bool { return of == ownerOf(who) })
}

// notifyAll notes a change for the clients whose principal and route concerns
// accepts. The route of a stdio client is all servers.
func (d *Door) notifyAll(method string, concerns func(of owner, route string) bool) {
	for _, s := range d.session.sessions.all() {
		if concerns(s.owner, s.route) {
			s.changes.add(method)
		}
	}
	for _, g := range d.stateless.groups.all() {
		if concerns(g.owner, g.route) {
			g.Tell(method, nil)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, of := range d.stdioClients {
		if concerns(of, "") {
			c.session.changes.add(method)
		}
	}
}
