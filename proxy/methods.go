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
	action string // what the policy is asked, input.action; "" = the method's own name
	free   bool   // costs no quota
	about  string // member of params that says what a request is about, "" for none
	// find finds the server of a request and the policy's view of what it is
	// about; nil for lists, whose elements are judged one by one.
	find func(r *relayed, ctx context.Context) *Failure
	list string // member of the result that holds the list, "" for no list
	key  string // member of an element that names it
	// needs is the capability of servers that have such a list, or of clients that get
	// such a question.
	needs []string
}

// methods has every request of clients that is relayed, and lists those that are
// answered by Enumerate. A method without a row is refused: nothing is passed on
// because nobody thought of it. Methods of extensions are in the configuration.
var methods = map[string]method{
	"resources/read":        {about: "uri", find: (*relayed).findResource},
	"resources/subscribe":   {action: "resources/read", about: "uri", find: (*relayed).findResource},
	"resources/unsubscribe": {action: "resources/read", about: "uri", find: (*relayed).findResource, free: true},
	"prompts/get":           {about: "name", find: (*relayed).findPrompt},
	"completion/complete":   {about: "ref", find: (*relayed).findReference, free: true},
	"logging/setLevel":      {about: "level", find: (*relayed).findTools, free: true},

	"tasks/get":    {about: "taskId", find: (*relayed).findTask, free: true},
	"tasks/result": {about: "taskId", find: (*relayed).findTask, free: true},
	"tasks/update": {about: "taskId", find: (*relayed).findUpdated, free: true},
	"tasks/cancel": {about: "taskId", find: (*relayed).findTask, free: true},
}

var lists = map[string]method{
	"resources/list":           {action: "resources/read", list: aResource, key: "uri", needs: []string{"resources"}},
	"resources/templates/list": {action: "resources/read", list: aTemplate, key: "uriTemplate", needs: []string{"resources"}},
	"prompts/list":             {action: "prompts/get", list: aPrompt, key: "name", needs: []string{"prompts"}},
	"tasks/list":               {free: true, list: "tasks", key: "taskId", needs: []string{"tasks", "list"}},
}

// questions has every request of servers that is relayed to their clients.
var questions = map[string]method{
	"sampling/createMessage": {needs: []string{"sampling"}},
	"elicitation/create":     {needs: []string{"elicitation"}},
	"roots/list":             {needs: []string{"roots"}, free: true},

	"tasks/get":    {needs: []string{"tasks"}, free: true},
	"tasks/result": {needs: []string{"tasks"}, free: true},
	"tasks/list":   {needs: []string{"tasks", "list"}, free: true},
	"tasks/cancel": {needs: []string{"tasks", "cancel"}, free: true},
}

// Limited reports whether a rule for rates may name a method of MCP in place of a
// tool: it costs quota. Those of extensions do too.
func Limited(name string) bool {
	row, ok := methods[name]
	if !ok {
		row, ok = questions[name]
	}
	return ok && !row.free
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

// Levels are the severities of log messages, the least severe first (MCP
// server/utilities/logging, after RFC 5424). It must not be changed.
var Levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// readAbout reads from the params what a request is about, and reports false when
// they do not say it.
func (r *relayed) readAbout() bool {
	switch r.name = textMember(r.body, r.row.about); r.row.about {
	case "name":
		if args, ok := jsonrpc.Get(r.body, "arguments"); ok {
			r.about.Arguments = args
		}
		return r.name != "" && isObject(r.about.Arguments)
	case "ref": // MCP server/utilities/completion
		ref, _ := jsonrpc.Get(r.body, "ref")
		switch r.name = ""; textMember(ref, "type") {
		case "ref/prompt":
			r.name = textMember(ref, "name")
		case "ref/resource":
			r.name = textMember(ref, "uri")
		}
	case "taskId":
		r.about.Arguments = r.body
	case "level":
		return slices.Contains(Levels, r.name)
	}
	return r.name != ""
}

// lacks names the capability that a question needs and its client has not declared,
// "" when it has all. Tools in sampling are a capability of their own, a client that
// declares no mode of elicitation has forms, and so are answers by a task (MCP
// 2025-11-25).
func (r *relayed) lacks() string {
	kind, what, _ := strings.Cut(r.method, "/")
	has := func(key string) bool { _, ok := jsonrpc.Get(r.body, key); return ok }
	needs := [][]string{r.row.needs}
	switch mode := textMember(r.body, "mode"); {
	case kind == "sampling" && (has("tools") || has("toolChoice")):
		needs = append(needs, []string{kind, "tools"})
	case kind != "elicitation":
	case has("mode") && mode != "form":
		needs = append(needs, []string{kind, mode})
	case r.declared(kind, "url"):
		needs = append(needs, []string{kind, "form"})
	}
	if has("task") && (kind == "sampling" || kind == "elicitation") {
		needs = append(needs, []string{"tasks", "requests", kind, what})
	}
	for _, path := range needs {
		if !r.declared(path...) {
			return strings.Join(path, ".")
		}
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
