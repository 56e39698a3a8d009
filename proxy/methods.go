package proxy

import (
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
)

// method is what the road knows of a method that calls no tool.
type method struct {
	action string // what the policy is asked, input.action; "" = it is not asked
	free   bool   // costs no quota
	// subject finds what a request is about in its params: a resource's uri, a
	// prompt's name, a server. Nil for lists, whose elements are judged one by one.
	subject func(p *passage) (ok bool)
	list    string // member of the result that holds the list, "" for no list
	key     string // member of an element that names it
	// lacks names the capability that a question needs and its client has not
	// declared, "" when it has all.
	lacks func(p *passage) string
}

// methods is every request of clients that is relayed. What has no row is
// refused: a method is never passed on because nobody thought of it. The rows of
// extensions stand in the configuration.
var methods = map[string]method{
	"resources/list":           {action: "resources/read", list: "resources", key: "uri"},
	"resources/templates/list": {action: "resources/read", list: "resourceTemplates", key: "uriTemplate"},
	"resources/read":           {action: "resources/read", subject: (*passage).takeResource},
	"resources/subscribe":      {action: "resources/read", subject: (*passage).takeResource},
	"resources/unsubscribe":    {action: "resources/read", subject: (*passage).takeResource, free: true},
	"prompts/list":             {action: "prompts/get", list: "prompts", key: "name"},
	"prompts/get":              {action: "prompts/get", subject: (*passage).takePrompt},
	"completion/complete":      {action: "completion/complete", subject: (*passage).takeReference, free: true},
	"logging/setLevel":         {action: "logging/setLevel", subject: (*passage).takeLevel, free: true},
}

// questions is every request of servers that is taken to their clients.
var questions = map[string]method{
	"sampling/createMessage": {action: "sampling/createMessage", lacks: lacksSampling},
	"elicitation/create":     {action: "elicitation/create", lacks: lacksElicitation},
	"roots/list":             {action: "roots/list", lacks: lacksRoots, free: true},
}

// notice is what the gate knows of a notification.
type notice struct {
	action string // what the policy is asked; "" = it is not: there is nothing in it to judge
}

// clientNotices is every notification of clients that is passed to servers, and
// serverNotices every one of servers that is passed to clients. All others are
// dropped, and those of servers counted.
var (
	clientNotices = map[string]notice{
		"notifications/roots/list_changed": {},
	}
	serverNotices = map[string]notice{
		"notifications/message":                {},
		"notifications/resources/updated":      {},
		"notifications/resources/list_changed": {},
		"notifications/prompts/list_changed":   {},
		"notifications/elicitation/complete":   {},
	}
)

func (p *passage) takeResource() bool {
	raw, _ := jsonrpc.Get(p.params, "uri")
	uri, ok := jsonrpc.Text(raw)
	p.name, p.resource = uri, &policy.Resource{Server: p.server, URI: uri}
	return ok && uri != ""
}

func (p *passage) takePrompt() bool {
	raw, _ := jsonrpc.Get(p.params, "name")
	name, ok := jsonrpc.Text(raw)
	p.name, p.prompt = name, &policy.Prompt{Server: p.server, Name: name}
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
		p.prompt = &policy.Prompt{Server: p.server, Name: p.name}
	case "ref/resource":
		p.name = member("uri")
		p.resource = &policy.Resource{Server: p.server, URI: p.name}
	}
	return p.name != ""
}

// levels are the severities of log messages (MCP server/utilities/logging).
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

func (p *passage) takeLevel() bool {
	raw, _ := jsonrpc.Get(p.params, "level")
	p.name, _ = jsonrpc.Text(raw)
	p.args, p.whole = p.params, &policy.Server{Name: p.server}
	return slices.Contains(levels, p.name)
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

// lacksTask looks for what a question needs that is to be answered by a task.
func (p *passage) lacksTask(kind, request string) string {
	if _, ok := jsonrpc.Get(p.params, "task"); ok && !p.declared("tasks", "requests", kind, request) {
		return "tasks.requests." + kind + "." + request
	}
	return ""
}

// declared reports whether the client said that it can do what path names: each
// step is a member whose value is an object.
func (p *passage) declared(path ...string) bool {
	at := p.in.Capabilities
	for _, step := range path {
		inner, ok := jsonrpc.Get(at, step)
		if !ok || len(inner) == 0 || inner[0] != '{' {
			return false
		}
		at = inner
	}
	return true
}
