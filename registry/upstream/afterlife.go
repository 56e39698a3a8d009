package upstream

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const (
	maxAfterlives = 256            // of one connection; the oldest ends
	longestAfter  = 24 * time.Hour // that a task is reported on
	shortestAfter = time.Minute    // the same for a task that says it is over sooner
)

// afterlife is a call whose progress is told after it was answered, because the
// answer was a task: its token is good for as long as the task lives (MCP
// 2025-11-25 basic/utilities/tasks, "Task Progress Notifications").
type afterlife struct {
	token string
	tell  func(json.RawMessage)
	until time.Time // zero while the call is not answered
}

// afterlives are those of one connection. The zero value is ready.
type afterlives struct {
	mu  sync.Mutex  // protects the field below
	all []afterlife // the oldest first
}

// expect takes in a call that may come to a task.
func (s *afterlives) expect(token string, tell func(json.RawMessage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxAfterlives {
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.all = append(s.all, afterlife{token: token, tell: tell})
}

// answered keeps the call of token until a task's time is over, or, if its
// result is none, no longer.
func (s *afterlives) answered(token string, result json.RawMessage, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.all, func(a afterlife) bool { return a.token == token })
	if i < 0 {
		return
	}
	task, ok := jsonrpc.Get(result, "task")
	if !ok {
		s.all = slices.Delete(s.all, i, i+1)
		return
	}
	ttl, _ := jsonrpc.Get(task, "ttl")
	s.all[i].until = now.Add(afterwards(ttl))
}

// afterwards reads a ttl in milliseconds; null, nothing and nonsense are as long
// as can be.
func afterwards(ttl json.RawMessage) time.Duration {
	var ms float64
	if err := json.Unmarshal(ttl, &ms); err != nil || string(ttl) == "null" || ms > float64(longestAfter.Milliseconds()) {
		return longestAfter
	}
	return max(time.Duration(ms)*time.Millisecond, shortestAfter)
}

// find gives who hears of the task that came of the call of token, nil when
// nobody does.
func (s *afterlives) find(token string, now time.Time) func(json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(a afterlife) bool { return !a.until.IsZero() && now.After(a.until) })
	for _, a := range s.all {
		if a.token == token {
			return a.tell
		}
	}
	return nil
}
