package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	found = append(found, sight.findings()...)
	return e.printChecked(engine, found, sight, flags)
}

// checked is the report of policy check.
type checked struct {
	OK       bool        `json:"ok"`
	Revision string      `json:"revision"`
	Roles    []string    `json:"roles"`
	Findings []finding   `json:"findings"`
	Pairs    int         `json:"pairs"`
	Whole    []wholePair `json:"whole"`
	Visible  bool        `json:"visible"`

	Reasons []string `json:"-"`
	Notes   int      `json:"-"` // that are not printed
}

func (e *env) printChecked(engine *rego.Engine, found []finding, s sight, flags policyChecks) error {
	count := func(level string) (n int) {
		for _, f := range found {
			if f.Level == level {
				n++
			}
		}
		return n
	}
	var failed error
	if n := count(levelWarning); flags.strict && n > 0 {
		failed = usage(fmt.Errorf("the policy has %d warnings", n))
	}
	if e.output == "github" {
		return errors.Join(e.annotate(found), failed)
	}
	c := checked{
		OK: failed == nil, Revision: engine.Revision(), Roles: engine.Roles(), Findings: found,
		Pairs: s.pairs, Whole: s.whole, Visible: engine.DefinesVisible(), Reasons: s.reasons(),
	}
	if !flags.notes && e.output != "json" {
		c.Notes = count(levelNote)
		c.Findings = slices.DeleteFunc(found, func(f finding) bool { return f.Level == levelNote })
	}
	return errors.Join(e.print("policy-check", c), failed)
}

// surveyTime bounds how long callers and tools are looked at.
const surveyTime = 20 * time.Second

// A sight is what a policy says about callers and tools before any call.
type sight struct {
	pairs     int
	whole     []wholePair
	uncovered []string            // tools that no caller may call
	hidden    map[string][]string // :: tool ⇒ callers who do not see it and could be allowed
	useless   map[string][]string // :: tool ⇒ callers who see it and are always denied
	cut       bool                // there was no time to look at all of them
}

// A wholePair is a role and a tool whose conditions are unknown.
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
		s.whole = append(s.whole, wholePair{c.Caller(), t.Exposed, c.Why})
	}
	if !engine.DefinesVisible() {
		return
	}
	somebody := sample(who)
	switch shown, err := engine.Visible(ctx, somebody, t); {
	case err != nil:
	case shown && c.May == never:
		s.useless[t.Exposed] = append(s.useless[t.Exposed], c.Caller())
	case !shown && c.May != never:
		if o, err := engine.Outline(ctx, somebody, t); err == nil && kindOf(o) != never {
			s.hidden[t.Exposed] = append(s.hidden[t.Exposed], c.Caller())
		}
	}
}

// findings is what people should know of a survey.
func (s sight) findings() []finding {
	var found []finding
	warn := func(code, tool, message, hint string) {
		found = append(found, finding{Level: levelWarning, Code: code, Where: "tool " + tool, Message: message, Hint: hint})
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
		found = append(found, finding{Level: levelNote, Code: "survey-cut", Message: fmt.Sprintf("after %v %d pairs of a role and a tool were looked at, and not all", surveyTime, s.pairs)})
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

// few names the first three of a list.
func few(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}
