package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	c := command("explain [ID | TOOL]", "say why a call was decided so, and what would be allowed", func(ctx context.Context, args []string) error {
		return e.explain(ctx, &s, strings.Join(args, ""), trace)
	})
	s.flags(c)
	c.Flags().BoolVar(&trace, "trace", false, "print the evaluation step by step")
	return c
}

// explained is the report of explain.
type explained struct {
	Revision string        `json:"revision"` // of the policy that explains
	Input    *policy.Input `json:"input"`
	rego.Explanation
	Recorded *recorded    `json:"recorded,omitempty"`
	Roles    []roleAnswer `json:"roles,omitempty"` // that may call the tool, when the caller may not
}

// recorded is what the trail has about a call.
type recorded struct {
	Time     time.Time        `json:"time"`
	ID       string           `json:"decision_id"`
	Outcome  string           `json:"outcome,omitempty"`
	Decision *policy.Decision `json:"decision,omitempty"` // nil = the policy was not asked
}

// A roleAnswer says what another role may do.
type roleAnswer struct {
	Role string `json:"role"`
	May  string `json:"may"` // in words
}

func (e *env) explain(ctx context.Context, s *supposed, what string, trace bool) error {
	engine, cfg, err := e.openPolicy(ctx, s.path)
	if err != nil {
		return err
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
	if out.Hopeless() && out.Whole == "" {
		out.Roles = whoMay(ctx, engine, knownRoles(cfg, engine), out.Input.Tool)
	}
	return e.Print("explanation", &out)
}

// recall finds a call in the trail by the id of its decision, call or trace.
func (e *env) recall(ctx context.Context, id string) (*policy.Input, *recorded, error) {
	if id == "" {
		return nil, nil, usage(errors.New("name the id of a recorded call, or who calls what\nhint: toolgate policy explain --as ROLE TOOL --args '{…}'"))
	}
	dir, err := e.trail()
	if err != nil {
		return nil, nil, err
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

// supposing returns the call of a record for which the policy was not asked: a
// tool that the caller does not see does not exist for it.
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
			out = append(out, roleAnswer{role, strings.Join(c.Lines(), "; ")})
		}
	}
	return out
}

// Unasked reports that the recorded call ended before the policy was asked.
func (x *explained) Unasked() bool { return x.Recorded != nil && x.Recorded.Decision == nil }

// Replaced reports that another policy decided the recorded call.
func (x *explained) Replaced() bool {
	return x.Recorded != nil && x.Recorded.Decision != nil && x.Recorded.Decision.Revision != x.Revision
}

// SameDecision reports that both policies decide the same.
func (x *explained) SameDecision() bool {
	return judgement.Compare(x.Recorded.Decision, &x.Decision) == judgement.Same
}

// Hopeless reports that the caller is denied whatever it sends.
func (x *explained) Hopeless() bool {
	return x.Decision.Effect == policy.Deny && x.Input.Calls() && len(x.Ways) == 0
}

// Caller and Called name who called what.
func (x *explained) Caller() string { return judgement.PrincipalName(&x.Input.Principal) }
func (x *explained) Called() string { return judgement.SubjectName(x.Input) }
