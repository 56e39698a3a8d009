package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/yosida95/uritemplate/v3"
	"golang.org/x/sync/singleflight"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Bounds of looking for what no list of the session has named.
const (
	lookFor   = 5 * time.Second // all servers together
	lookPages = 20              // of each list
	maxLooks  = 3               // for one request, while the lists change under it
)

// findServer is for requests about the one server of the route.
func (r *relayed) findServer(context.Context) *Failure {
	r.about.Arguments, r.about.Server = r.body, &policy.Server{Name: r.server}
	return nil
}

// findTools is for requests about the tools of the route, all servers' where all
// servers are.
func (r *relayed) findTools(ctx context.Context) *Failure {
	names := []string{}
	for _, t := range r.gate.opts.Upstreams.View(ctx, r.in.Route, r.from(r.server)).Tools() {
		names = append(names, t.Exposed)
	}
	r.about.Arguments, r.about.Server = r.body, &policy.Server{Name: r.server, Tools: names}
	return nil
}

// findResource finds the server of a resource. A subscription ends where it was
// begun, wherever the resource is by now.
func (r *relayed) findResource(ctx context.Context) *Failure {
	kinds := []string{aResource, aSkill, aTemplate}
	switch r.method {
	case "skills/get":
		kinds = []string{aSkill, aResource, aTemplate}
	case "resources/unsubscribe":
		kinds = []string{aSubscription, aResource, aTemplate}
	case "completion/complete": // of a template, or of a resource that is none
		kinds = []string{aTemplate, aResource}
	}
	at, ok := r.locate(ctx, kinds...)
	if !ok {
		return r.fail(signal.CodeNotFound, fmt.Sprintf("no server has the resource %q", r.name)).remedy("list the resources with resources/list")
	}
	r.server, r.about.Resource = at.server, &policy.Resource{Server: at.server, URI: at.name}
	return nil
}

// findPrompt finds the server of a prompt, and puts the server's own name in
// place of the exposed one, which is a member of params or, for a completion, of
// its ref.
func (r *relayed) findPrompt(ctx context.Context) *Failure {
	at, ok := r.locate(ctx, aPrompt)
	if !ok {
		return r.fail(signal.CodeNotFound, fmt.Sprintf("no prompt is called %q", r.name)).remedy("list the prompts with prompts/list")
	}
	r.server, r.about.Prompt = at.server, &policy.Prompt{Server: at.server, Name: at.name}
	if at.name == r.name {
		return nil
	}
	named := jsonrpc.Change{Name: "name", Value: jsonrpc.Quote(at.name)}
	if r.method == "completion/complete" {
		named = jsonrpc.Change{Name: "ref", Members: []jsonrpc.Change{named}}
	}
	return r.setParams(named)
}

// findReference finds what a completion is for: a prompt, or a resource by its uri.
func (r *relayed) findReference(ctx context.Context) *Failure {
	if ref, _ := jsonrpc.Get(r.body, "ref"); textMember(ref, "type") == "ref/prompt" {
		return r.findPrompt(ctx)
	}
	return r.findResource(ctx)
}

// locate finds where something of one of kinds is. On the route of one server it
// is there. Where all servers are, it is where a list of the session had it, else the
// server whose tool linked to it, for this session or this principal, else
// where a look at all lists finds it: the first configured server that lists it,
// then the first whose template describes it.
func (r *relayed) locate(ctx context.Context, kinds ...string) (at place, ok bool) {
	if r.in.Route != "" {
		return place{server: r.in.Route, name: r.name}, true
	}
	s := r.session()
	if at, ok = s.find(r.name, kinds); !ok && slices.Contains(kinds, aResource) {
		at, ok = r.ownLinks().linked(r.name)
	}
	for look := 0; !ok && look < maxLooks; look++ {
		read, _, _ := s.looks.Do("", func() (any, error) { return s.beginLook(r.start) && r.readLists(ctx), nil })
		at, ok = s.find(r.name, kinds)
		if read == false { // no list has changed since they were read
			break
		}
	}
	return at, ok
}

// readLists reads all lists of all servers, side by side: a slow server keeps
// nobody longer than lookFor. It returns true.
func (r *relayed) readLists(ctx context.Context) bool {
	ctx, stop := context.WithTimeout(ctx, lookFor)
	defer stop()
	var servers sync.WaitGroup
	for _, o := range r.gate.opts.Servers.Offers(ctx) {
		servers.Go(func() {
			defer r.survive("looking for a resource")
			for name, m := range lists {
				if m.list != "tasks" && offers(o.Capabilities, m.needs...) {
					r.readList(ctx, o, name, m)
				}
			}
		})
	}
	servers.Wait()
	return true
}

// survive keeps a panic in a goroutine of a request from ending the program.
func (c *call) survive(doing string) {
	if v := recover(); v != nil {
		c.gate.opts.Log.Error("panic while "+doing, "decision", c.decisionID, "panic", fmt.Sprint(v))
	}
}

// readList reads one list of one server, for the places of what it names.
func (r *relayed) readList(ctx context.Context, o registry.Offer, name string, m method) {
	own := *r
	own.row, own.method, own.body = m, name, json.RawMessage("{}")
	w := gathering{relayed: &own, offers: []registry.Offer{o}, look: true}
	for pages := 0; pages < lookPages && w.at == 0; pages++ {
		_ = w.addPage(ctx) // logs its error
	}
}

// Bounds of what is remembered. What is forgotten costs the session its own
// tasks and a new look at lists, and nobody else anything.
const (
	maxSessions   = 10_000 // the least recently used is forgotten
	maxTasks      = 1_000  // of one session; the one that ends first is forgotten
	maxPlaces     = 10_000 // of one session, resources and prompts together
	maxQuestions  = 100    // of one task
	maxLinks      = 1_000  // of one session, and of one principal; the least recently used is forgotten
	templateBytes = 2 << 10
	linkBytes     = 2 << 10         // of the uri of a link
	lookAgain     = 5 * time.Second // before the lists of a session are read again
)

// owner keys what is remembered of a session: a session belongs to one principal,
// and under another principal's key it remembers nothing.
type owner struct{ session, subject, tenant string }

// session is what is remembered of one session. It is safe for concurrent use.
type session struct {
	looks singleflight.Group // reads all lists

	mu     sync.Mutex                 // protects the fields below
	tasks  map[taskKey]*task          // those of servers and those of the client
	places map[placeKey]place         // where resources and prompts of /mcp are
	links  *lru.Cache[string, string] // :: uri => server whose tool linked to it; nil = none
	read   time.Time                  // when all lists were read last; zero = they have changed since
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
	aSkill    = "skills" // and the files that it names
	// A subscription is at the server where it was begun.
	aSubscription = "subscriptions"
)

// session returns what is remembered of the session of c, which may be nothing so far.
func (c *call) session() *session {
	return c.gate.session(owner{c.in.Session, c.principal.Subject, c.principal.Tenant})
}

func (g *Gate) session(o owner) *session {
	if s, ok := g.sessions.Get(o); ok {
		return s
	}
	s := &session{tasks: map[taskKey]*task{}, places: map[placeKey]place{}}
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
// else, for a resource, at the server whose tool linked to it, or at the first
// configured server whose template describes its uri (RFC 6570). A link cannot take a
// listed resource from its server.
func (s *session) find(name string, kinds []string) (found place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range kinds {
		if found, ok = s.places[placeKey{kind, name}]; ok {
			return found, true
		}
	}
	if slices.Contains(kinds, aResource) {
		if found, ok = s.linkedLocked(name); ok {
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
	s.unlistLocked()
	s.read = now
	return true
}

// unlist forgets where things are: a server says that its lists have changed.
func (s *session) unlist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlistLocked()
}

// unlistLocked is unlist; the caller must hold s.mu.
func (s *session) unlistLocked() {
	s.read = time.Time{}
	maps.DeleteFunc(s.places, func(key placeKey, _ place) bool { return key.kind != aSubscription })
}

// subscribe remembers the subscription that a request begins or ends, if it does.
func (s *session) subscribe(method, uri, server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := placeKey{aSubscription, uri}
	switch {
	case strings.HasSuffix(method, "/unsubscribe"):
		delete(s.places, key)
	case strings.HasSuffix(method, "/subscribe") && len(s.places) < maxPlaces:
		s.places[key] = place{server: server, name: uri}
	}
}
