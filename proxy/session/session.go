// Package session remembers, for each session of a client, the tasks that its requests became, and
// where the resources and prompts are that it reaches through the route of all servers:
//
//	s := sessions.Of(session.Owner{Session: in.Session, Subject: who.Subject, Tenant: who.Tenant})
//	at, ok := s.Find("file:///readme", session.Resource)
//
// What is remembered is bounded. What is forgotten costs the session its own tasks and a new look at
// lists, and nobody else anything. All types but Task are safe for concurrent use; a Task is not
// changed once it is kept.
package session

import (
	"maps"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/toolgate/toolgate/registry"
)

const (
	maxSessions  = 10_000 // the least recently used is forgotten
	maxTasks     = 1_000  // of one session; the one that ends first is forgotten
	maxQuestions = 100    // of one task
)

// Owner keys what is remembered of a session: a session belongs to one principal,
// and under another principal's key it remembers nothing.
type Owner struct{ Session, Subject, Tenant string }

// Sessions are what is remembered of all sessions.
type Sessions struct{ cache *lru.Cache[Owner, *Session] }

// New returns Sessions that remember nothing.
func New() Sessions {
	cache, _ := lru.New[Owner, *Session](maxSessions) // an error means a size below 1
	return Sessions{cache}
}

// Of returns what is remembered of a session, which may be nothing so far.
func (all Sessions) Of(o Owner) *Session {
	if s, ok := all.cache.Get(o); ok {
		return s
	}
	s := &Session{tasks: map[taskKey]*Task{}, places: map[placeKey]Place{}}
	if earlier, ok, _ := all.cache.PeekOrAdd(o, s); ok {
		return earlier
	}
	return s
}

// End forgets a session, whoever owns it.
func (all Sessions) End(session string) {
	for _, o := range all.cache.Keys() {
		if o.Session == session {
			all.cache.Remove(o)
		}
	}
}

// Unlist forgets for all sessions where things are: a server's list has changed.
func (all Sessions) Unlist() {
	for _, s := range all.cache.Values() {
		s.Unlist()
	}
}

// Session is what is remembered of one session.
type Session struct {
	looks singleflight.Group // reads all lists

	mu     sync.Mutex                 // protects the fields below
	tasks  map[taskKey]*Task          // those of servers and those of the client
	places map[placeKey]Place         // where resources and prompts of /mcp are
	links  *lru.Cache[string, string] // :: uri => server whose tool linked to it; nil = none
	read   time.Time                  // when all lists were read last; zero = they have changed since
}

// Task is a task that a governed request became: a tool call, which a server runs,
// or a server's question, which the client runs.
type Task struct {
	ID      string
	Server  string
	Expires time.Time
	Redact  []string // the obligations of the decision under which it was begun

	Tool   *registry.Tool // what was called; nil for a client's
	CallID string         // of the request that it came of
	Asks   string         // the method of the question; "" for a server's

	verdicts map[string]Verdict // on the questions of the task; protected by Session.mu
}

// Verdict is what was decided on one question of a task.
type Verdict struct {
	Allowed bool
	Redact  []string
}

// taskKey names a task within a session: that of a client by the server that asked
// for it too.
type taskKey struct{ asker, id string }

// Keep remembers t, and reports false when another task has its id: a server
// must not replace one task by another.
func (s *Session) Keep(t *Task, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := taskKey{id: t.ID}
	if t.Asks != "" {
		key.asker = t.Server
	}
	if old := s.tasks[key]; old != nil && now.Before(old.Expires) {
		return false
	}
	if len(s.tasks) >= maxTasks {
		first := slices.MinFunc(slices.Collect(maps.Keys(s.tasks)), func(a, b taskKey) int { return s.tasks[a].Expires.Compare(s.tasks[b].Expires) })
		delete(s.tasks, first)
	}
	s.tasks[key] = t
	return true
}

// Task returns the task id that the client's call became, or, with asker, the one that a question
// of that server became; nil when there is none.
func (s *Session) Task(asker, id string, now time.Time) *Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[taskKey{asker, id}]; t != nil && now.Before(t.Expires) {
		return t
	}
	return nil
}

// Asker returns the first server by name that has begun the client's task id, in
// only or, where only is "", anywhere; "" when there is none.
func (s *Session) Asker(only, id string, now time.Time) (first string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, t := range s.tasks {
		if key.id == id && key.asker != "" && (only == "" || only == key.asker) && now.Before(t.Expires) && (first == "" || key.asker < first) {
			first = key.asker
		}
	}
	return first
}

// Verdict returns what was decided on a question of t.
func (s *Session) Verdict(t *Task, question string) (v Verdict, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, known = t.verdicts[question]
	return v, known
}

// SetVerdict remembers what was decided on a question of t, and reports false when t
// has asked too much.
func (s *Session) SetVerdict(t *Task, question string, v Verdict) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.verdicts == nil {
		t.verdicts = make(map[string]Verdict)
	}
	if _, known := t.verdicts[question]; !known && len(t.verdicts) >= maxQuestions {
		return false
	}
	t.verdicts[question] = v
	return true
}
