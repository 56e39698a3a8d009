package workbench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// A Survey is what a policy says about callers and tools before any call.
type Survey struct {
	Pairs int         `json:"pairs"` // of a caller and a tool that were looked at
	Whole []WholePair `json:"whole"`

	Doubts []Doubt `json:"-"`
}

// A WholePair is a caller and a tool whose conditions are unknown.
type WholePair struct {
	Role string `json:"role"`
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

// A Doubt is what is probably a mistake about one tool; without a tool it says that the survey ended early.
type Doubt struct {
	Level   rego.Level
	Code    string // kinds are in docs/reference.md
	Tool    string
	Message string
	Hint    string
}

// SurveyOf looks at every caller with every tool until ctx ends, which is a Doubt. It calls progress,
// unless nil, with the number of pairs that were looked at.
func SurveyOf(ctx context.Context, e *rego.Engine, callers []policy.Principal, tools []policy.Tool, progress func(done int)) Survey {
	began := time.Now()
	s := Survey{Whole: []WholePair{}}
	for _, t := range tools {
		var covered bool
		var hidden, useless []string // from callers who could be allowed, for those who never are
		for _, who := range callers {
			c, err := CellOf(ctx, e, who, t)
			if ctx.Err() != nil {
				s.Doubts = append(s.Doubts, Doubt{Level: rego.LevelNote, Code: "survey-cut", Message: fmt.Sprintf("stopped after %v and %s of a role and a tool, which are not all", time.Since(began).Round(time.Second), text.Count(s.Pairs, "pair"))})
				return s
			}
			if err != nil {
				c.May, c.Why = Depends, err.Error()
			}
			if s.Pairs++; c.May == Depends {
				s.Whole = append(s.Whole, WholePair{c.Caller(), t.Exposed, c.Why})
			}
			covered = covered || c.May != Never
			switch shown, may := sees(ctx, e, who, t, c.May); {
			case shown && !may:
				useless = append(useless, c.Caller())
			case may && !shown:
				hidden = append(hidden, c.Caller())
			}
			if progress != nil {
				progress(s.Pairs)
			}
		}
		warn := func(applies bool, code, message, hint string) {
			if applies {
				s.Doubts = append(s.Doubts, Doubt{rego.LevelWarning, code, t.Exposed, message, hint})
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
func sees(ctx context.Context, e *rego.Engine, who policy.Principal, t policy.Tool, kind May) (shown, may bool) {
	if !e.DefinesVisible() {
		return true, true
	}
	shown, err := e.Visible(ctx, sample(who), t)
	if err != nil {
		return true, true
	}
	if may = kind != Never; may && !shown {
		o, err := OutlineOf(ctx, e, sample(who), t)
		may = err == nil && mayOf(o) != Never
	}
	return shown, may
}

// Reasons says why conditions are not known, and for which pairs, one line for each
// reason.
func (s Survey) Reasons() []string {
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
