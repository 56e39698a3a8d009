package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// policyCells are the flags of policy matrix.
type policyCells struct {
	path         string
	roles, tools []string
	live         bool
}

func policyMatrix(e *env) *cobra.Command {
	var flags policyCells
	c := &cobra.Command{
		Use: "matrix", Short: "say which role may call which tool, and when", Args: cobra.NoArgs,
		Long: `matrix reads from the policy itself, before any call, what each role of data.roles may
do with each tool: always, never, allowed when …, held when …. Tools are those that
the state directory knows, those that data.roles names, and with --live what the
upstreams list. A name alone is an argument of the call. What the policy could not
be split for says "depends" and why; -o json has the conditions whole.`,
		Example: `  toolgate policy matrix
  toolgate policy matrix --path my-policy --roles treasurer -o markdown
  toolgate policy matrix --tools manage_wallet -o json`,
		Annotations: map[string]string{outputs: "markdown"},
		RunE:        func(c *cobra.Command, _ []string) error { return e.matrix(c.Context(), flags) },
	}
	policyPath(c, &flags.path)
	f := c.Flags()
	f.StringSliceVar(&flags.roles, "roles", nil, "only these roles, also such as data.roles does not name")
	f.StringSliceVar(&flags.tools, "tools", nil, "only these tools, also such as nobody has listed")
	f.BoolVar(&flags.live, "live", false, "start the upstreams and ask them for their tools")
	return c
}

// cell is what one role may do with one tool.
type cell struct {
	Role string `json:"role"`
	Tool string `json:"tool"`
	May  string `json:"may"` // always, never, sometimes, depends
	// Branches are the verdicts with their conditions; of what is never allowed, the denials.
	Branches []branch `json:"branches,omitempty"`
	Why      string   `json:"why,omitempty"` // of depends: why it is not known
}

// branch is one verdict and when it holds.
type branch struct {
	Effect policy.Effect `json:"effect"`
	Rule   string        `json:"rule,omitempty"`
	Roles  []string      `json:"approvers,omitempty"` // of a hold
	When   []string      `json:"when,omitempty"`      // all must hold; none = always
}

const (
	always    = "always"
	never     = "never"
	sometimes = "sometimes"
	depends   = "depends"
)

func (e *env) matrix(ctx context.Context, flags policyCells) error {
	options, cfg, err := e.about(ctx, flags.path)
	if err != nil {
		return err
	}
	engine, err := rego.Load(ctx, options)
	if err != nil {
		return e.unservable(err, options.Path)
	}
	tools, err := e.knownTools(ctx, cfg, engine, flags.live)
	if err != nil {
		return err
	}
	if len(flags.tools) > 0 {
		known := tools
		tools = nil
		for _, name := range flags.tools {
			t := toolNamed(cfg, name)
			if i := slices.IndexFunc(known, func(t policy.Tool) bool { return t.Exposed == name }); i >= 0 {
				t = known[i]
			}
			tools = append(tools, t)
		}
	}
	roles := engine.Roles()
	if len(flags.roles) > 0 {
		roles = flags.roles
	}
	if len(roles) == 0 || len(tools) == 0 {
		return usage(fmt.Errorf("the policy names %d roles and %d tools: there is nothing to show\nhint: --roles and --tools name some", len(roles), len(tools)))
	}
	cells := []cell{}
	for _, role := range roles {
		for _, t := range tools {
			o, err := engine.Outline(ctx, sample(role), t)
			if err != nil {
				return err
			}
			cells = append(cells, cellOf(role, t.Exposed, o))
		}
	}
	return e.sayMatrix(engine, cells)
}

func cellOf(role, tool string, o rego.Outline) cell {
	c := cell{Role: role, Tool: tool, May: kindOf(o), Why: o.Whole}
	for _, b := range o.Branches {
		if b.Decision.Effect == policy.Deny && c.May != never {
			continue // all else is denied
		}
		out := branch{Effect: b.Decision.Effect, Rule: b.Decision.Rule, When: b.When}
		if b.Decision.Approval != nil {
			out.Roles = b.Decision.Approval.Roles
		}
		c.Branches = append(c.Branches, out)
	}
	slices.SortStableFunc(c.Branches, func(a, b branch) int { return strings.Compare(string(a.Effect), string(b.Effect)) })
	return c
}

// kindOf is an Outline in one word.
func kindOf(o rego.Outline) string {
	passing := slices.DeleteFunc(slices.Clone(o.Branches), func(b rego.Branch) bool { return !passes(b) })
	unconditional := func(b rego.Branch) bool { return b.Decision.Effect == policy.Allow && len(b.When) == 0 }
	switch {
	case o.Whole != "":
		return depends
	case len(passing) == 0:
		return never
	case slices.ContainsFunc(passing, unconditional):
		return always
	}
	return sometimes
}

// summary is an Outline on one line.
func summary(o rego.Outline) string {
	return strings.Join(cellOf("", "", o).lines(), "; ")
}

// lines is the cell as people read it, one line for each way to get through.
func (c cell) lines() []string {
	switch c.May {
	case depends:
		return []string{depends + ": " + c.Why}
	case always, never:
		return []string{c.May}
	}
	var out []string
	for _, b := range c.Branches {
		text := "allowed"
		if b.Effect == policy.Hold {
			text = "held for " + strings.Join(b.Roles, " or ")
		}
		if when := plainly(b.When); len(when) > 0 {
			text += " when " + strings.Join(when, " and ")
		}
		out = append(out, text)
	}
	return out
}

var typeTest = regexp.MustCompile(`^is_[a-z]+\((.+)\)$`)

// plainly are conditions as people read them: arguments by their names alone, and
// without tests of a type where more is said of the same thing.
func plainly(when []string) []string {
	var out []string
	for i, w := range when {
		if m := typeTest.FindStringSubmatch(w); m != nil && slices.ContainsFunc(slices.Delete(slices.Clone(when), i, i+1), func(other string) bool { return strings.HasPrefix(other, m[1]+" ") }) {
			continue
		}
		out = append(out, strings.ReplaceAll(w, "input.arguments.", ""))
	}
	return out
}

func (e *env) sayMatrix(engine *rego.Engine, cells []cell) error {
	switch e.output {
	case "json":
		return e.json(map[string]any{"revision": engine.Revision(), "cells": cells})
	case "markdown":
		return e.markdownMatrix(engine, cells)
	}
	rows := [][]string{}
	for _, c := range cells {
		role, tool := c.Role, c.Tool
		for _, line := range c.lines() {
			rows = append(rows, []string{role, tool, line})
			role, tool = "", ""
		}
	}
	return e.table([]string{"ROLE", "TOOL", "MAY CALL"}, rows)
}

// markdownMatrix prints roles down and tools across, conditions below.
func (e *env) markdownMatrix(engine *rego.Engine, cells []cell) error {
	var roles, tools []string
	at := map[[2]string]cell{}
	for _, c := range cells {
		if !slices.Contains(roles, c.Role) {
			roles = append(roles, c.Role)
		}
		if !slices.Contains(tools, c.Tool) {
			tools = append(tools, c.Tool)
		}
		at[[2]string{c.Role, c.Tool}] = c
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Policy `%s`\n\n| role |", short(engine.Revision()))
	for _, t := range tools {
		fmt.Fprintf(&b, " %s |", inCode(t))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(tools)) + "\n")
	var notes []string
	for _, role := range roles {
		fmt.Fprintf(&b, "| %s |", inCode(role))
		for _, t := range tools {
			c := at[[2]string{role, t}]
			text := c.May
			if c.May == sometimes || c.May == depends {
				notes = append(notes, fmt.Sprintf("%d. %s, %s:%s", len(notes)+1, inCode(role), inCode(t), c.markdown()))
				text = fmt.Sprintf("%s (%d)", c.May, len(notes))
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteString("\n")
	}
	if len(notes) > 0 {
		b.WriteString("\n" + strings.Join(notes, "\n") + "\n")
	}
	_, err := fmt.Fprint(e.out, b.String())
	return err
}

// markdown is the cell's conditions, as a list within a list.
func (c cell) markdown() string {
	if c.May == depends {
		return " " + inCode(c.Why)
	}
	var out strings.Builder
	for _, b := range c.Branches {
		verb := "allowed"
		if b.Effect == policy.Hold {
			verb = "held for " + strings.Join(b.Roles, ", ")
		}
		when := ""
		for i, w := range plainly(b.When) {
			when += map[bool]string{true: " when ", false: " and "}[i == 0] + inCode(w)
		}
		fmt.Fprintf(&out, "\n   - %s%s (%s)", verb, when, b.Rule)
	}
	return out.String()
}

// inCode is text as code in a cell of Markdown.
func inCode(text string) string {
	text = strings.ReplaceAll(oneLine(text), "|", `\|`)
	if strings.Contains(text, "`") {
		return "`` " + text + " ``"
	}
	return "`" + text + "`"
}
