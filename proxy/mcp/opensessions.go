package mcp

import (
	"time"

	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/proxy"
)

// An OpenSession is a session of a client, or what is kept of a client of a revision without sessions.
// It does not have the ID that the client shows.
type OpenSession struct {
	Key       string // proxy.Call.Session: nobody can use the session with it
	Owner     share.Owner
	Route     string // the server that the client reaches, "" = all
	Transport string // http or sse
	Revision  string // of MCP
	Client    string // name/version that the client gave of itself, "" = none
	Began     time.Time
	Used      time.Time
	Calls     int // requests under way
}

// Open returns the open sessions over HTTP, and the clients without sessions that were there lately.
func (d *Door) Open() (all []OpenSession) {
	for _, s := range d.session.sessions.all() {
		o := OpenSession{Key: s.key, Owner: s.owner, Route: s.route, Transport: "http", Revision: s.version, Client: s.client, Began: s.began, Used: time.Unix(0, s.used.Load())}
		if s.sseClient != nil {
			o.Transport = "sse"
		}
		s.mu.Lock()
		o.Calls = len(s.flights)
		s.mu.Unlock()
		all = append(all, o)
	}
	for _, g := range d.stateless.groups.all() {
		all = append(all, OpenSession{
			Key: g.key, Owner: g.owner, Route: g.route, Transport: "http", Revision: statelessVersion, Client: g.names,
			Began: g.began, Used: time.Unix(0, g.used.Load()), Calls: int(g.work.Load()),
		})
	}
	return all
}

// EndSession ends a session by its key, and cancels its calls, which are answered. The client's next
// request is refused as one of a session that is over. Of a client of a revision without sessions,
// whose next request begins anew, what is kept for it ends, and calls under way at servers that have
// a connection for it fail. EndSession reports whether there was one.
func (d *Door) EndSession(key string) bool {
	for _, s := range d.session.sessions.all() {
		if s.key == key {
			d.session.endSession(s) // first, so that no request begins after the others are cancelled
			s.abortAll(proxy.ErrSessionEnded)
			return true
		}
	}
	t := d.stateless.groups
	t.mu.Lock()
	defer t.unlock()
	g := t.byKey[key]
	if g == nil {
		return false
	}
	if t.endLocked(key); g.busy(false) {
		t.onEnd(key)
	}
	return true
}
