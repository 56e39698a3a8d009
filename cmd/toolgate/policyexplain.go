package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rego"
)

func policyExplain(e *env) *cobra.Command {
	var s supposed
	var trace bool
	c := &cobra.Command{
		Use: "explain ID | explain --as ROLE TOOL", Short: "say why a call was decided so, and what would be allowed", Args: cobra.MaximumNArgs(1),
		Long: `explain takes the decision_id of a refusal, or any other id of a recorded call, finds
it in the audit trail, and judges the same input again; or it judges a call that
nobody makes, as can-i does. It names the rule with its place and title, what it
read, and what would have to be other for the call to be allowed or held. When
the trail was written under another policy it says what was decided then, too:
--path names that policy, if it is still there.
Exit 0: there is an explanation.`,
		Example: `  toolgate policy explain dec_01JQ8Z…
  toolgate policy explain --as treasurer manage_wallet --args '{"action":"transfer","amount":500}'
  toolgate policy explain --input @input.json --trace`,
		RunE: func(c *cobra.Command, args []string) error {
			return e.explain(c.Context(), &s, strings.Join(args, ""), trace)
		},
	}
	s.flags(c)
	c.Flags().BoolVar(&trace, "trace", false, "print the evaluation step by step")
	return c
}

// explained is what explain says.
type explained struct {
	Revision string        `json:"revision"` // of the policy that explains
	Input    *policy.Input `json:"input"`
	rego.Explanation
	Recorded *recorded    `json:"recorded,omitempty"`
	Roles    []roleAnswer `json:"roles,omitempty"` // that may call the tool, when the caller may not
}

// recorded is what the trail has of a call.
type recorded struct {
	Time     time.Time        `json:"time"`
	ID       string           `json:"decision_id"`
	Outcome  string           `json:"outcome,omitempty"`
	Decision *policy.Decision `json:"decision,omitempty"` // nil = the policy was not asked
}

// roleAnswer is what another role would get.
type roleAnswer struct {
	Role string `json:"role"`
	May  string `json:"may"` // in words
}

func (e *env) explain(ctx context.Context, s *supposed, what string, trace bool) error {
	options, cfg, err := e.about(ctx, s.path)
	if err != nil {
		return err
	}
	engine, err := rego.Load(ctx, options)
	if err != nil {
		return e.unservable(err, options.Path)
	}
	out := explained{Revision: engine.Revision()}
	if s.asks() {
		out.Input, err = e.call(ctx, s, what, cfg, engine)
	} else if out.Input, out.Recorded, err = e.recall(ctx, what); err == nil && out.Recorded.Decision == nil {
		asked := supposed{}
		if out.Input.Tool, err = e.supposedTool(ctx, &asked, out.Input.Tool.Exposed, cfg, engine); err == nil {
			err = e.supposedUsage(ctx, &asked, cfg, engine, out.Input)
		}
	}
	if err != nil {
		return err
	}
	if out.Explanation, err = engine.Explain(ctx, out.Input, trace); err != nil {
		return err
	}
	if out.Decision.Effect == policy.Deny && out.Input.Calls() && len(out.Ways) == 0 && out.Whole == "" {
		out.Roles = whoMay(ctx, engine, knownRoles(cfg, engine), out.Input.Tool)
	}
	if e.output == "json" {
		return e.json(out)
	}
	e.sayExplanation(&out)
	return nil
}

// recall finds a call in the trail: by its decision, call, request or trace. The
// outcome, which stands last, says how it ended.
func (e *env) recall(ctx context.Context, id string) (*policy.Input, *recorded, error) {
	if id == "" {
		return nil, nil, usage(errors.New("name the id of a recorded call, or who calls what\nhint: toolgate policy explain --as ROLE TOOL --args '{…}'"))
	}
	dir, err := e.trail()
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, missing(fmt.Errorf("reading the trail: %w", err))
	}
	var in *policy.Input
	var found *recorded
	var why error
	var unasked *audit.Record
	for r, err := range audit.Read(ctx, dir, time.Time{}) {
		switch {
		case r == nil && errors.Is(err, audit.ErrNoRecord):
			continue
		case r == nil:
			return nil, nil, err
		case r.DecisionID != id && r.CallID != id && r.TraceID != id:
			continue
		}
		if r.Exposed != "" && r.Method == "" {
			unasked = r
		}
		again, d, err := judgement.Decode(r)
		if err == nil {
			in, found = again, &recorded{Time: r.Time, ID: r.DecisionID, Decision: d}
		} else if why == nil || !errors.Is(err, judgement.ErrElsewhere) {
			why = err
		}
		if found != nil && r.Outcome != "" {
			found.Outcome = string(r.Outcome)
		}
	}
	switch {
	case found != nil:
		return in, found, nil
	case errors.Is(why, judgement.ErrNotAsked) && unasked != nil:
		return supposing(unasked), &recorded{Time: unasked.Time, ID: unasked.DecisionID, Outcome: string(unasked.Outcome)}, nil
	case why != nil:
		return nil, nil, fmt.Errorf("explaining %s: %w", id, why)
	}
	return nil, nil, usage(fmt.Errorf("no record has the id %s\nhint: it is error.data.decision_id of a refusal; --state names another trail", id))
}

// supposing is the call of a record about which the policy was not asked: a tool
// that the caller does not see is not there for it.
func supposing(r *audit.Record) *policy.Input {
	return &policy.Input{
		Principal: policy.Principal{Subject: r.Principal.Subject, Roles: r.Principal.Roles, Client: r.Principal.Client, Tenant: r.Principal.Tenant},
		Tool:      policy.Tool{Server: r.Server, Name: r.Tool, Exposed: r.Exposed, Fingerprint: r.Fingerprint},
		Arguments: r.Arguments,
		Request:   policy.Request{ID: r.RequestID, Transport: r.Transport, Era: r.Era, TraceID: r.TraceID, Time: r.Time},
	}
}

// mostRoles bounds how many roles are asked who else may.
const mostRoles = 200

// whoMay finds the roles that may call a tool in some way.
func whoMay(ctx context.Context, engine *rego.Engine, roles []string, t policy.Tool) []roleAnswer {
	var out []roleAnswer
	for _, role := range roles[:min(len(roles), mostRoles)] {
		c, err := cellOf(ctx, engine, policy.Principal{Roles: []string{role}}, t)
		if err == nil && c.May != never {
			out = append(out, roleAnswer{role, strings.Join(c.lines(), "; ")})
		}
	}
	return out
}

func (e *env) sayExplanation(x *explained) {
	if r := x.Recorded; r != nil {
		e.sayRecorded(x, r)
	}
	d := &x.Decision
	head := string(d.Effect)
	if d.Rule != "" {
		head += " by " + d.Rule
	}
	if x.Where != "" {
		head += " (" + x.Where + ")"
	}
	e.line(head)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "  %s\t%s\n", name, oneLine(text))
		}
	}
	line("title", x.Title)
	line("about", x.Description)
	line("failure", x.Failure)
	line("reason", d.Reason)
	line("remedy", d.Remedy)
	if d.Approval != nil {
		line("people", approvers(d.Approval))
	}
	if d.Limit != nil {
		line("limit", d.Limit.Rate)
	}
	line("redact", strings.Join(d.Redact, ", "))
	line("policy", short(x.Revision))
	_ = w.Flush()
	if len(x.Facts) > 0 {
		e.line("it read")
		for _, f := range x.Facts {
			value := "(nothing)"
			if f.Value != nil {
				value = cut(string(f.Value), 200)
			}
			fmt.Fprintf(w, "  %s\t%s\n", oneLine(f.Path), oneLine(value))
		}
		_ = w.Flush()
	}
	e.sayWays(x)
	if x.Trace != "" {
		e.line("trace")
		e.line(indented(x.Trace))
	}
}

// line prints what may have come from elsewhere.
func (e *env) line(text string) { fmt.Fprintln(e.out, printable(text)) }

// sayRecorded says what the trail has, and whether the policy is still the same.
func (e *env) sayRecorded(x *explained, r *recorded) {
	e.line(fmt.Sprintf("recorded %s: %s called %s%s", r.Time.UTC().Format(time.RFC3339), judgement.PrincipalName(&x.Input.Principal), judgement.SubjectName(x.Input), prefixed(", which ended as ", r.Outcome)))
	if r.Decision == nil {
		e.line("the policy was not asked then: the call ended before it, as that of a tool does which the caller cannot see. Asked now, it says:")
		return
	}
	if r.Decision.Revision == x.Revision {
		return
	}
	e.line(fmt.Sprintf("decided then, by policy %s: %s: %s", short(r.Decision.Revision), r.Decision.Effect, reasoned(r.Decision, nil)))
	same := "the same"
	if judgement.Compare(r.Decision, &x.Decision) != judgement.Same {
		same = "something else"
	}
	e.line(fmt.Sprintf("the policy is another by now, %s, and says %s:", short(x.Revision), same))
}

func prefixed(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// sayWays says what would have to be other.
func (e *env) sayWays(x *explained) {
	for _, w := range x.Ways {
		verb := "it would be allowed"
		if w.Decision.Effect == policy.Hold {
			verb = "it would be held for people"
		}
		e.line(fmt.Sprintf("%s (%s) if", verb, w.Decision.Rule))
		for _, c := range w.Lacking {
			e.line("  " + c)
		}
		for _, c := range w.Open {
			e.line("  " + c + "   (may hold already)")
		}
	}
	switch {
	case x.Whole != "" && x.Decision.Effect != policy.Allow:
		e.line("what would be allowed is not known: " + x.Whole)
	case len(x.Roles) > 0:
		e.line("nothing that the caller sends would be allowed; roles that may call it:")
		for _, r := range x.Roles {
			e.line("  " + r.Role + ": " + r.May)
		}
	case x.Decision.Effect == policy.Deny && x.Input.Calls() && len(x.Ways) == 0:
		e.line("nothing that the caller sends would be allowed, and no role may call it")
	}
}
