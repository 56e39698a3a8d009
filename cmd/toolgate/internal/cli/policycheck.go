package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

func policyCheck(e *env) *cobra.Command {
	var path, subject string
	var live, notes bool
	var strict strictness
	c := withForms(e.printing("check [POLICY]", "compile the policy, try it on samples, and look for mistakes", "policy-check", func(ctx context.Context, args []string) (any, error) {
		path := append(args, path)[0]
		options, cfg, err := policySource(ctx, e, path)
		if err != nil {
			return nil, err
		}
		engine, slips, err := rego.Check(ctx, options)
		if err != nil {
			return nil, e.unservable(err, options.Path)
		}
		v := &policyView{engine, e, path, cfg}
		tools, err := v.tools(ctx, live)
		if err != nil {
			return nil, err
		}
		sight := survey(ctx, e, engine, v.callers(subject, nil), tools)
		found := append(placed(slips, options.Path), sight.found...)
		// A configuration is about the policy at path if somebody named the configuration, or that policy serves.
		absolute, err := filepath.Abs(path)
		if concerns := path == "" || e.config != defaultConfig || err == nil && absolute == cfg.Policy.Path; !concerns {
			cfg = nil
		}
		found = append(found, app.UnknownRoles(cfg, engine)...)
		if cfg != nil {
			tools = slices.DeleteFunc(tools, func(t policy.Tool) bool { return !live || t.Fingerprint == "" }) // not listed by a server
			found = append(found, app.UnknownTools(cfg, engine, tools)...)
		}
		failed := strict.refuse(found)
		out := checked{OK: failed == nil, Revision: engine.Revision(), Roles: engine.Roles(), Findings: found, surveyed: sight, Visible: engine.DefinesVisible()}
		for _, f := range found {
			if f.Level == levelNote && !notes {
				out.Notes++
			}
		}
		return out, failed
	}), "github")
	policyPath(c, &path)
	c.Flags().StringVar(&subject, "subject", "", "look at the tools as this `SUBJECT` with the roles of its token (default: each role, subject unknown)")
	c.Flags().BoolVar(&live, "live", false, "start the upstreams and ask them for their tools")
	strict.bind(c)
	c.Flags().BoolVar(&notes, "notes", false, "print notes on style, and not only their number")
	return c
}

// checked is the report of policy check.
type checked struct {
	OK       bool      `json:"ok"`
	Revision string    `json:"revision"`
	Roles    []string  `json:"roles"`
	Findings []finding `json:"findings"`
	surveyed
	Visible bool `json:"visible"`

	Notes int `json:"-"` // that the table leaves out
}

// surveyTime bounds how long callers and tools are looked at.
const surveyTime = 20 * time.Second

// surveyed is what a policy says about callers and tools before any call.
type surveyed struct {
	Pairs int         `json:"pairs"`
	Whole []wholePair `json:"whole"`

	found []finding
}

// A wholePair is a role and a tool whose conditions are unknown.
type wholePair struct {
	Role string `json:"role"`
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

// survey looks at every caller with every tool.
func survey(ctx context.Context, e *env, engine *rego.Engine, callers []policy.Principal, tools []policy.Tool) surveyed {
	ctx, stop := context.WithTimeout(ctx, surveyTime)
	defer stop()
	bar := e.progress(false)
	defer bar.End()
	s := surveyed{Whole: []wholePair{}}
	for _, t := range tools {
		var covered bool
		var hidden, useless []string // from callers who could be allowed, for those who never are
		for _, who := range callers {
			c, err := cellOf(ctx, engine, who, t)
			if ctx.Err() != nil {
				s.found = append(s.found, finding{Level: levelNote, Code: "survey-cut", Message: fmt.Sprintf("stopped after %v and %s of a role and a tool, which are not all", surveyTime, text.Count(s.Pairs, "pair"))})
				return s
			}
			if err != nil {
				c.May, c.Why = depends, err.Error()
			}
			if s.Pairs++; c.May == depends {
				s.Whole = append(s.Whole, wholePair{c.Caller(), t.Exposed, c.Why})
			}
			covered = covered || c.May != never
			switch shown, may := sees(ctx, engine, who, t, c.May); {
			case shown && !may:
				useless = append(useless, c.Caller())
			case may && !shown:
				hidden = append(hidden, c.Caller())
			}
			all := len(callers) * len(tools)
			bar.Update(int64(s.Pairs), int64(all), func() string { return pairsText(s.Pairs, all) })
		}
		warn := func(applies bool, code, message, hint string) {
			if applies {
				s.found = append(s.found, finding{Level: levelWarning, Code: code, Where: "tool " + t.Exposed, Message: message, Hint: hint})
			}
		}
		warn(!covered, "uncovered-tool", "no role may call it: every call is denied", "give it to a role, or leave it out of what the server exposes")
		warn(hidden != nil, "hidden-tool", fmt.Sprintf("visible hides it from %s, who could be allowed to call it", firstThree(hidden)), "let visible be true for every caller whom some call may be allowed")
		warn(useless != nil, "useless-tool", fmt.Sprintf("%s can see it, and every call is denied", firstThree(useless)), "let visible be false for callers who are always denied")
	}
	return s
}

// sees reports whether the policy shows a tool to a caller, and whether the caller
// could be allowed to call it. Both are true where that is not known.
func sees(ctx context.Context, engine *rego.Engine, who policy.Principal, t policy.Tool, kind string) (shown, may bool) {
	if !engine.DefinesVisible() {
		return true, true
	}
	shown, err := engine.Visible(ctx, sample(who), t)
	if err != nil {
		return true, true
	}
	if may = kind != never; may && !shown {
		o, err := workbench.OutlineOf(ctx, engine, sample(who), t)
		may = err == nil && kindOf(o) != never
	}
	return shown, may
}

// Reasons says why conditions are not known, and for which pairs, one line for each
// reason.
func (s surveyed) Reasons() []string {
	pairs, lines := map[string][]string{}, []string{}
	for _, w := range s.Whole {
		pairs[w.Why] = append(pairs[w.Why], w.Role+" "+w.Tool)
	}
	for _, why := range slices.Sorted(maps.Keys(pairs)) {
		lines = append(lines, fmt.Sprintf("%s: %s", firstThree(pairs[why]), why))
	}
	return lines
}

// firstThree names the first three of a list.
func firstThree(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}

func policyMatrix(e *env) *cobra.Command {
	var path, subject string
	var roles, names []string
	var live bool
	c := withForms(e.printing("matrix", "show which role may call which tool, and when", "matrix", func(ctx context.Context, _ []string) (any, error) {
		v, err := openPolicy(ctx, e, path)
		if err != nil {
			return nil, err
		}
		tools, err := v.tools(ctx, live)
		if err != nil {
			return nil, err
		}
		if len(names) > 0 {
			tools = v.named(tools, names...)
		}
		for _, role := range roles {
			noteUnknown(e, "role", role, knownRoles(v.cfg, v.Engine))
		}
		callers := v.callers(subject, roles)
		if len(callers) == 0 || len(tools) == 0 {
			return nil, usage(fmt.Errorf("the policy names %s and %s: there is nothing to show\nhint: --roles and --tools name some", text.Count(len(callers), "role"), text.Count(len(tools), "tool")))
		}
		bar := e.progress(false)
		defer bar.End()
		cells, notes := make([]cell, 0, len(callers)*len(tools)), 0
		for _, who := range callers {
			for _, t := range tools {
				c, err := cellOf(ctx, v.Engine, who, t)
				if err != nil {
					return nil, err
				}
				if c.May == sometimes || c.May == depends {
					notes++
					c.Note = notes
				}
				cells = append(cells, c)
				bar.Update(int64(len(cells)), int64(cap(cells)), func() string { return pairsText(len(cells), cap(cells)) })
			}
		}
		return matrixReport{v.Revision(), cells, slices.Collect(slices.Chunk(cells, len(tools)))}, nil
	}), "markdown")
	policyPath(c, &path)
	f := c.Flags()
	f.StringVar(&subject, "subject", "", "what one `SUBJECT` may do (default: the subject is unknown)")
	f.StringSliceVar(&roles, "roles", nil, "only this `ROLE`, which data.roles need not name; may be repeated")
	f.StringSliceVar(&names, "tools", nil, "only this `TOOL`, which need not be known; may be repeated")
	f.BoolVar(&live, "live", false, "start the upstreams and ask them for their tools")
	return c
}

// cell is what one role, or one subject, may do with one tool.
type cell struct {
	Role    string `json:"role"`
	Subject string `json:"subject,omitempty"`
	Tool    string `json:"tool"`
	May     string `json:"may"` // always, never, sometimes, depends
	// Branches are the verdicts with their conditions; of what is never allowed, the denials.
	Branches []branch `json:"branches,omitempty"`
	Why      string   `json:"why,omitempty"` // of depends: why it is not known
	// Others is what subjects may do that the policy does not name, where the answer
	// depends on the subject.
	Others string `json:"others,omitempty"`

	Note int `json:"-"` // number of the note below the table; 0 = none
}

// branch is one verdict and when it holds.
type branch struct {
	Effect policy.Effect  `json:"effect"`
	Rule   string         `json:"rule,omitempty"`
	Roles  []string       `json:"approvers,omitempty"` // of a hold
	Each   map[string]int `json:"each,omitempty"`      // of a hold that needs approvals of each role
	When   []string       `json:"when,omitempty"`      // all must hold; none = always

	Conditions []string `json:"-"` // When as people read it
}

const (
	always    = "always"
	never     = "never"
	sometimes = "sometimes"
	depends   = "depends"
)

// pairsText says how many pairs of a role and a tool were looked at.
func pairsText(done, all int) string {
	return fmt.Sprintf("%d of %s of a role and a tool", done, text.Count(all, "pair"))
}

// cellOf asks the policy about a caller and a tool. Where the conditions depend
// on the unknown subject, it adds what a subject gets that the policy does not
// name.
func cellOf(ctx context.Context, engine *rego.Engine, who policy.Principal, t policy.Tool) (cell, error) {
	c := cell{Role: strings.Join(who.Roles, ", "), Subject: who.Subject, Tool: t.Exposed}
	o, err := workbench.OutlineOf(ctx, engine, who, t)
	if err != nil {
		return c, err
	}
	c.fill(engine, o)
	if c.May == depends && who.Subject == "" {
		if plain, err := workbench.OutlineOf(ctx, engine, sample(who), t); err == nil && plain.Whole == "" {
			other := cell{Tool: t.Exposed}
			other.fill(engine, plain)
			c.Why, c.Others = "on the subject", strings.Join(other.Lines(), "; ")
		}
	}
	return c, nil
}

// sample is a caller with a subject that no policy names.
func sample(p policy.Principal) policy.Principal {
	p.Subject = cmp.Or(p.Subject, "somebody")
	return p
}

func (c *cell) fill(engine *rego.Engine, o workbench.Outline) {
	c.May, c.Why = kindOf(o), o.Whole
	for _, b := range o.Branches {
		if b.Idle && c.May != never {
			continue // what no branch allows is denied
		}
		out := branch{Effect: b.Decision.Effect, Rule: b.Decision.Rule, When: b.When, Conditions: workbench.Readable(engine.Facts(c.Tool), b.When)}
		if b.Decision.Approval != nil {
			out.Roles, out.Each = b.Decision.Approval.Roles, b.Decision.Approval.Each
		}
		c.Branches = append(c.Branches, out)
	}
	order := []policy.Effect{policy.Allow, policy.Hold, policy.Deny}
	slices.SortStableFunc(c.Branches, func(a, b branch) int { return slices.Index(order, a.Effect) - slices.Index(order, b.Effect) })
}

// kindOf is an Outline in one word.
func kindOf(o workbench.Outline) string {
	var free, let, stop bool // some branch allows every call, lets calls through, holds or denies calls
	for _, b := range o.Branches {
		effect := b.Decision.Effect
		free = free || effect == policy.Allow && len(b.When) == 0
		let = let || effect != policy.Deny
		stop = stop || effect == policy.Hold || effect == policy.Deny && !b.Idle
	}
	switch {
	case o.Whole != "":
		return depends
	case !let:
		return never
	case free && !stop:
		return always
	}
	return sometimes
}

// Lines is the cell as people read it, one line for each verdict.
func (c cell) Lines() []string {
	switch c.May {
	case depends:
		text := depends + ": " + c.Why
		if c.Others != "" {
			text += "; subjects that the policy does not name: " + c.Others
		}
		return []string{text}
	case always, never:
		return []string{c.May}
	}
	var out []string
	for _, b := range c.Branches {
		text := b.Verb()
		if len(b.Conditions) > 0 {
			text += " when " + strings.Join(b.Conditions, " and ")
		}
		out = append(out, text)
	}
	return out
}

// Rows are Lines for a terminal: a condition that makes a line too long begins the next.
func (c cell) Rows() (out []string) {
	for _, line := range c.Lines() {
		row := ""
		for i, part := range strings.Split(strings.NewReplacer(" and ", " and \n", "; ", "; \n").Replace(line), "\n") {
			if i > 0 && len(row)+len(part) > widestRow {
				out, row = append(out, strings.TrimSpace(row)), "  "
			}
			row += part
		}
		out = append(out, row)
	}
	return out
}

// widestRow is the widest row of a matrix, beside the names of a role and a tool.
const widestRow = 60

// Verb is what happens to a call of a branch.
func (b branch) Verb() string {
	switch b.Effect {
	case policy.Hold:
		if len(b.Each) > 0 {
			return "held for " + eachRole(b.Each)
		}
		return "held for " + strings.Join(b.Roles, " or ")
	case policy.Deny:
		return "denied"
	}
	return "allowed"
}

// Caller names the row of a cell.
func (c cell) Caller() string {
	switch {
	case c.Subject == "":
		return c.Role
	case c.Role == "":
		return c.Subject
	}
	return c.Subject + " (" + c.Role + ")"
}

// matrixReport is what policy matrix prints.
type matrixReport struct {
	Revision string   `json:"revision"`
	Cells    []cell   `json:"cells"`
	Rows     [][]cell `json:"-"` // the same, one row for each caller
}
