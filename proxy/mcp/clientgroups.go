package mcp

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
)

// clientGroup is what the door keeps between requests of clients without a
// session: the principal, the route and the declared capabilities identify it.
// Upstream connections are kept for a group as they are for a session, and the
// group is the Home peer for notifications that belong to no request.
type clientGroup struct {
	key     string // what the road sees
	route   string
	owner   string // the principal, for what is counted by principal
	streams streams
	place   *list.Element // in clientGroups.order; nil = at work

	// Protected by clientGroups.mu.
	busy int
	used time.Time

	mu        sync.Mutex   // protects the fields below
	calls     []*multiCall // under way that may ask, the oldest first
	listeners map[*listener]struct{}
	watches   map[string]*watch // :: uri of a resource -> who listens for its updates
}

// clientGroups holds the groups that are at work or were recently.
type clientGroups struct {
	ttl  time.Duration
	max  int
	now  func() time.Time
	over func(key string)

	mu     sync.Mutex // protects the fields below
	byKey  map[string]*clientGroup
	order  *list.List // of *clientGroup that are not at work, the longest idle first
	quotas map[string]*quota
	calls  int // parked, of all principals
}

// quota counts what one principal uses of resources limited per principal.
type quota struct{ calls, listens int }

func newClientGroups(opts Options) *clientGroups {
	return &clientGroups{
		ttl: opts.SessionTTL, max: opts.MaxSessions, now: opts.Now, over: opts.Ended,
		byKey: make(map[string]*clientGroup), order: list.New(), quotas: make(map[string]*quota),
	}
}

// ownerOf names a principal.
func ownerOf(who policy.Principal) string { return digestOf(who.Subject, who.Tenant) }

// groupKey returns the key of a group. It can be computed only from all of who,
// route and capabilities.
func groupKey(who policy.Principal, route string, capabilities json.RawMessage) string {
	return "prn_" + digestOf(who.Subject, who.Tenant, route, string(capabilities))
}

// digestOf is one name for a row of texts.
func digestOf(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part))
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// enter returns the group of who on route and counts one unit of work until
// leave. When the table is full, the group that has been idle longest ends,
// preferring one of the same principal; enter returns nil when every group is
// at work.
func (t *clientGroups) enter(who policy.Principal, route string, capabilities json.RawMessage) *clientGroup {
	key := groupKey(who, route, capabilities)
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byKey[key]
	if p == nil {
		if len(t.byKey) >= t.max && !t.shedLocked(ownerOf(who)) {
			return nil
		}
		p = &clientGroup{key: key, route: route, owner: ownerOf(who), listeners: make(map[*listener]struct{}), watches: make(map[string]*watch)}
		t.byKey[key] = p
	}
	if p.place != nil {
		t.order.Remove(p.place)
		p.place = nil
	}
	p.busy++
	return p
}

// addWork counts work that continues after its request has ended.
func (t *clientGroups) addWork(p *clientGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.busy++
}

// leave ends one unit of work.
func (t *clientGroups) leave(p *clientGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.busy--; p.busy == 0 {
		p.used = t.now()
		p.place = t.order.PushBack(p)
	}
}

// shedLocked ends one idle group, one of owner before any other, and reports
// whether there was one. The caller must hold t.mu.
func (t *clientGroups) shedLocked(owner string) bool {
	victim := t.order.Front()
	if victim == nil {
		return false
	}
	for e := victim; e != nil; e = e.Next() {
		if e.Value.(*clientGroup).owner == owner {
			victim = e
			break
		}
	}
	t.endLocked(victim)
	return true
}

// endLocked ends an idle group. Its end is told before its key can be taken
// again, so that no connection of its successor is closed for it. The caller
// must hold t.mu.
func (t *clientGroups) endLocked(e *list.Element) {
	p := t.order.Remove(e).(*clientGroup)
	delete(t.byKey, p.key)
	t.over(p.key)
}

// sweep ends the groups that have been idle for too long.
func (t *clientGroups) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.order.Front(); e != nil && t.now().Sub(e.Value.(*clientGroup).used) > t.ttl; e = t.order.Front() {
		t.endLocked(e)
	}
}

// endAll ends every group that is not at work.
func (t *clientGroups) endAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.order.Front(); e != nil; e = t.order.Front() {
		t.endLocked(e)
	}
}

// all returns the groups.
func (t *clientGroups) all() []*clientGroup {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*clientGroup, 0, len(t.byKey))
	for _, p := range t.byKey {
		all = append(all, p)
	}
	return all
}

// quotaLocked returns the quota of owner, creating it if needed. The caller
// must hold t.mu.
func (t *clientGroups) quotaLocked(owner string) *quota {
	h := t.quotas[owner]
	if h == nil {
		h = &quota{}
		t.quotas[owner] = h
	}
	return h
}

// releaseQuotaLocked removes the quota of an owner that uses nothing. The
// caller must hold t.mu.
func (t *clientGroups) releaseQuotaLocked(owner string) {
	if h := t.quotas[owner]; h != nil && *h == (quota{}) {
		delete(t.quotas, owner)
	}
}

// park counts a call that waits for its client. It returns false when the
// principal has each parked calls or all principals together have total.
func (t *clientGroups) park(p *clientGroup, each, total int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.quotaLocked(p.owner)
	if h.calls >= each || t.calls >= total {
		t.releaseQuotaLocked(p.owner)
		return false
	}
	h.calls++
	t.calls++
	return true
}

// unpark ends one parked call.
func (t *clientGroups) unpark(p *clientGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quotaLocked(p.owner).calls--
	t.calls--
	t.releaseQuotaLocked(p.owner)
}

// listen counts a notification stream and returns false when the principal has
// each streams.
func (t *clientGroups) listen(p *clientGroup, each int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.quotaLocked(p.owner)
	if h.listens >= each {
		return false
	}
	h.listens++
	return true
}

// unlisten ends one notification stream.
func (t *clientGroups) unlisten(p *clientGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quotaLocked(p.owner).listens--
	t.releaseQuotaLocked(p.owner)
}

var _ registry.Peer = (*clientGroup)(nil)

// Ask puts questions that belong to no known request into the newest request
// that can carry questions: it comes from the same client. Without such a
// request the client cannot be asked.
func (g *clientGroup) Ask(ctx context.Context, round []registry.Question) []registry.Answer {
	g.mu.Lock()
	var e *multiCall
	if n := len(g.calls); n > 0 {
		e = g.calls[n-1]
	}
	g.mu.Unlock()
	if e == nil {
		return unanswered(round, "the client can be asked in the course of its own requests only")
	}
	return e.askRound(ctx, round)
}

// addCall registers a call whose servers may ask the client.
func (g *clientGroup) addCall(e *multiCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, e)
}

// removeCall unregisters m.
func (g *clientGroup) removeCall(e *multiCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.calls, e); i >= 0 {
		g.calls = slices.Delete(g.calls, i, i+1)
	}
}

// Tell sends a notification to the listeners that want it.
func (g *clientGroup) Tell(method string, params json.RawMessage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for l := range g.listeners {
		if l.wants(method, params) {
			l.deliver(method, params)
		}
	}
}

// unanswered gives an error for each question.
func unanswered(round []registry.Question, reason string) []registry.Answer {
	all := make([]registry.Answer, len(round))
	for i := range all {
		all[i].Error = failed(reason)
	}
	return all
}
