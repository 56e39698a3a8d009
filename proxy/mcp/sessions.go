package mcp

import (
	"container/list"
	"sync"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// sessions are the live HTTP sessions. A session is found only by its owner,
// ends after ttl without use, and gives way when there are too many.
type sessions struct {
	ttl    time.Duration
	max    int
	now    func() time.Time
	over   func(key string)
	events *eventLog

	mu    sync.Mutex               // protects the fields below and session.used
	byID  map[string]*list.Element // :: session id -> its place in order
	order *list.List               // of *session, least recently used first
}

func newSessions(opts Options, kept *eventLog) *sessions {
	return &sessions{
		events: kept,
		ttl:    opts.SessionTTL,
		max:    opts.MaxSessions,
		now:    opts.Now,
		over:   opts.Ended,
		byID:   make(map[string]*list.Element),
		order:  list.New(),
	}
}

// open admits s. When there is no room the oldest idle session ends, one of
// the same owner before any other, so that one principal's flood costs its own
// sessions; open reports false when every session is at work.
func (t *sessions) open(s *session) bool {
	s.onEnd, s.events = func() { t.over(s.key) }, t.events
	t.mu.Lock()
	var victim *list.Element
	if len(t.byID) >= t.max {
		if victim = t.victimLocked(s); victim == nil {
			t.mu.Unlock()
			return false
		}
		t.removeLocked(victim)
	}
	s.used = t.now()
	t.byID[s.id] = t.order.PushBack(s)
	t.mu.Unlock()
	if victim != nil {
		victim.Value.(*session).end()
	}
	return true
}

// victimLocked chooses who makes room for s. The caller must hold t.mu.
func (t *sessions) victimLocked(s *session) *list.Element {
	var oldest *list.Element
	for e := t.order.Front(); e != nil; e = e.Next() {
		old := e.Value.(*session)
		if old.working() {
			continue
		}
		if old.subject == s.subject && old.tenant == s.tenant {
			return e
		}
		if oldest == nil {
			oldest = e
		}
	}
	return oldest
}

// find returns the session id if it is alive, of the kind that sse names, and
// belongs to who on route, and marks it used; otherwise nil, without saying why.
// An HTTP+SSE session has its own route.
func (t *sessions) find(id string, who policy.Principal, route string, sse bool) *session {
	t.mu.Lock()
	e := t.byID[id]
	if e == nil {
		t.mu.Unlock()
		return nil
	}
	s, now := e.Value.(*session), t.now()
	if s.subject != who.Subject || s.tenant != who.Tenant || sse != (s.sseClient != nil) || !sse && s.route != route {
		t.mu.Unlock()
		return nil
	}
	if now.Sub(s.used) > t.ttl && !s.busy() {
		t.removeLocked(e)
		t.mu.Unlock()
		s.end()
		return nil
	}
	s.used = now
	t.order.MoveToBack(e)
	t.mu.Unlock()
	return s
}

// touch marks s used: a request that has just ended counts as use.
func (t *sessions) touch(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.byID[s.id]; ok {
		s.used = t.now()
		t.order.MoveToBack(e)
	}
}

// end ends s.
func (t *sessions) end(s *session) {
	t.mu.Lock()
	if e, ok := t.byID[s.id]; ok {
		t.removeLocked(e)
	}
	t.mu.Unlock()
	s.end()
}

// sweep ends the sessions that have been idle for too long.
func (t *sessions) sweep() {
	var gone []*session
	t.mu.Lock()
	for e := t.order.Front(); e != nil; {
		s, next := e.Value.(*session), e.Next()
		if t.now().Sub(s.used) <= t.ttl {
			break
		}
		if !s.busy() {
			t.removeLocked(e)
			gone = append(gone, s)
		}
		e = next
	}
	t.mu.Unlock()
	for _, s := range gone {
		s.end()
	}
}

// endAll ends every session.
func (t *sessions) endAll() {
	for _, s := range t.all() {
		t.end(s)
	}
}

// each calls f with every session.
func (t *sessions) each(f func(*session)) {
	for _, s := range t.all() {
		f(s)
	}
}

// all gives the live sessions.
func (t *sessions) all() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*session, 0, len(t.byID))
	for e := t.order.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*session))
	}
	return all
}

// removeLocked takes e out. The caller must hold t.mu and end the session.
func (t *sessions) removeLocked(e *list.Element) {
	delete(t.byID, t.order.Remove(e).(*session).id)
}
