package cli

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/toolgate/toolgate/registry/config"
)

// policyChecks are the flags of policy check.
type policyChecks struct {
	path, subject string
	live, notes   bool
	strict        strictness
}

func policyCheck(e *env) *cobra.Command {
	var flags policyChecks
	c := withForms(command("check [POLICY]", "compile the policy, try it on samples, and look for mistakes", func(ctx context.Context, args []string) error {
		if len(args) > 0 {
			flags.path = args[0]
		}
		return e.checkPolicy(ctx, flags)
	}), "github")
	policyPath(c, &flags.path)
	c.Flags().StringVar(&flags.subject, "subject", "", "look at the tools as this `SUBJECT` with the roles of its token (default: each role, subject unknown)")
	c.Flags().BoolVar(&flags.live, "live", false, "start the upstreams and ask them for their tools")
	flags.strict.bind(c)
	c.Flags().BoolVar(&flags.notes, "notes", false, "print notes on style, and not only their number")
	return c
}

func (e *env) checkPolicy(ctx context.Context, flags policyChecks) error {
	options, cfg, err := e.policySource(ctx, flags.path)
	if err != nil {
		return err
	}
	engine, slips, err := rego.Check(ctx, options)
	if err != nil {
		return e.unservable(err, options.Path)
	}
	tools, err := e.knownTools(ctx, cfg, engine, flags.live)
	if err != nil {
		return err
	}
	found := placed(slips, options.Path)
	sight := e.survey(ctx, engine, e.callers(cfg, engine, flags.path, flags.subject, nil), tools)
	found = append(found, sight.found...)
	if !e.concerns(cfg, flags.path) {
		cfg = nil
	}
	found = append(found, app.UnknownRoles(cfg, engine)...)
	if cfg != nil {
		tools = slices.DeleteFunc(tools, func(t policy.Tool) bool { return !flags.live || t.Fingerprint == "" }) // not listed by a server
		found = append(found, app.UnknownTools(cfg, engine, tools)...)
	}
	return e.printChecked(engine, found, sight, flags)
}

// concerns reports whether a configuration is about the policy at path: somebody named the
// configuration, or that policy serves.
func (e *env) concerns(cfg *config.Config, path string) bool {
	absolute, err := filepath.Abs(path)
	return path == "" || e.config != defaultConfig || err == nil && absolute == cfg.Policy.Path
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

func (e *env) printChecked(engine *rego.Engine, found []finding, s surveyed, flags policyChecks) error {
	failed := flags.strict.refuse(found)
	c := checked{
		OK: failed == nil, Revision: engine.Revision(), Roles: engine.Roles(), Findings: found,
		surveyed: s, Visible: engine.DefinesVisible(),
	}
	for _, f := range found {
		if f.Level == levelNote && !flags.notes {
			c.Notes++
		}
	}
	return errors.Join(e.Print("policy-check", c), failed)
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
func (e *env) survey(ctx context.Context, engine *rego.Engine, callers []policy.Principal, tools []policy.Tool) surveyed {
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
		s.warn(!covered, "uncovered-tool", t, "no role may call it: every call is denied", "give it to a role, or leave it out of what the server exposes")
		s.warn(hidden != nil, "hidden-tool", t, fmt.Sprintf("visible hides it from %s, who could be allowed to call it", firstThree(hidden)), "let visible be true for every caller whom some call may be allowed")
		s.warn(useless != nil, "useless-tool", t, fmt.Sprintf("%s can see it, and every call is denied", firstThree(useless)), "let visible be false for callers who are always denied")
	}
	return s
}

// warn adds a finding about a tool if it applies.
func (s *surveyed) warn(applies bool, code string, t policy.Tool, message, hint string) {
	if applies {
		s.found = append(s.found, finding{Level: levelWarning, Code: code, Where: "tool " + t.Exposed, Message: message, Hint: hint})
	}
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

// policyCells are the flags of policy matrix.
type policyCells struct {
	path, subject string
	roles, tools  []string
	live          bool
}

func policyMatrix(e *env) *cobra.Command {
	var flags policyCells
	c := withForms(command("matrix", "show which role may call which tool, and when", func(ctx context.Context, _ []string) error { return e.matrix(ctx, flags) }), "markdown")
	policyPath(c, &flags.path)
	f := c.Flags()
	f.StringVar(&flags.subject, "subject", "", "what one `SUBJECT` may do (default: the subject is unknown)")
	f.StringSliceVar(&flags.roles, "roles", nil, "only this `ROLE`, which data.roles need not name; may be repeated")
	f.StringSliceVar(&flags.tools, "tools", nil, "only this `TOOL`, which need not be known; may be repeated")
	f.BoolVar(&flags.live, "live", false, "start the upstreams and ask them for their tools")
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

func (e *env) matrix(ctx context.Context, flags policyCells) error {
	engine, cfg, err := e.openPolicy(ctx, flags.path)
	if err != nil {
		return err
	}
	tools, err := e.knownTools(ctx, cfg, engine, flags.live)
	if err != nil {
		return err
	}
	if len(flags.tools) > 0 {
		tools = e.toolsNamed(cfg, tools, flags.tools...)
	}
	for _, role := range flags.roles {
		e.noteUnknown("role", role, knownRoles(cfg, engine))
	}
	callers := e.callers(cfg, engine, flags.path, flags.subject, flags.roles)
	if len(callers) == 0 || len(tools) == 0 {
		return usage(fmt.Errorf("the policy names %s and %s: there is nothing to show\nhint: --roles and --tools name some", text.Count(len(callers), "role"), text.Count(len(tools), "tool")))
	}
	cells, err := e.cells(ctx, engine, callers, tools)
	if err != nil {
		return err
	}
	return e.printMatrix(engine, cells, len(tools))
}

// cells asks the policy about every caller with every tool.
func (e *env) cells(ctx context.Context, engine *rego.Engine, callers []policy.Principal, tools []policy.Tool) ([]cell, error) {
	bar := e.progress(false)
	defer bar.End()
	cells := make([]cell, 0, len(callers)*len(tools))
	for _, who := range callers {
		for _, t := range tools {
			c, err := cellOf(ctx, engine, who, t)
			if err != nil {
				return nil, err
			}
			cells = append(cells, c)
			bar.Update(int64(len(cells)), int64(cap(cells)), func() string { return pairsText(len(cells), cap(cells)) })
		}
	}
	return cells, nil
}

// pairsText says how many pairs of a role and a tool were looked at.
func pairsText(done, all int) string {
	return fmt.Sprintf("%d of %s of a role and a tool", done, text.Count(all, "pair"))
}

// toolsNamed are tools by their exposed names; what is known of them is used.
func (e *env) toolsNamed(cfg *config.Config, known []policy.Tool, names ...string) (tools []policy.Tool) {
	var exposed []string
	for _, t := range known {
		exposed = append(exposed, t.Exposed)
	}
	for _, name := range names {
		if i := slices.Index(exposed, name); i >= 0 {
			tools = append(tools, known[i])
			continue
		}
		e.noteUnknown("tool", name, exposed)
		tools = append(tools, toolNamed(cfg, name))
	}
	return tools
}

// callers are the principals that a command looks at: one for each role, whose
// subject is unknown or the one that is asked for. Where no roles are named, a
// subject has those of its token. Tokens of a configuration that nobody named say
// nothing about the policy at path.
func (e *env) callers(cfg *config.Config, engine *rego.Engine, path, subject string, roles []string) []policy.Principal {
	if subject != "" && len(roles) == 0 {
		s := supposed{subject: subject}
		return []policy.Principal{s.principal(cfg)}
	}
	switch {
	case len(roles) > 0:
	case path != "" && e.config == defaultConfig:
		roles = engine.Roles()
	default:
		roles = knownRoles(cfg, engine)
	}
	var out []policy.Principal
	for _, role := range roles {
		out = append(out, policy.Principal{Subject: subject, Roles: []string{role}})
	}
	return out
}

// knownRoles are the roles of the policy's data, unless engine is nil, and of the
// configured tokens.
func knownRoles(cfg *config.Config, engine *rego.Engine) (roles []string) {
	if engine != nil {
		roles = engine.Roles()
	}
	for _, t := range cfg.Identity.Tokens {
		roles = append(roles, t.Roles...)
	}
	slices.Sort(roles)
	return slices.Compact(roles)
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

// printMatrix prints cells, those of a caller next to each other.
func (e *env) printMatrix(engine *rego.Engine, cells []cell, tools int) error {
	m := matrixReport{engine.Revision(), cells, slices.Collect(slices.Chunk(cells, tools))}
	notes := 0
	for i, c := range cells {
		if c.May == sometimes || c.May == depends {
			notes++
			cells[i].Note = notes
		}
	}
	return e.Print("matrix", m)
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
