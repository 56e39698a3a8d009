package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// maxTitleBytes bounds the title of a tool in a list.
const maxTitleBytes = 256

// maxAccess bounds the roles and tokens that the policy is asked about for one tool.
const maxAccess = 200

// toolDesk is what people see of the tools that serve. It implements console.Tools.
type toolDesk struct{ *serving }

// pinKey names a pin.
type pinKey struct {
	server, tool string
	condition    upstream.Condition
}

// pins returns what is accepted of each tool.
func (d toolDesk) pins(ctx context.Context) (map[pinKey]registry.Pin, error) {
	list, err := d.upstreams.Pins().List(ctx)
	all := make(map[pinKey]registry.Pin, len(list))
	for _, p := range list {
		all[pinKey{p.Server, p.Tool, p.Condition}] = p
	}
	return all, err
}

// List implements console.Tools.
func (d toolDesk) List(ctx context.Context) ([]console.Tool, error) {
	pins, err := d.pins(ctx)
	if err != nil {
		return nil, err
	}
	var all []console.Tool
	for _, t := range d.upstreams.Catalogue().Definitions() {
		all = append(all, d.shown(t, pins))
	}
	return all, nil
}

// shown returns a tool as people see it in a list.
func (d toolDesk) shown(t *registry.Tool, pins map[pinKey]registry.Pin) console.Tool {
	title, _ := jsonrpc.TextAt(t.Definition, "title")
	out := console.Tool{
		Server: t.Server, Name: t.Name, Exposed: t.Exposed, Title: text.Clip(title, maxTitleBytes, "…"), Risk: t.Risk,
		Digest: t.Fingerprint, State: console.ToolServed, Reason: t.Quarantine,
	}
	if t.Condition != "" {
		out.For = t.Condition.Words()
	}
	switch {
	case t.Withheld():
		out.State = console.ToolWithheld
	case t.Quarantine != "":
		out.State = console.ToolQuarantined
	}
	p, known := pins[pinKey{t.Server, t.Name, t.Condition}]
	if !known || d.pinned(t.Server) == config.PinOff {
		return out
	}
	out.Pin = &console.Pin{Digest: p.Accepted, Since: p.AcceptedAt, By: p.AcceptedBy}
	if p.Offered == t.Fingerprint {
		out.Pin.Refused = (*console.Refusal)(p.Refused)
	}
	return out
}

// pinned returns how the definitions of a server are pinned.
func (d toolDesk) pinned(server string) config.Pin {
	if s := d.Config().Server(server); s != nil {
		return s.Pin
	}
	return config.PinOff
}

// Show implements console.Tools.
func (d toolDesk) Show(ctx context.Context, q console.ToolQuery) (console.ToolDetail, error) {
	pins, err := d.pins(ctx)
	if err != nil {
		return console.ToolDetail{}, err
	}
	var t *registry.Tool
	var others []console.Tool
	for _, one := range d.upstreams.Catalogue().Definitions() {
		switch {
		case one.Server != q.Server || one.Name != q.Name:
		case t == nil && (q.Digest == "" || q.Digest == one.Fingerprint):
			t = one
		default:
			others = append(others, d.shown(one, pins))
		}
	}
	if t == nil {
		return console.ToolDetail{}, console.ErrNoTool
	}
	out := console.ToolDetail{Tool: d.shown(t, pins), Others: others, Annotations: t.Annotations, Access: []console.Access{}}
	if json.Valid(t.Definition) {
		out.Definition = t.Definition
		out.InputSchema, _ = jsonrpc.Get(t.Definition, "inputSchema")
		out.OutputSchema, _ = jsonrpc.Get(t.Definition, "outputSchema")
	}
	both := Definitions{}
	if both.Accepted, both.Offered, err = d.upstreams.Pins().Diff(ctx, t.Server, t.Name, t.Fingerprint); err == nil && out.Pin != nil && both.Accepted != nil && !bytes.Equal(both.Accepted, both.Offered) {
		out.Accepted, out.Difference = both.Accepted, both.Diff()
	}
	if q.Principal != "" {
		if out.Principal, err = d.explain(ctx, t, q); err != nil {
			return out, err
		}
	}
	out.Access, out.Unasked = d.access(ctx, t)
	return out, nil
}

// access returns what the policy says to each role and each configured token about a tool, and how
// many it was not asked about, because there are many or it takes long.
func (d toolDesk) access(ctx context.Context, t *registry.Tool) (all []console.Access, unasked int) {
	ctx, stop := context.WithTimeout(ctx, sightTime)
	defer stop()
	cfg := d.Config()
	var callers []policy.Principal
	for _, role := range RolesOf(cfg, d.policy.current(), d.role) {
		callers = append(callers, policy.Principal{Roles: []string{role}})
	}
	for _, token := range cfg.Identity.Tokens {
		callers = append(callers, policy.Principal{Subject: token.Subject, Roles: token.Roles, Person: token.Person, Tenant: token.Tenant})
	}
	all = []console.Access{}
	for i, who := range callers {
		one, err := d.ask(ctx, t, who)
		if ctx.Err() != nil || i == maxAccess {
			return all, len(callers) - i
		}
		if err != nil {
			one.May, one.Why = workbench.Depends, rego.Cause(err)
		}
		all = append(all, one)
	}
	return all, 0
}

// ask returns what the policy says to a caller about a tool; one without a subject stands for all with
// its roles.
func (d toolDesk) ask(ctx context.Context, t *registry.Tool, who policy.Principal) (console.Access, error) {
	engine, about := d.policy.current(), PolicyTools([]*registry.Tool{t})
	cell, err := workbench.CellOf(ctx, engine, who, about[0])
	out := console.Access{Cell: cell}
	if err != nil {
		return out, err
	}
	who.Subject = cmp.Or(who.Subject, "somebody")
	seen, err := engine.Seen(ctx, who, about)
	out.Listed = err == nil && seen[0] && t.Quarantine == ""
	return out, err
}

// explain returns why a person does or does not find a tool in a list.
func (d toolDesk) explain(ctx context.Context, t *registry.Tool, q console.ToolQuery) (*console.Access, error) {
	cfg := d.Config()
	who := advice.Principal(cfg, policy.Principal{Subject: q.Principal, Roles: q.Roles})
	if who.Subject == identity.LocalSubject && admitsLocal(cfg) && who.Roles == nil {
		who.Roles = []string{d.role}
	}
	if who.Roles == nil {
		return nil, console.ErrNobody
	}
	out, err := d.ask(ctx, t, who)
	if err != nil || out.Listed && !t.Own() {
		return &out, err
	}
	out.Hint = fmt.Sprintf("toolgate policy explain --subject %s --as %s %s", who.Subject, strings.Join(who.Roles, ","), t.Exposed)
	switch {
	case t.Quarantine != "":
		out.Reason, out.Hint = t.Refusal(), ""
	case out.Listed:
		out.Reason = "the server offers it to some clients only: " + t.Condition.Words()
	default:
		about := PolicyTools([]*registry.Tool{t})[0]
		if out.Reason = whyHidden(ctx, d.policy.current(), who, about); out.Reason == "" {
			out.Reason = "the policy hides it"
		}
	}
	return &out, nil
}

// Judge implements console.Tools.
func (d toolDesk) Judge(ctx context.Context, v console.Verdict) error {
	if d.pinned(v.Server) == config.PinStrict && !v.Refuse {
		return console.ErrLocked
	}
	err := d.upstreams.Pins().Judge(ctx, registry.Verdict{
		Server: v.Server, Tool: v.Name, Fingerprint: v.Digest, By: v.By, Refuse: v.Refuse, Reason: v.Reason,
		Record: func(all []registry.Acceptance) error {
			e := AcceptedRecord(v.By, all).Event
			return v.Record(e.Added, e.Removed)
		},
	})
	switch {
	case errors.Is(err, registry.ErrNoPin):
		return console.ErrNoTool
	case errors.Is(err, registry.ErrNoOffer):
		return console.ErrJudged
	case errors.Is(err, registry.ErrOtherOffer):
		return console.ErrOtherDefinition
	}
	return err
}

// Definitions are the accepted and the offered definition of a tool.
type Definitions struct {
	Accepted json.RawMessage `json:"accepted"`
	Offered  json.RawMessage `json:"offered"`
}

// Diff returns the difference as text.
func (d Definitions) Diff() string {
	return string(diff.Diff("accepted", Lines(d.Accepted), "offered", Lines(d.Offered)))
}

// Lines returns a definition laid out for comparison. What cannot be laid out is returned as it is.
func Lines(definition json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Indent(&b, definition, "", "  ") != nil {
		return append(slices.Clone(definition), '\n')
	}
	return append(b.Bytes(), '\n')
}
