package upstream

import (
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// maxAfterlives bounds those of one connection; beyond it the oldest ends.
const maxAfterlives = 256

// What is remembered of a task is remembered for at least and at most so long.
const (
	shortestTask = time.Minute // a server's answer may take as long to be fetched
	longestTask  = 24 * time.Hour
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
	s.all[i].until = now.Add(TaskLifetime(ttl))
}

// TaskLifetime reads the ttl of a task, in milliseconds, as how long to remember
// it: from a minute to a day. Null, nothing and nonsense are a day (MCP
// 2025-11-25 basic/utilities/tasks).
func TaskLifetime(ttl json.RawMessage) time.Duration {
	ms, err := strconv.ParseFloat(string(ttl), 64)
	if err != nil || ms > float64(longestTask.Milliseconds()) {
		return longestTask
	}
	return max(time.Duration(ms)*time.Millisecond, shortestTask)
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
