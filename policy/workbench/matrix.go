package workbench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// A Cell is what one role, or one subject, may do with one tool.
type Cell struct {
	Role    string `json:"role"`
	Subject string `json:"subject,omitempty"`
	Tool    string `json:"tool"`
	May     May    `json:"may"`
	// Clauses are the verdicts with their conditions; of what is never allowed, the denials.
	Clauses []Clause `json:"branches,omitempty"`
	Why     string   `json:"why,omitempty"` // of Depends: why it is not known
	// Others is what subjects may do that the policy does not name, where the answer
	// depends on the subject.
	Others string `json:"others,omitempty"`
}

// May is a Cell in one word.
type May string

// The words. Never is a denial whatever the arguments, and Depends says that nothing is known
// before a call.
const (
	Always    May = "always"
	Never     May = "never"
	Sometimes May = "sometimes"
	Depends   May = "depends"
)

// A Clause is one verdict and when it holds.
type Clause struct {
	Effect policy.Effect  `json:"effect"`
	Rule   string         `json:"rule,omitempty"`
	Roles  []string       `json:"approvers,omitempty"` // of a hold
	Each   map[string]int `json:"each,omitempty"`      // of a hold that needs approvals of each role
	When   []string       `json:"when,omitempty"`      // all must hold; none = always

	Conditions []string `json:"-"` // When as people read it
}

// CellOf asks the policy about a caller and a tool. A caller without a subject stands for every
// caller with its roles; where the conditions depend on the subject, CellOf adds what a subject gets
// that the policy does not name.
func CellOf(ctx context.Context, e *rego.Engine, who policy.Principal, t policy.Tool) (Cell, error) {
	c := Cell{Role: strings.Join(who.Roles, ", "), Subject: who.Subject, Tool: t.Exposed}
	o, err := OutlineOf(ctx, e, who, t)
	if err != nil {
		return c, err
	}
	c.fill(e, o)
	if c.May == Depends && who.Subject == "" {
		if plain, err := OutlineOf(ctx, e, sample(who), t); err == nil && plain.Whole == "" {
			other := Cell{Tool: t.Exposed}
			other.fill(e, plain)
			c.Why, c.Others = "on the subject", strings.Join(other.Lines(), "; ")
		}
	}
	return c, nil
}

// Matrix returns the cells of every caller and tool, caller by caller. It calls progress, unless nil,
// with the number of cells that are known.
func Matrix(ctx context.Context, e *rego.Engine, callers []policy.Principal, tools []policy.Tool, progress func(done int)) ([]Cell, error) {
	cells := make([]Cell, 0, len(callers)*len(tools))
	for _, who := range callers {
		for _, t := range tools {
			c, err := CellOf(ctx, e, who, t)
			if err != nil {
				return nil, err
			}
			cells = append(cells, c)
			if progress != nil {
				progress(len(cells))
			}
		}
	}
	return cells, nil
}

// A RoleAnswer says what a role may do.
type RoleAnswer struct {
	Role string `json:"role"`
	May  string `json:"may"` // in words
}

// rolesAsked bounds the roles that WhoMay asks about: each takes a partial evaluation.
const rolesAsked = 200

// WhoMay returns those of roles, of which it looks at the first 200, that may call a tool at all.
func WhoMay(ctx context.Context, e *rego.Engine, roles []string, t policy.Tool) (answers []RoleAnswer) {
	for _, role := range roles[:min(len(roles), rolesAsked)] {
		c, err := CellOf(ctx, e, policy.Principal{Roles: []string{role}}, t)
		if err == nil && c.May != Never {
			answers = append(answers, RoleAnswer{role, strings.Join(c.Lines(), "; ")})
		}
	}
	return answers
}

// sample is a caller with a subject that no policy names.
func sample(p policy.Principal) policy.Principal {
	p.Subject = cmp.Or(p.Subject, "somebody")
	return p
}

func (c *Cell) fill(e *rego.Engine, o Outline) {
	c.May, c.Why = mayOf(o), o.Whole
	for _, b := range o.Branches {
		if b.Idle && c.May != Never {
			continue // what no branch allows is denied
		}
		out := Clause{Effect: b.Decision.Effect, Rule: b.Decision.Rule, When: b.When, Conditions: Readable(e.Facts(c.Tool), b.When)}
		if b.Decision.Approval != nil {
			out.Roles, out.Each = b.Decision.Approval.Roles, b.Decision.Approval.Each
		}
		c.Clauses = append(c.Clauses, out)
	}
	order := []policy.Effect{policy.Allow, policy.Hold, policy.Deny}
	slices.SortStableFunc(c.Clauses, func(a, b Clause) int { return slices.Index(order, a.Effect) - slices.Index(order, b.Effect) })
}

// mayOf is an Outline in one word.
func mayOf(o Outline) May {
	var free, let, stop bool // some branch allows every call, lets calls through, holds or denies calls
	for _, b := range o.Branches {
		effect := b.Decision.Effect
		free = free || effect == policy.Allow && len(b.When) == 0
		let = let || effect != policy.Deny
		stop = stop || effect == policy.Hold || effect == policy.Deny && !b.Idle
	}
	switch {
	case o.Whole != "":
		return Depends
	case !let:
		return Never
	case free && !stop:
		return Always
	}
	return Sometimes
}

// Lines is the cell as people read it, one line for each verdict.
func (c Cell) Lines() []string {
	switch c.May {
	case Depends:
		text := string(Depends) + ": " + c.Why
		if c.Others != "" {
			text += "; subjects that the policy does not name: " + c.Others
		}
		return []string{text}
	case Always, Never:
		return []string{string(c.May)}
	}
	var out []string
	for _, b := range c.Clauses {
		text := b.Verb()
		if len(b.Conditions) > 0 {
			text += " when " + strings.Join(b.Conditions, " and ")
		}
		out = append(out, text)
	}
	return out
}

// Caller names whom the cell is about.
func (c Cell) Caller() string {
	switch {
	case c.Subject == "":
		return c.Role
	case c.Role == "":
		return c.Subject
	}
	return c.Subject + " (" + c.Role + ")"
}

// Verb is what happens to a call of a clause.
func (c Clause) Verb() string {
	switch c.Effect {
	case policy.Hold:
		if len(c.Each) > 0 {
			return "held for " + EachRole(c.Each)
		}
		return "held for " + strings.Join(c.Roles, " or ")
	case policy.Deny:
		return "denied"
	}
	return "allowed"
}

// EachRole names how many people of each role have to approve.
func EachRole(each map[string]int) string {
	var all []string
	for _, role := range slices.Sorted(maps.Keys(each)) {
		all = append(all, fmt.Sprintf("%d %s", each[role], role))
	}
	return strings.Join(all, " and ")
}

// A CellChange is a cell that another policy fills otherwise, in words.
type CellChange struct {
	Caller string   `json:"caller"`
	Tool   string   `json:"tool"`
	Was    []string `json:"was"`
	Now    []string `json:"now"`
}

// Compare returns the cells of two matrices of the same callers and tools that differ.
func Compare(was, now []Cell) []CellChange {
	changes := []CellChange{}
	for i := range was {
		if a, b := was[i].Lines(), now[i].Lines(); !slices.Equal(a, b) {
			changes = append(changes, CellChange{now[i].Caller(), now[i].Tool, a, b})
		}
	}
	return changes
}
