package upstream

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// maxTaskListeners bounds the task listeners of one connection. Beyond it the
// one that was not used for longest is dropped.
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
	tell  func(json.RawMessage)
	until time.Time // zero while the call is not answered
}

// keepListener keeps the listener of an answered call while its task lives, and
// removes it when the result is no task.
func (c *conn) keepListener(token string, tell func(json.RawMessage), result json.RawMessage) {
	if task, ok := jsonrpc.Get(result, "task"); ok {
		ttl, _ := jsonrpc.Get(task, "ttl")
		c.taskListeners.Add(token, taskListener{tell, c.opts.Now().Add(TaskLifetime(ttl))})
	} else {
		c.taskListeners.Remove(token)
	}
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
