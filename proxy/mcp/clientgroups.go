package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
)

// clientGroup is what the door keeps between requests of clients without a
// session: the principal, the route and the declared capabilities identify it.
// Upstream connections are kept for a group as they are for a session, and the
// group is the Home peer for notifications that belong to no request.
type clientGroup struct {
	account
	key     string // what the road sees
	route   string
	streams streams
	onEnd   func(key string)
	work    atomic.Int64 // pieces of work under way

	mu        sync.Mutex   // protects the fields below
	calls     []*multiCall // under way that may ask, the oldest first
	listeners map[*listener]struct{}
	watches   map[string]*watch // :: uri of a resource -> who listens for its updates
}

// clientGroups holds the groups that are at work or were recently, and counts
// what principals use of limited resources.
type clientGroups struct {
	*table[*clientGroup]
	onEnd  func(key string)
	counts map[quota]int // protected by table.mu
}

// quota is a resource that each principal has a limited share of. The zero owner
// stands for all principals.
type quota struct {
	owner owner
	what  resource
}

type resource uint8

const (
	parkedCall   resource = iota // a call that waits for its client
	openListener                 // a stream of notifications
)

func newClientGroups(opts Options) *clientGroups {
	t := &clientGroups{table: newTable[*clientGroup](opts), onEnd: opts.Ended, counts: make(map[quota]int)}
	t.reuse = true
	return t
}

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
// leave. It returns nil when the table is full of groups at work.
func (t *clientGroups) enter(who policy.Principal, route string, capabilities json.RawMessage) *clientGroup {
	key := groupKey(who, route, capabilities)
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.byKey[key]
	if g == nil {
		g = &clientGroup{account: account{owner: ownerOf(who)}, key: key, route: route, onEnd: t.onEnd, listeners: make(map[*listener]struct{}), watches: make(map[string]*watch)}
		if !t.putLocked(key, g) {
			return nil
		}
	}
	g.work.Add(1)
	return g
}

// leave ends one unit of work.
func (t *clientGroups) leave(g *clientGroup) {
	g.touch(t.now())
	g.work.Add(-1)
}

// busy implements client.
func (g *clientGroup) busy(bool) bool { return g.work.Load() > 0 }

// end implements client. A group at work ends with its process.
func (g *clientGroup) end() {
	if !g.busy(false) {
		g.onEnd(g.key)
	}
}

// acquire counts one use of a resource by the owner of g. It returns false when
// that owner has each of them or all owners together have total.
func (t *clientGroups) acquire(g *clientGroup, what resource, each, total int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	own, all := quota{g.owner, what}, quota{what: what}
	if t.counts[own] >= each || t.counts[all] >= total {
		return false
	}
	t.counts[own]++
	t.counts[all]++
	return true
}

// release ends what acquire counted.
func (t *clientGroups) release(g *clientGroup, what resource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own, all := quota{g.owner, what}, quota{what: what}
	t.counts[all]--
	if t.counts[own]--; t.counts[own] == 0 {
		delete(t.counts, own)
	}
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
	return e.Ask(ctx, round)
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
