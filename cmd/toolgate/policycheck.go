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

	"github.com/toolgate/toolgate/internal/plural"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
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
	Notes   int      `json:"-"` // that the table leaves out
}

func (e *env) printChecked(engine *rego.Engine, found []finding, s surveyed, flags policyChecks) error {
	failed := flags.strict.refuse(found)
	c := checked{
		OK: failed == nil, Revision: engine.Revision(), Roles: engine.Roles(), Findings: found,
		Pairs: s.pairs, Whole: s.whole, Visible: engine.DefinesVisible(), Reasons: s.reasons(),
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
	pairs int
	whole []wholePair
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
	s := surveyed{whole: []wholePair{}}
	for _, t := range tools {
		var covered bool
		var hidden, useless []string // from callers who could be allowed, for those who never are
		for _, who := range callers {
			c, err := cellOf(ctx, engine, who, t)
			if ctx.Err() != nil {
				s.found = append(s.found, finding{Level: levelNote, Code: "survey-cut", Message: fmt.Sprintf("stopped after %v and %s of a role and a tool, which are not all", surveyTime, plural.Count(s.pairs, "pair"))})
				return s
			}
			if err != nil {
				c.May, c.Why = depends, err.Error()
			}
			if s.pairs++; c.May == depends {
				s.whole = append(s.whole, wholePair{c.Caller(), t.Exposed, c.Why})
			}
			covered = covered || c.May != never
			switch shown, may := sees(ctx, engine, who, t, c.May); {
			case shown && !may:
				useless = append(useless, c.Caller())
			case may && !shown:
				hidden = append(hidden, c.Caller())
			}
			all := len(callers) * len(tools)
			bar.Update(int64(s.pairs), int64(all), func() string { return pairsText(s.pairs, all) })
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
		o, err := engine.Outline(ctx, sample(who), t)
		may = err == nil && kindOf(o) != never
	}
	return shown, may
}

// reasons says why conditions are not known, and for which pairs, one line for each
// reason.
func (s surveyed) reasons() []string {
	pairs, lines := map[string][]string{}, []string{}
	for _, w := range s.whole {
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
