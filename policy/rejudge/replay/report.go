package replay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Report is what a replay found.
type Report struct {
	Candidate string         `json:"candidate"` // revision of the policy that judged again
	Revisions map[string]int `json:"revisions"` // of the policies that judged then ⇒ decisions
	First     time.Time      `json:"first,omitzero"`
	Last      time.Time      `json:"last,omitzero"` // of the decisions that were judged again
	Judged    int            `json:"judged"`        // decisions that were judged again, those of Failed without
	Same      int            `json:"same"`
	Effects   []Move         `json:"effects"`  // every pair of effects, the same ones too
	Changed   Changes        `json:"changed"`  // another effect
	Adjusted  Changes        `json:"adjusted"` // the same effect by another rule, or with other obligations
	Failed    Changes        `json:"failed"`   // what the policy of the time failed to judge: no change of the policy's
	Errors    []Cause        `json:"errors"`   // with which the candidate failed, its denials are among the changes
	Unjudged  []Cause        `json:"unjudged"` // why decisions could not be judged again

	options          Options
	effects          map[[2]policy.Effect]int
	errors, unjudged map[string]Cause
}

// Differs reports whether the candidate decides anything otherwise.
func (r *Report) Differs() bool { return r.Changed.Count+r.Adjusted.Count > 0 }

// Lost is how many decisions could not be judged again.
func (r *Report) Lost() (n int) {
	for _, c := range r.Unjudged {
		n += c.Count
	}
	return n
}

// Move is how many decisions went from one effect to another.
type Move struct {
	Was   policy.Effect `json:"was"`
	Now   policy.Effect `json:"now"`
	Count int           `json:"count"`
}

// Changes are decisions that came out otherwise, in three groupings.
type Changes struct {
	Count      int     `json:"count"`
	Rules      []Turn  `json:"rules"`
	Principals []Share `json:"principals"`
	Tools      []Share `json:"tools"`

	rules             map[[2]judgement.Verdict]*Turn
	principals, tools map[string]int
}

// Turn is decisions that went from one rule's verdict to another's.
type Turn struct {
	Was      judgement.Verdict `json:"was"`
	Now      judgement.Verdict `json:"now"`
	Count    int               `json:"count"`
	Examples []Example         `json:"examples"` // the first of them
}

// Share is how many of the changes are of one principal, or of one tool.
type Share struct {
	Name  string `json:"name"` // subject, "tenant/subject"; exposed name, "method server"
	Count int    `json:"count"`
}

// Example is one decision that came out otherwise.
type Example struct {
	number     int
	DecisionID string    `json:"decision_id"`
	Time       time.Time `json:"time"`
	Principal  string    `json:"principal"`
	Tool       string    `json:"tool"`
	// Arguments are cut to their beginning, so that they need not be JSON.
	Arguments string `json:"arguments,omitempty"`
	Reason    string `json:"reason,omitempty"` // of the new verdict
	// Was and Now are the obligations, where those are what differs.
	Was string `json:"was,omitempty"`
	Now string `json:"now,omitempty"`
}

// Cause is why something went wrong, how often, and a decision where it did.
type Cause struct {
	Cause      string `json:"cause"`
	Count      int    `json:"count"`
	DecisionID string `json:"decision_id,omitempty"` // one of them
}

// argumentsShown is how much of arguments an example shows, in bytes.
const argumentsShown = 160

// newReport returns a report that counts until finish; the caller synchronizes.
func newReport(candidate string, o Options) *Report {
	changes := func() Changes {
		return Changes{rules: map[[2]judgement.Verdict]*Turn{}, principals: map[string]int{}, tools: map[string]int{}}
	}
	return &Report{
		Candidate: candidate, Revisions: map[string]int{}, Changed: changes(), Adjusted: changes(), Failed: changes(),
		options: o, effects: map[[2]policy.Effect]int{}, errors: map[string]Cause{}, unjudged: map[string]Cause{},
	}
}

// maxCauses bounds the causes that are distinguished: some may hold words of callers.
const maxCauses = 100

// note counts a cause. Of the decisions where it occurs, the one with the lowest id is kept.
func note(causes map[string]Cause, cause, decision string) {
	c, known := causes[cause]
	if !known && len(causes) >= maxCauses {
		cause = "others"
		c = causes[cause]
	}
	if c.DecisionID == "" || decision != "" && decision < c.DecisionID {
		c.DecisionID = decision
	}
	causes[cause] = Cause{cause, c.Count + 1, c.DecisionID}
}

// count counts a decision that was judged again, and returns its difference.
func (r *Report) count(number int, rec *audit.Record, again *judgement.Retrial) judgement.Difference {
	if r.First.IsZero() || rec.Time.Before(r.First) {
		r.First = rec.Time
	}
	if rec.Time.After(r.Last) {
		r.Last = rec.Time
	}
	was, now := again.Was, &again.Now
	r.Revisions[was.Revision]++
	if again.Failed != nil {
		note(r.errors, again.Failed.Error(), rec.DecisionID)
	}
	failed := was.Rule == judgement.RuleFailed
	if !failed {
		r.Judged++
		r.effects[[2]policy.Effect{was.Effect, now.Effect}]++
	}
	if !failed && again.Difference == judgement.Same {
		r.Same++
		return judgement.Same
	}
	e := Example{
		number: number, DecisionID: rec.DecisionID, Time: rec.Time, Principal: judgement.PrincipalName(&again.Input.Principal),
		Tool: judgement.SubjectName(again.Input), Reason: now.Reason,
	}
	if !r.options.Bare {
		e.Arguments = text.Clip(string(again.Input.Arguments), argumentsShown, "…")
	}
	switch {
	case failed:
		r.Failed.add(r.options.Examples, e, was, now)
		return judgement.Same
	case again.Difference == judgement.ByEffect:
		r.Changed.add(r.options.Examples, e, was, now)
		return again.Difference
	case again.Difference == judgement.ByObligations:
		e.Was, e.Now = obliged(was), obliged(now)
	}
	r.Adjusted.add(r.options.Examples, e, was, now)
	return again.Difference
}

// obliged is what a verdict obliges to, in words of JSON.
func obliged(d *policy.Decision) string {
	plain := *d
	plain.Labels = nil
	return cmp.Or(string(judgement.EncodeObligations(&plain)), "none")
}

// add counts a change and keeps the first examples of its group.
func (c *Changes) add(examples int, e Example, was, now *policy.Decision) {
	c.Count++
	c.principals[e.Principal]++
	c.tools[e.Tool]++
	key := [2]judgement.Verdict{judgement.VerdictOf(was), judgement.VerdictOf(now)}
	t := c.rules[key]
	if t == nil {
		t = &Turn{Was: key[0], Now: key[1]}
		c.rules[key] = t
	}
	t.Count++
	at, _ := slices.BinarySearchFunc(t.Examples, e.number, func(a Example, n int) int { return cmp.Compare(a.number, n) })
	if at < examples {
		t.Examples = slices.Insert(t.Examples, at, e)
		t.Examples = t.Examples[:min(len(t.Examples), examples)]
	}
}

// finish lists what was counted, the most frequent first.
func (r *Report) finish() *Report {
	r.Effects, r.Errors, r.Unjudged = []Move{}, causes(r.errors), causes(r.unjudged)
	for pair, n := range r.effects {
		r.Effects = append(r.Effects, Move{pair[0], pair[1], n})
	}
	slices.SortFunc(r.Effects, func(a, b Move) int { return cmp.Or(a.Was.Compare(b.Was), a.Now.Compare(b.Now)) })
	for _, c := range []*Changes{&r.Changed, &r.Adjusted, &r.Failed} {
		c.Rules, c.Principals, c.Tools = []Turn{}, shares(c.principals), shares(c.tools)
		for _, t := range c.rules {
			c.Rules = append(c.Rules, *t)
		}
		slices.SortFunc(c.Rules, func(a, b Turn) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), a.Was.Compare(b.Was), a.Now.Compare(b.Now))
		})
	}
	return r
}

func shares(counts map[string]int) []Share {
	out := []Share{}
	for name, n := range counts {
		out = append(out, Share{name, n})
	}
	slices.SortFunc(out, func(a, b Share) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) })
	return out
}

func causes(found map[string]Cause) []Cause {
	out := slices.AppendSeq([]Cause{}, maps.Values(found))
	slices.SortFunc(out, func(a, b Cause) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause)) })
	return out
}
