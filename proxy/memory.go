package proxy

import (
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/registry"
)

// Bounds of what is remembered. What is forgotten costs the session its own
// tasks and a new look at lists, and nobody else anything.
const (
	maxSessions  = 10_000 // the least recently used is forgotten
	maxTasks     = 1_000  // of one session; the one that ends first is forgotten
	maxPlaces    = 10_000 // of one session, resources and prompts together
	maxQuestions = 100    // of one task
)

// owner keys what is remembered of a session: a session belongs to one principal,
// and under another principal's key it remembers nothing.
type owner struct{ session, subject, tenant string }

func (c *call) owner() owner {
	return owner{c.in.Session, c.principal.Subject, c.principal.Tenant}
}

// task is a task that a governed request became: a tool call, which a server runs,
// or a server's question, which the client runs.
type task struct {
	id      string
	server  string
	expires time.Time
	redact  []string // the obligations of the decision under which it was begun

	tool   *registry.Tool // what was called; nil for a client's
	callID string         // of the request that it came of
	asks   string         // the method of the question; "" for a server's

	// What the task asked of the client, see inputs; protected by memory.mu.
	shown map[string]*input
}

// input is one question of a task and what was decided on it.
type input struct {
	allowed bool
	redact  []string
}

// memory holds what the gate remembers of sessions between requests. It is safe
// for concurrent use.
type memory struct {
	mu sync.Mutex // protects the fields below
	of map[owner]*recollection
}

// recollection is what is remembered of one session.
type recollection struct {
	used       time.Time
	tasks      map[string]*task   // :: id ⇒ a server's task
	theirs     map[string]*task   // :: server, NUL and id ⇒ a client's task
	places     map[string][]place // :: kind, NUL and name ⇒ who has a resource or prompt of /mcp, in configured order
	placed     int                // how many there are in places
	subscribed map[string]string  // :: uri ⇒ the server of a subscription on /mcp
	looked     time.Time          // when all lists were read last
	looking    chan struct{}      // closed when somebody has read them; nil = nobody does
	stale      bool               // the lists changed while they are being read
}

// place is where something that is listed on /mcp comes from.
type place struct {
	server string
	name   string // as the server calls it
	order  int    // of the server in the configuration
}

// recallLocked returns the recollection of o. The caller must hold m.mu.
func (m *memory) recallLocked(o owner, now time.Time) *recollection {
	r := m.of[o]
	if r == nil {
		if len(m.of) >= maxSessions {
			m.evictLocked()
		}
		if m.of == nil {
			m.of = make(map[owner]*recollection)
		}
		r = &recollection{tasks: map[string]*task{}, theirs: map[string]*task{}, places: map[string][]place{}, subscribed: map[string]string{}}
		m.of[o] = r
	}
	r.used = now
	return r
}

func (m *memory) evictLocked() {
	var oldest owner
	first := true
	for o, r := range m.of {
		if first || r.used.Before(m.of[oldest].used) {
			oldest, first = o, false
		}
	}
	delete(m.of, oldest)
}

// forget drops what is remembered of a session, whoever it belongs to.
func (m *memory) forget(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for o := range m.of {
		if o.session == session {
			delete(m.of, o)
		}
	}
}

// keep remembers t, and reports false when another task has its id: a server
// must not replace one task by another.
func (m *memory) keep(o owner, t *task, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, key := m.recallLocked(o, now).tasks, t.id
	if t.asks != "" {
		in, key = m.of[o].theirs, t.server+"\x00"+t.id
	}
	if old := in[key]; old != nil && now.Before(old.expires) {
		return false
	}
	if len(in) >= maxTasks {
		soonest := ""
		for k, other := range in {
			if soonest == "" || other.expires.Before(in[soonest].expires) {
				soonest = k
			}
		}
		delete(in, soonest)
	}
	in[key] = t
	return true
}

// task returns the server's task id of o, nil when there is none.
func (m *memory) task(o owner, id string, now time.Time) *task {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[o] == nil {
		return nil
	}
	return alive(m.recallLocked(o, now).tasks[id], now)
}

// theirTask returns the client's task id that server has begun, nil when there is
// none.
func (m *memory) theirTask(o owner, server, id string, now time.Time) *task {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[o] == nil {
		return nil
	}
	return alive(m.recallLocked(o, now).theirs[server+"\x00"+id], now)
}

func alive(t *task, now time.Time) *task {
	if t == nil || !now.Before(t.expires) {
		return nil
	}
	return t
}

// shown returns what was decided on a question of t.
func (m *memory) shown(t *task, key string) (input, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := t.shown[key]; in != nil {
		return *in, true
	}
	return input{}, false
}

// show remembers what was decided on a question of t, and reports false when t
// has asked too much.
func (m *memory) show(t *task, key string, in input) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.shown == nil {
		t.shown = make(map[string]*input)
	}
	if t.shown[key] == nil && len(t.shown) >= maxQuestions {
		return false
	}
	t.shown[key] = &in
	return true
}

// beginners returns the servers that have begun a task of the client's with id.
func (m *memory) beginners(o owner, id string, now time.Time) (servers []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[o] == nil {
		return nil
	}
	for _, t := range m.recallLocked(o, now).theirs {
		if t.id == id && alive(t, now) != nil {
			servers = append(servers, t.server)
		}
	}
	slices.Sort(servers)
	return servers
}
