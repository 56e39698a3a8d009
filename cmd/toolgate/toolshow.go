package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// shownTool is the report of tool show.
type shownTool struct {
	Name string `json:"name"` // as agents call it
	registry.Pin
	State      string          `json:"state"`      // accepted, changed, or new: never accepted
	Definition json.RawMessage `json:"definition"` // accepted, or of a new tool the offered one
	Roles      []roleSight     `json:"roles"`
}

// roleSight says whether callers with a role see a tool, and what the policy decides on
// a call without arguments.
type roleSight struct {
	Role    string        `json:"role"`
	Visible bool          `json:"visible"`
	Effect  policy.Effect `json:"effect"`
	Rule    string        `json:"rule,omitempty"`
	Reason  string        `json:"reason,omitempty"`
}

func toolShow(e *env) *cobra.Command {
	return command("show TOOL", "show a tool's definition, its pin and the roles that see it", func(ctx context.Context, args []string) error { return e.showTool(ctx, args[0]) })
}

func (e *env) showTool(ctx context.Context, name string) error {
	engine, cfg, err := e.openPolicy(ctx, "")
	if err != nil {
		return err
	}
	var out *shownTool
	if err := e.withPins(ctx, func(p *registry.Pins) error {
		out, err = findTool(ctx, p, cfg, name)
		return err
	}); err != nil {
		return err
	}
	asked := toolNamed(cfg, name)
	var definition struct{ Annotations json.RawMessage }
	if err := json.Unmarshal(out.Definition, &definition); err != nil {
		return fmt.Errorf("reading the definition of %s: %w", name, err)
	}
	asked.Server, asked.Name = out.Server, out.Tool
	asked.Annotations, asked.Fingerprint = definition.Annotations, out.Accepted
	for _, role := range app.RolesOf(cfg, engine, e.role) {
		sight, err := sightOf(ctx, engine, app.CallerWith(cfg, role, e.role), asked)
		if err != nil {
			return err
		}
		sight.Visible = sight.Visible && out.State == "accepted" // quarantine hides from everybody
		out.Roles = append(out.Roles, sight)
	}
	return e.Print("tool", out)
}

// findTool returns the tool whose exposed name is name, from the definitions that the
// state directory keeps. It keeps none for a server with pin off.
func findTool(ctx context.Context, p *registry.Pins, cfg *config.Config, name string) (*shownTool, error) {
	pins, err := p.List(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range cfg.Servers {
		for _, pin := range pins {
			if pin.Server != s.Name || s.Disabled || s.Pin == config.PinOff || !s.Offers(pin.Tool) {
				continue
			}
			if s.Prefix+pin.Tool == name {
				return describePin(ctx, p, pin, name)
			}
			names = append(names, s.Prefix+pin.Tool)
		}
	}
	hint := cmp.Or(didYouMean(name, names), hintMark+"toolgate tool list shows the names; nothing is kept of servers with \"pin\": \"off\"")
	return nil, usage(fmt.Errorf("no definition of a tool %q is kept%s", name, hint))
}

// describePin returns a pin with the definition that is accepted, or else offered.
func describePin(ctx context.Context, p *registry.Pins, pin registry.Pin, name string) (*shownTool, error) {
	accepted, offered, err := p.Diff(ctx, pin.Server, pin.Tool)
	if err != nil {
		return nil, err
	}
	out := &shownTool{Name: name, Pin: pin, State: "accepted", Definition: accepted, Roles: []roleSight{}}
	switch {
	case pin.Accepted == "":
		out.State, out.Definition = "new", offered
	case pin.Offered != "":
		out.State = "changed"
	}
	return out, nil
}

// sightOf asks the policy about a caller and a tool.
func sightOf(ctx context.Context, engine *rego.Engine, who policy.Principal, t policy.Tool) (roleSight, error) {
	out := roleSight{Role: who.Roles[0]}
	seen, err := engine.Seen(ctx, who, []policy.Tool{t})
	if err != nil {
		return out, err
	}
	out.Visible = seen[0]
	d, err := engine.Decide(ctx, &policy.Input{
		Principal: who, Tool: t, Arguments: json.RawMessage("{}"), Usage: policy.Unused(engine.Meters(t)),
		Request: policy.Request{ID: "1", Transport: "cli", Time: time.Now().UTC()},
	})
	out.Effect, out.Rule, out.Reason = d.Effect, d.Rule, d.Reason
	return out, err
}

// Layout returns the definition as people read it.
func (t *shownTool) Layout() string { return string(lines(t.Definition)) }
