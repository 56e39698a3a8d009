package upstream

import (
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// maxTaskListeners bounds the task listeners of one connection. Beyond it the
// oldest is dropped.
const maxTaskListeners = 256

// What is remembered of a task is remembered for at least and at most so long.
const (
	shortestTask = time.Minute // a server's answer may take as long to be fetched
	longestTask  = 24 * time.Hour
)

// A taskListener receives the progress of a task after its call was answered:
// the call's progress token stays valid while the task lives (MCP 2025-11-25
// basic/utilities/tasks, "Task Progress Notifications").
type taskListener struct {
	token string
	tell  func(json.RawMessage)
	until time.Time // zero while the call is not answered
}

// taskListeners are the task listeners of one connection. The zero value is
// ready.
type taskListeners struct {
	mu  sync.Mutex     // protects the field below
	all []taskListener // the oldest first
}

// expect adds the listener of a call that may become a task.
func (s *taskListeners) expect(token string, tell func(json.RawMessage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxTaskListeners {
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.all = append(s.all, taskListener{token: token, tell: tell})
}

// answered keeps the listener of a call while its task lives, and removes it
// when the result is no task.
func (s *taskListeners) answered(token string, result json.RawMessage, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.all, func(a taskListener) bool { return a.token == token })
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

// TaskLifetime returns how long to remember a task with a ttl in milliseconds:
// from a minute to a day. A missing, null or invalid ttl is a day (MCP
// 2025-11-25 basic/utilities/tasks).
func TaskLifetime(ttl json.RawMessage) time.Duration {
	ms, err := strconv.ParseFloat(string(ttl), 64)
	if err != nil || ms > float64(longestTask.Milliseconds()) {
		return longestTask
	}
	return max(time.Duration(ms)*time.Millisecond, shortestTask)
}

// find returns the listener of the task that came of the call with a token, nil
// for none.
func (s *taskListeners) find(token string, now time.Time) func(json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(a taskListener) bool { return !a.until.IsZero() && now.After(a.until) })
	for _, a := range s.all {
		if a.token == token {
			return a.tell
		}
	}
	return nil
}
