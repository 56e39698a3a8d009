package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// policyChecks are the flags of policy check.
type policyChecks struct {
	path, subject       string
	live, strict, notes bool
}

func policyCheck(e *env) *cobra.Command {
	var flags policyChecks
	c := &cobra.Command{
		Use: "check [POLICY]", Short: "compile the policy, try it on samples, and look for mistakes", Args: cobra.MaximumNArgs(1),
		Long: `check compiles the policy as serve would: in OPA's strict mode, against the schema of
input, without built-ins that reach the network, and tries it on sample calls. POLICY is
a directory or a bundle; without it the configured policy is checked.

It warns about policies that serve and may not do what their author means: comparisons
of arguments without a type, decisions of no shape, rules that never fire, data that no
rule reads, tools that no role may call, tools that are hidden from callers who could be
allowed, and tools that are shown to callers who never can.
Exit 0: it would serve; 2: it would not, or with --strict there are warnings.`,
		Example: `  toolgate policy check
  toolgate policy check my-policy --strict -o github
  toolgate policy check --live                      # ask the upstreams what tools there are`,
		Annotations: map[string]string{outputs: "github"},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				flags.path = args[0]
			}
			return e.checkPolicy(c.Context(), flags)
		},
	}
	policyPath(c, &flags.path)
	c.Flags().StringVar(&flags.subject, "subject", "", "look at the tools as this subject with the roles of its token (default: each role, subject unknown)")
	c.Flags().BoolVar(&flags.live, "live", false, "start the upstreams and ask them for their tools")
	c.Flags().BoolVar(&flags.strict, "strict", false, "fail on warnings too")
	c.Flags().BoolVar(&flags.notes, "notes", false, "print notes on style, and not only their number")
	return c
}

func (e *env) checkPolicy(ctx context.Context, flags policyChecks) error {
	options, cfg, err := e.about(ctx, flags.path)
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
	found = append(found, sight.findings()...)
	return e.sayPolicy(engine, found, sight, flags)
}

// unservable says why a policy would not serve, with one finding for each fault.
func (e *env) unservable(err error, root string) error {
	faults := (rego.Faults)(nil)
	switch {
	case e.output == "table":
		return usage(err)
	case e.output == "json" && !errors.As(err, &faults):
		return e.unsound(err)
	case !errors.As(err, &faults):
		faults = rego.Faults{{Level: rego.LevelError, Message: err.Error()}}
	}
	found := placed(faults, root)
	if e.output == "json" {
		return errors.Join(e.json(map[string]any{"ok": false, "findings": found}), usage(err))
	}
	return errors.Join(e.github(found), usage(err))
}

// placed gives findings of a policy with paths as one sees them from here.
func placed(slips []rego.Finding, root string) []finding {
	found := []finding{}
	for _, s := range slips {
		f := finding{Level: string(s.Level), Code: s.Code, Where: s.Where(), Message: s.Message, Hint: s.Hint, file: s.File, row: s.Row}
		if s.File != "" && root != "" && !strings.HasSuffix(root, ".gz") && !path.IsAbs(s.File) {
			f.file = path.Join(root, s.File)
			f.Where = strings.Replace(f.Where, s.File, f.file, 1)
		}
		found = append(found, f)
	}
	return found
}

func (e *env) sayPolicy(engine *rego.Engine, found []finding, s sight, flags policyChecks) error {
	count := func(level rego.Level) (n int) {
		for _, f := range found {
			if f.Level == string(level) {
				n++
			}
		}
		return n
	}
	warnings, notes := count(rego.LevelWarning), count(rego.LevelNote)
	var failed error
	if flags.strict && warnings > 0 {
		failed = usage(fmt.Errorf("the policy has %d warnings", warnings))
	}
	switch e.output {
	case "json":
		return errors.Join(e.json(map[string]any{
			"ok": failed == nil, "revision": engine.Revision(), "roles": engine.Roles(), "findings": found,
			"pairs": s.pairs, "whole": s.whole, "visible": engine.DefinesVisible(),
		}), failed)
	case "github":
		return errors.Join(e.github(found), failed)
	}
	for _, f := range found {
		if f.Level != string(rego.LevelNote) || flags.notes {
			fmt.Fprintln(e.out, printable(f.String()))
		}
	}
	if notes > 0 && !flags.notes {
		fmt.Fprintf(e.out, "%d notes on style: --notes prints them\n", notes)
	}
	if len(s.whole) > 0 {
		fmt.Fprintf(e.out, "for %d of %d pairs of a role and a tool the conditions cannot be told before a call:\n", len(s.whole), s.pairs)
		for _, line := range s.reasons() {
			fmt.Fprintln(e.out, "  "+oneLine(line))
		}
	}
	if !engine.DefinesVisible() {
		fmt.Fprintln(e.out, "no rule data.toolgate.visible: a tool is hidden once it is known that every call is denied")
	}
	fmt.Fprintf(e.out, "ok: policy %s, roles %s\n", short(engine.Revision()), strings.Join(engine.Roles(), ", "))
	return failed
}

// github prints findings as annotations of a workflow.
func (e *env) github(found []finding) error {
	for _, f := range found {
		level := map[string]string{"error": "error", "warning": "warning"}[f.Level]
		if level == "" {
			level = "notice"
		}
		if _, err := fmt.Fprintln(e.out, annotation(level, f.file, f.row, f.Message, f.Hint)); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	return nil
}

// annotation is one workflow command of GitHub.
func annotation(level, file string, row int, message, hint string) string {
	escape := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var at []string
	if file != "" {
		at = append(at, "file="+property.Replace(file))
	}
	if row > 0 {
		at = append(at, fmt.Sprintf("line=%d", row))
	}
	if hint != "" {
		message += "\nhint: " + hint
	}
	return strings.TrimSuffix(fmt.Sprintf("::%s %s", level, strings.Join(at, ",")), " ") + "::" + escape.Replace(message)
}

// surveyTime bounds how long callers and tools are looked at.
const surveyTime = 20 * time.Second

// sight is what a policy says of callers and tools before any call.
type sight struct {
	pairs     int
	whole     []wholePair
	uncovered []string            // tools that no caller may call
	hidden    map[string][]string // :: tool ⇒ callers who do not see it and could be allowed
	useless   map[string][]string // :: tool ⇒ callers who see it and are always denied
	cut       bool                // there was no time to look at all of them
}

// wholePair is a role and a tool of which the conditions are not known.
type wholePair struct {
	Role string `json:"role"`
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

// survey looks at every caller with every tool.
func (e *env) survey(ctx context.Context, engine *rego.Engine, callers []policy.Principal, tools []policy.Tool) sight {
	ctx, stop := context.WithTimeout(ctx, surveyTime)
	defer stop()
	p := e.progress(false)
	defer p.end()
	s := sight{whole: []wholePair{}, hidden: map[string][]string{}, useless: map[string][]string{}}
	for _, t := range tools {
		covered := false
		for _, who := range callers {
			c, err := cellOf(ctx, engine, who, t)
			if ctx.Err() != nil {
				s.cut = true
				return s
			}
			if err != nil {
				c.May, c.Why = depends, err.Error()
			}
			s.look(ctx, engine, who, t, c)
			covered = covered || c.May != never
			p.tell(func() string {
				return fmt.Sprintf("%d of %d pairs of a role and a tool", s.pairs, len(callers)*len(tools))
			})
		}
		if !covered {
			s.uncovered = append(s.uncovered, t.Exposed)
		}
	}
	return s
}

// look compares what one caller may do with a tool with whether it sees the tool.
func (s *sight) look(ctx context.Context, engine *rego.Engine, who policy.Principal, t policy.Tool, c cell) {
	s.pairs++
	if c.May == depends {
		s.whole = append(s.whole, wholePair{c.caller(), t.Exposed, c.Why})
	}
	if !engine.DefinesVisible() {
		return
	}
	somebody := sample(who)
	switch shown, err := engine.Visible(ctx, somebody, t); {
	case err != nil:
	case shown && c.May == never:
		s.useless[t.Exposed] = append(s.useless[t.Exposed], c.caller())
	case !shown && c.May != never:
		if o, err := engine.Outline(ctx, somebody, t); err == nil && kindOf(o) != never {
			s.hidden[t.Exposed] = append(s.hidden[t.Exposed], c.caller())
		}
	}
}

// findings is what people should know of a survey.
func (s sight) findings() []finding {
	var found []finding
	warn := func(code, tool, message, hint string) {
		found = append(found, finding{Level: "warning", Code: code, Where: "tool " + tool, Message: message, Hint: hint})
	}
	for _, t := range s.uncovered {
		warn("uncovered-tool", t, "no role may call it: every call is denied", "give it to a role, or leave it out of what the server exposes")
	}
	for _, t := range slices.Sorted(maps.Keys(s.hidden)) {
		warn("hidden-tool", t, fmt.Sprintf("visible hides it from %s, who could be allowed to call it", few(s.hidden[t])), "let visible be true for every caller whom some call may be allowed")
	}
	for _, t := range slices.Sorted(maps.Keys(s.useless)) {
		warn("useless-tool", t, fmt.Sprintf("%s can see it, and every call is denied", few(s.useless[t])), "let visible be false for callers who are always denied")
	}
	if s.cut {
		found = append(found, finding{Level: "note", Code: "survey-cut", Message: fmt.Sprintf("after %v %d pairs of a role and a tool were looked at, and not all", surveyTime, s.pairs)})
	}
	return found
}

// reasons says why conditions are not known, and for which pairs, one line for each
// reason.
func (s sight) reasons() []string {
	pairs, lines := map[string][]string{}, []string{}
	for _, w := range s.whole {
		pairs[w.Why] = append(pairs[w.Why], w.Role+" "+w.Tool)
	}
	for _, why := range slices.Sorted(maps.Keys(pairs)) {
		lines = append(lines, fmt.Sprintf("%s: %s", few(pairs[why]), why))
	}
	return lines
}

// few names the first of a list.
func few(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}
