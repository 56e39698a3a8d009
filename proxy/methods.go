package proxy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// method is the row of a method that calls no tool.
type method struct {
	action string // what the policy is asked, input.action
	free   bool   // costs no quota
	// read reads from the params what a request is about; nil for nothing.
	read func(r *relayed) (ok bool)
	// find finds the server of a request and the policy's view of what it is
	// about; nil for lists, whose elements are judged one by one.
	find func(r *relayed, ctx context.Context) *Failure
	list string // member of the result that holds the list, "" for no list
	key  string // member of an element that names it
	// needs is the capability of servers that have such a list.
	needs []string
	// lacks names the capability that a question needs and its client has not
	// declared, "" when it has all.
	lacks func(r *relayed) string
}

// methods has every request of clients that is relayed. A method without a row is
// refused: nothing is passed on because nobody thought of it. Methods of extensions
// are in the configuration.
var methods = map[string]method{
	"resources/list":           {action: "resources/read", list: "resources", key: "uri", needs: []string{"resources"}},
	"resources/templates/list": {action: "resources/read", list: "resourceTemplates", key: "uriTemplate", needs: []string{"resources"}},
	"resources/read":           {action: "resources/read", read: (*relayed).readURI, find: (*relayed).findResource},
	"resources/subscribe":      {action: "resources/read", read: (*relayed).readURI, find: (*relayed).findResource},
	"resources/unsubscribe":    {action: "resources/read", read: (*relayed).readURI, find: (*relayed).findResource, free: true},
	"prompts/list":             {action: "prompts/get", list: "prompts", key: "name", needs: []string{"prompts"}},
	"prompts/get":              {action: "prompts/get", read: (*relayed).readPrompt, find: (*relayed).findPrompt},
	"completion/complete":      {action: "completion/complete", read: (*relayed).readReference, find: (*relayed).findReference, free: true},
	"logging/setLevel":         {action: "logging/setLevel", read: (*relayed).readLevel, find: (*relayed).findTools, free: true},

	"tasks/get":    {action: "tasks/get", read: (*relayed).readTaskID, find: (*relayed).findTask, free: true},
	"tasks/result": {action: "tasks/result", read: (*relayed).readTaskID, find: (*relayed).findTask, free: true},
	"tasks/update": {action: "tasks/update", read: (*relayed).readTaskID, find: (*relayed).findUpdated, free: true},
	"tasks/cancel": {action: "tasks/cancel", read: (*relayed).readTaskID, find: (*relayed).findTask, free: true},
	"tasks/list":   {action: "tasks/list", free: true, list: "tasks", key: "taskId", needs: []string{"tasks", "list"}},
}

// Limited reports whether a rule for rates may name a method of MCP in place of a
// tool: it costs quota. Those of extensions do too.
func Limited(name string) bool {
	for _, table := range []map[string]method{methods, questions} {
		if m, ok := table[name]; ok && !m.free && m.list == "" {
			return true
		}
	}
	return false
}

// questions has every request of servers that is relayed to their clients.
var questions = map[string]method{
	"sampling/createMessage": {action: "sampling/createMessage", lacks: lacksSampling},
	"elicitation/create":     {action: "elicitation/create", lacks: lacksElicitation},
	"roots/list":             {action: "roots/list", lacks: lacksRoots, free: true},

	"tasks/get":    {action: "tasks/get", lacks: lacksTasks(), free: true},
	"tasks/result": {action: "tasks/result", lacks: lacksTasks(), free: true},
	"tasks/list":   {action: "tasks/list", lacks: lacksTasks("list"), free: true},
	"tasks/cancel": {action: "tasks/cancel", lacks: lacksTasks("cancel"), free: true},
}

// clientNotices is every notification of clients that is passed to servers, and
// serverNotices every one of servers that is passed to clients: true for those
// about a task, which pass only when the session has it. All others are dropped,
// and those of servers counted. There is nothing in them for a policy to judge;
// those of extensions, which the configuration names, are judged when they come
// from clients.
var (
	clientNotices = map[string]bool{
		"notifications/roots/list_changed": false,
		"notifications/tasks/status":       true,
	}
	serverNotices = map[string]bool{
		"notifications/message":                false,
		"notifications/resources/updated":      false,
		"notifications/resources/list_changed": false,
		"notifications/prompts/list_changed":   false,
		"notifications/elicitation/complete":   false,
		"notifications/tasks/status":           true,
		"notifications/tasks":                  true,
	}
)

func (r *relayed) readURI() bool {
	r.name = textMember(r.body, "uri")
	return r.name != ""
}

func (r *relayed) readPrompt() bool {
	r.name = textMember(r.body, "name")
	if args, ok := jsonrpc.Get(r.body, "arguments"); ok {
		if !isObject(args) {
			return false
		}
		r.arguments = args
	}
	return r.name != ""
}

// readReference reads what a completion is for (MCP server/utilities/completion).
func (r *relayed) readReference() bool {
	ref, _ := jsonrpc.Get(r.body, "ref")
	switch textMember(ref, "type") {
	case "ref/prompt":
		r.name = textMember(ref, "name")
	case "ref/resource":
		r.name = textMember(ref, "uri")
	}
	return r.name != ""
}

// Levels are the severities of log messages, the least severe first (MCP
// server/utilities/logging, after RFC 5424). It must not be changed.
var Levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

func (r *relayed) readLevel() bool {
	r.name = textMember(r.body, "level")
	return slices.Contains(Levels, r.name)
}

// lacksSampling looks for what a sampling request needs: tools are a capability
// of their own (MCP 2025-11-25, client/sampling).
func lacksSampling(r *relayed) string {
	if !r.declared("sampling") {
		return "sampling"
	}
	for _, key := range []string{"tools", "toolChoice"} {
		if _, ok := jsonrpc.Get(r.body, key); ok && !r.declared("sampling", "tools") {
			return "sampling.tools"
		}
	}
	return r.lacksTask("sampling", "createMessage")
}

// lacksElicitation looks for the mode that is asked for. A client that declares
// no mode has forms (MCP 2025-11-25, client/elicitation).
func lacksElicitation(r *relayed) string {
	_, there := jsonrpc.Get(r.body, "mode")
	mode := textMember(r.body, "mode")
	switch {
	case !r.declared("elicitation"):
		return "elicitation"
	case mode == "url" && !r.declared("elicitation", "url"):
		return "elicitation.url"
	case there && mode != "form" && mode != "url":
		return "elicitation." + mode
	case mode != "url" && r.declared("elicitation", "url") && !r.declared("elicitation", "form"):
		return "elicitation.form"
	}
	return r.lacksTask("elicitation", "create")
}

func lacksRoots(r *relayed) string {
	if !r.declared("roots") {
		return "roots"
	}
	return ""
}

// lacksTasks looks for what a question about a task of the client's needs.
func lacksTasks(path ...string) func(*relayed) string {
	path = append([]string{"tasks"}, path...)
	return func(r *relayed) string {
		if !r.declared(path...) {
			return strings.Join(path, ".")
		}
		return ""
	}
}

// lacksTask looks for what a question needs that is to be answered by a task.
func (r *relayed) lacksTask(kind, request string) string {
	if _, ok := jsonrpc.Get(r.body, "task"); ok && !r.declared("tasks", "requests", kind, request) {
		return "tasks.requests." + kind + "." + request
	}
	return ""
}

// declared reports whether the client said that it can do what path names: each
// step is a member whose value is an object.
func (c *call) declared(path ...string) bool { return offers(c.in.Capabilities, path...) }

// offers reports whether capabilities, a client's or a server's, have what path
// names.
func offers(at json.RawMessage, path ...string) bool {
	for _, step := range path {
		inner, ok := jsonrpc.Get(at, step)
		if !ok || !isObject(inner) {
			return false
		}
		at = inner
	}
	return true
}
