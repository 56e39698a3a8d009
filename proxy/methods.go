package proxy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// method is what the road knows of a method that calls no tool.
type method struct {
	action string // what the policy is asked, input.action
	free   bool   // costs no quota
	// take reads from the params what a request is about; nil for nothing.
	take func(p *passage) (ok bool)
	// find finds the server of a request and the policy's view of what it is
	// about; nil for lists, whose elements are judged one by one.
	find func(ctx context.Context, g *Gate, p *passage) *Failure
	list string // member of the result that holds the list, "" for no list
	key  string // member of an element that names it
	// needs is the capability of servers that have such a list.
	needs []string
	// lacks names the capability that a question needs and its client has not
	// declared, "" when it has all.
	lacks func(p *passage) string
}

// methods is every request of clients that is relayed. What has no row is
// refused: a method is never passed on because nobody thought of it. The rows of
// extensions stand in the configuration.
var methods = map[string]method{
	"resources/list":           {action: "resources/read", list: "resources", key: "uri", needs: []string{"resources"}},
	"resources/templates/list": {action: "resources/read", list: "resourceTemplates", key: "uriTemplate", needs: []string{"resources"}},
	"resources/read":           {action: "resources/read", take: (*passage).takeURI, find: findResource},
	"resources/subscribe":      {action: "resources/read", take: (*passage).takeURI, find: findResource},
	"resources/unsubscribe":    {action: "resources/read", take: (*passage).takeURI, find: findResource, free: true},
	"prompts/list":             {action: "prompts/get", list: "prompts", key: "name", needs: []string{"prompts"}},
	"prompts/get":              {action: "prompts/get", take: (*passage).takePrompt, find: findPrompt},
	"completion/complete":      {action: "completion/complete", take: (*passage).takeReference, find: findReference, free: true},
	"logging/setLevel":         {action: "logging/setLevel", take: (*passage).takeLevel, find: findTools, free: true},

	"tasks/get":    {action: "tasks/get", take: (*passage).takeTaskID, find: findTask, free: true},
	"tasks/result": {action: "tasks/result", take: (*passage).takeTaskID, find: findTask, free: true},
	"tasks/update": {action: "tasks/update", take: (*passage).takeTaskID, find: findUpdated, free: true},
	"tasks/cancel": {action: "tasks/cancel", take: (*passage).takeTaskID, find: findTask, free: true},
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

// questions is every request of servers that is taken to their clients.
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

func (p *passage) takeURI() bool {
	raw, _ := jsonrpc.Get(p.params, "uri")
	uri, ok := jsonrpc.Text(raw)
	p.name = uri
	return ok && uri != ""
}

func (p *passage) takePrompt() bool {
	raw, _ := jsonrpc.Get(p.params, "name")
	name, ok := jsonrpc.Text(raw)
	p.name = name
	if args, there := jsonrpc.Get(p.params, "arguments"); there {
		if len(args) == 0 || args[0] != '{' {
			return false
		}
		p.args = args
	}
	return ok && name != ""
}

// takeReference finds what a completion is for (MCP server/utilities/completion).
func (p *passage) takeReference() bool {
	ref, _ := jsonrpc.Get(p.params, "ref")
	member := func(key string) string {
		raw, _ := jsonrpc.Get(ref, key)
		text, _ := jsonrpc.Text(raw)
		return text
	}
	switch member("type") {
	case "ref/prompt":
		p.name = member("name")
	case "ref/resource":
		p.name = member("uri")
	}
	return p.name != ""
}

// Levels are the severities of log messages, the least severe first (MCP
// server/utilities/logging, after RFC 5424). It must not be changed.
var Levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

func (p *passage) takeLevel() bool {
	raw, _ := jsonrpc.Get(p.params, "level")
	p.name, _ = jsonrpc.Text(raw)
	return slices.Contains(Levels, p.name)
}

// lacksSampling looks for what a sampling request needs: tools are a capability
// of their own (MCP 2025-11-25, client/sampling).
func lacksSampling(p *passage) string {
	if !p.declared("sampling") {
		return "sampling"
	}
	for _, key := range []string{"tools", "toolChoice"} {
		if _, ok := jsonrpc.Get(p.params, key); ok && !p.declared("sampling", "tools") {
			return "sampling.tools"
		}
	}
	return p.lacksTask("sampling", "createMessage")
}

// lacksElicitation looks for the mode that is asked for. A client that declares
// no mode has forms (MCP 2025-11-25, client/elicitation).
func lacksElicitation(p *passage) string {
	raw, there := jsonrpc.Get(p.params, "mode")
	mode, _ := jsonrpc.Text(raw)
	switch {
	case !p.declared("elicitation"):
		return "elicitation"
	case mode == "url" && !p.declared("elicitation", "url"):
		return "elicitation.url"
	case there && mode != "form" && mode != "url":
		return "elicitation." + mode
	case mode != "url" && p.declared("elicitation", "url") && !p.declared("elicitation", "form"):
		return "elicitation.form"
	}
	return p.lacksTask("elicitation", "create")
}

func lacksRoots(p *passage) string {
	if !p.declared("roots") {
		return "roots"
	}
	return ""
}

// lacksTasks looks for what a question about a task of the client's needs.
func lacksTasks(path ...string) func(*passage) string {
	path = append([]string{"tasks"}, path...)
	return func(p *passage) string {
		if !p.declared(path...) {
			return strings.Join(path, ".")
		}
		return ""
	}
}

// lacksTask looks for what a question needs that is to be answered by a task.
func (p *passage) lacksTask(kind, request string) string {
	if _, ok := jsonrpc.Get(p.params, "task"); ok && !p.declared("tasks", "requests", kind, request) {
		return "tasks.requests." + kind + "." + request
	}
	return ""
}

// declared reports whether the client said that it can do what path names: each
// step is a member whose value is an object.
func (p *passage) declared(path ...string) bool { return offers(p.in.Capabilities, path...) }

// offers reports whether capabilities, a client's or a server's, have what path
// names.
func offers(at json.RawMessage, path ...string) bool {
	for _, step := range path {
		inner, ok := jsonrpc.Get(at, step)
		if !ok || len(inner) == 0 || inner[0] != '{' {
			return false
		}
		at = inner
	}
	return true
}
