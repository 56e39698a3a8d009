package proxy

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yosida95/uritemplate/v3"
	"golang.org/x/sync/singleflight"

	"github.com/toolgate/toolgate/registry"
)

// Bounds of what is remembered. What is forgotten costs the session its own
// tasks and a new look at lists, and nobody else anything.
const (
	maxSessions   = 10_000 // the least recently used is forgotten
	maxTasks      = 1_000  // of one session; the one that ends first is forgotten
	maxPlaces     = 10_000 // of one session, resources and prompts together
	maxQuestions  = 100    // of one task
	templateBytes = 2 << 10
	lookAgain     = 5 * time.Second // before the lists of a session are read again
)

// owner keys what is remembered of a session: a session belongs to one principal,
// and under another principal's key it remembers nothing.
type owner struct{ session, subject, tenant string }

// session is what is remembered of one session. It is safe for concurrent use.
type session struct {
	looks singleflight.Group // reads all lists

	mu         sync.Mutex         // protects the fields below
	tasks      map[taskKey]*task  // those of servers and those of the client
	places     map[placeKey]place // where resources and prompts of /mcp are
	subscribed map[string]string  // :: uri ⇒ the server of a subscription on /mcp
	read       time.Time          // when all lists were read last; zero = they have changed since
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

	// What was decided on the questions of the task; protected by session.mu.
	shown map[string]input
}

// input is what was decided on one question of a task.
type input struct {
	allowed bool
	redact  []string
}

// taskKey names a task within a session: that of a client by the server that asked
// for it too.
type taskKey struct{ asker, id string }

// place is where something that is listed on /mcp comes from.
type place struct {
	server string
	name   string // as the server calls it
	order  int    // of the server in the configuration
}

// placeKey names what has a place, as it is exposed.
type placeKey struct{ kind, name string }

// The kinds of what has a place.
const (
	aResource = "resources"
	aTemplate = "resourceTemplates"
	aPrompt   = "prompts"
)

// session returns what is remembered of the session of c, which may be nothing so far.
func (c *call) session() *session {
	return c.gate.session(owner{c.in.Session, c.principal.Subject, c.principal.Tenant})
}

func (g *Gate) session(o owner) *session {
	if s, ok := g.sessions.Get(o); ok {
		return s
	}
	s := &session{tasks: map[taskKey]*task{}, places: map[placeKey]place{}, subscribed: map[string]string{}}
	if earlier, ok, _ := g.sessions.PeekOrAdd(o, s); ok {
		return earlier
	}
	return s
}

// EndSession forgets what the gate remembers of a session that is over: its
// tasks, and where its resources and prompts are.
func (g *Gate) EndSession(session string) {
	for _, o := range g.sessions.Keys() {
		if o.session == session {
			g.sessions.Remove(o)
		}
	}
}

// ListChanged forgets where resources and prompts are, because a server says to
// everybody that one of its lists has changed.
func (g *Gate) ListChanged(string, string) {
	for _, s := range g.sessions.Values() {
		s.unlist()
	}
}

// keep remembers t, and reports false when another task has its id: a server
// must not replace one task by another.
func (s *session) keep(t *task, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := taskKey{id: t.id}
	if t.asks != "" {
		key.asker = t.server
	}
	if old := s.tasks[key]; old != nil && now.Before(old.expires) {
		return false
	}
	if len(s.tasks) >= maxTasks {
		first := slices.MinFunc(slices.Collect(maps.Keys(s.tasks)), func(a, b taskKey) int { return s.tasks[a].expires.Compare(s.tasks[b].expires) })
		delete(s.tasks, first)
	}
	s.tasks[key] = t
	return true
}

// task returns the server's task id, or the client's that asker has begun; nil when
// there is none.
func (s *session) task(asker, id string, now time.Time) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[taskKey{asker, id}]; t != nil && now.Before(t.expires) {
		return t
	}
	return nil
}

// asker returns the first server by name that has begun the client's task id, in
// only or, where only is "", anywhere; "" when there is none.
func (s *session) asker(only, id string, now time.Time) (first string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, t := range s.tasks {
		if key.id == id && key.asker != "" && (only == "" || only == key.asker) && now.Before(t.expires) && (first == "" || key.asker < first) {
			first = key.asker
		}
	}
	return first
}

// shown returns what was decided on a question of t.
func (s *session) shown(t *task, key string) (in input, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, known = t.shown[key]
	return in, known
}

// show remembers what was decided on a question of t, and reports false when t
// has asked too much.
func (s *session) show(t *task, key string, in input) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.shown == nil {
		t.shown = make(map[string]input)
	}
	if _, known := t.shown[key]; !known && len(t.shown) >= maxQuestions {
		return false
	}
	t.shown[key] = in
	return true
}

// put remembers that o has what it calls name. The first configured server that has
// it stays.
func (s *session) put(kind string, o registry.Offer, name string) {
	key := placeKey{kind, name}
	if kind == aPrompt {
		key.name = o.Prefix + name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.places[key]; ok && old.order < o.Order || !ok && len(s.places) >= maxPlaces {
		return
	}
	s.places[key] = place{server: o.Server, name: name, order: o.Order}
}

// find returns where something is, as far as it is remembered: where it was listed,
// else, for a resource, at the first configured server whose template describes its
// uri (RFC 6570).
func (s *session) find(name string, kinds []string) (found place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range kinds {
		if found, ok = s.places[placeKey{kind, name}]; ok {
			return found, true
		}
	}
	if !slices.Contains(kinds, aTemplate) {
		return place{}, false
	}
	for key, at := range s.places {
		if key.kind != aTemplate || len(key.name) > templateBytes || ok && found.order <= at.order {
			continue
		}
		if t, err := uritemplate.New(key.name); err == nil && t.Match(name) != nil {
			found, ok = place{server: at.server, name: name, order: at.order}, true
		}
	}
	return found, ok
}

// beginLook forgets where things are, for all lists to be read, and reports false when
// they were read less than lookAgain ago.
func (s *session) beginLook(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.read.IsZero() && now.Sub(s.read) < lookAgain {
		return false
	}
	s.read = now
	clear(s.places)
	return true
}

// unlist forgets where things are: a server says that its lists have changed.
func (s *session) unlist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = time.Time{}
	clear(s.places)
}

// subscription returns the server where a subscription was begun, "" for none.
func (s *session) subscription(uri string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscribed[uri]
}

// subscribe remembers the subscription that a request begins or ends, if it does.
func (s *session) subscribe(method, uri, server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case strings.HasSuffix(method, "/unsubscribe"):
		delete(s.subscribed, uri)
	case strings.HasSuffix(method, "/subscribe") && len(s.subscribed) < maxPlaces:
		s.subscribed[uri] = server
	}
}
