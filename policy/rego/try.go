package rego

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/toolgate/toolgate/policy"
)

const (
	tryTimeout  = 5 * time.Second // for one sample: the first runs are the slow ones
	triedRoles  = 50
	triedTools  = 3 // of each role, besides one that nobody knows
	unknownTool = "toolgate-sample__unknown"
)

// odd are arguments as nobody should send them: a policy must answer them too.
var odd = []json.RawMessage{
	nil,
	json.RawMessage(`{"action":null,"amount":null,"model":null,"path":null,"query":null}`),
	json.RawMessage(`{"action":true,"amount":"5000","model":[],"path":{},"query":1}`),
	json.RawMessage(`{"action":"transfer","amount":[5000],"model":{"v":1},"path":0}`),
	json.RawMessage(`{"action":"transfer","amount":1e3,"model":"","path":"/","query":""}`),
}

// try evaluates sample calls and other requests of the roles in data.roles, and of a
// role that has no rights. Each must come to a decision or to undefined.
func (e *Engine) try(ctx context.Context) error {
	roles := append([]string{"toolgate-sample-role"}, e.roles[:min(len(e.roles), triedRoles)]...)
	for _, role := range roles {
		samples := slices.Clone(others)
		for _, tool := range slices.Concat(e.toolsOf(role), e.metered(), []string{unknownTool}) {
			samples = append(samples, policy.Input{
				Tool: policy.Tool{Server: "toolgate-sample", Name: tool, Exposed: tool}, Usage: e.unused(tool),
			})
		}
		for _, in := range samples {
			in.Principal = policy.Principal{Subject: "toolgate-sample", Roles: []string{role}}
			in.Request = policy.Request{ID: "1", Transport: "http", TraceID: "trc_sample", Time: time.Unix(0, 0)}
			for _, in.Arguments = range odd {
				if err := e.tryOne(ctx, role, &in); err != nil {
					return fmt.Errorf("trying policy: %w", err)
				}
			}
		}
	}
	return nil
}

func (e *Engine) tryOne(ctx context.Context, role string, in *policy.Input) (err error) {
	var known *pair
	what, hint := "asks for "+in.Action, "look at input.action, and test the type of an argument before using it"
	if in.Calls() {
		what, hint = fmt.Sprintf("calls %q", in.Tool.Exposed), "test the type of an argument before using it"
		if known, err = newPair(&in.Principal, &in.Tool); err != nil {
			return err
		}
	}
	if _, err := e.evaluate(ctx, in, known, max(tryTimeout, e.timeout)); err != nil && !errors.Is(err, errUndefined) {
		return fmt.Errorf("role %q %s with %s: %s (hint: %s)", role, what, in.Arguments, cause(err), hint)
	}
	return nil
}

// others are what a policy is asked about besides calls.
var others = []policy.Input{
	{Action: "resources/read", Resource: &policy.Resource{Server: "toolgate-sample", URI: "file:///"}},
	{Action: "prompts/get", Prompt: &policy.Prompt{Server: "toolgate-sample", Name: "sample"}},
	{Action: "completion/complete", Prompt: &policy.Prompt{Server: "toolgate-sample", Name: "sample"}},
	{Action: "logging/setLevel", Server: &policy.Server{Name: "toolgate-sample", Tools: []string{unknownTool}}},
	{Action: "tasks/get", Server: &policy.Server{Name: "toolgate-sample", Tools: []string{unknownTool}}},
	{Action: "sampling/createMessage", Server: &policy.Server{Name: "toolgate-sample", Asks: "sampling/createMessage"}},
	{Action: "elicitation/create", Server: &policy.Server{Name: "toolgate-sample", Asks: "elicitation/create"}},
	{Action: "roots/list", Server: &policy.Server{Name: "toolgate-sample", Asks: "roots/list"}},
	{Action: "toolgate-sample/thing", Server: &policy.Server{Name: "toolgate-sample"}},
}

// metered gives some of the tools that are counted.
func (e *Engine) metered() []string {
	names := slices.Sorted(maps.Keys(e.program.meters))
	return names[:min(len(names), triedTools)]
}

// unused is the usage of a tool that nobody has called; nil when it is not counted.
func (e *Engine) unused(tool string) map[string]policy.Reading {
	var usage map[string]policy.Reading
	for _, m := range e.program.meters[tool] {
		if usage == nil {
			usage = make(map[string]policy.Reading)
		}
		usage[m.Name] = policy.Reading{Sum: "0"}
	}
	return usage
}

// toolsOf gives some of the tools that data.roles names for role.
func (e *Engine) toolsOf(role string) []string {
	names := e.toolsGranted(role)
	return names[:min(len(names), triedTools)]
}

// toolsGranted gives the tools that data.roles names for role, sorted.
func (e *Engine) toolsGranted(role string) []string {
	r, _ := e.program.roles[role].(map[string]any)
	tools, _ := r["tools"].(map[string]any)
	return slices.Sorted(maps.Keys(tools))
}
