package policies

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// A supposed call is described by the flags of explain and can-i and never
// made.
type supposed struct {
	policy                  string // its path; "" = as configured
	roles                   []string
	subject, client, tenant string
	args, usage             string
	at                      time.Time
	server, risk            string
	annotations, input      string

	*View // that is asked; nil until call
}

func (s *supposed) flags(c *cobra.Command) {
	f := c.Flags()
	policyPath(c, &s.policy)
	f.StringSliceVar(&s.roles, "as", nil, "`ROLE` of whoever calls; may be repeated")
	f.StringVar(&s.subject, "subject", "", "`SUBJECT` who calls; without --as with the roles that the subject's token has")
	f.StringVar(&s.client, "client", "", "`NAME` that the client gives itself")
	f.StringVar(&s.tenant, "tenant", "", "`TENANT` of whoever calls")
	f.StringVar(&s.args, "args", noArguments, "arguments as a `JSON` object; @FILE reads a file, - stdin")
	f.StringVar(&s.usage, "usage", "", "what meters stand at, as `JSON` such as {\"day\":{\"calls\":3,\"sum\":900}} (default: as the state directory has it for --subject, else nothing was used)")
	f.Var((*command.Moment)(&s.at), "time", "`TIME` of the call: RFC 3339, or how long ago (default: now)")
	f.StringVar(&s.server, "server", "", "`SERVER` of the tool (default: as the configuration says)")
	f.StringVar(&s.risk, "risk", "", "`RISK` of the server (default: as the configuration says)")
	f.StringVar(&s.annotations, "annotations", "", "annotations of the tool as a `JSON` object (default: as the server said)")
	f.StringVar(&s.input, "input", "", "the whole input as `JSON` in place of all this; @FILE reads a file, - stdin")
}

// asks reports whether the flags describe a call.
func (s *supposed) asks() bool { return len(s.roles) > 0 || s.subject != "" || s.input != "" }

// call returns the input that the flags and a tool's name describe.
func (s *supposed) call(ctx context.Context, tool string) (*policy.Input, error) {
	if s.input != "" {
		if tool != "" {
			return nil, command.Usage(errors.New("--input has its tool\nhint: leave out the name"))
		}
		raw, err := s.Env.JSONObject("input", s.input)
		if err != nil {
			return nil, err
		}
		in := new(policy.Input)
		if err := json.Unmarshal(raw, in); err != nil {
			return nil, command.Usage(fmt.Errorf("--input: %w\nhint: docs/schemas/policy-input.json says what it is", err))
		}
		return in, nil
	}
	if tool == "" || !s.asks() {
		return nil, command.Usage(errors.New("name a tool and who calls it\nhint: --as ROLE TOOL --args '{…}'"))
	}
	in := &policy.Input{Request: policy.Request{ID: "1", Transport: "cli", TraceID: "trc_supposed", Time: cmp.Or(s.at, time.Now()).UTC()}}
	in.Principal = advice.Principal(s.Config, policy.Principal{Subject: s.subject, Roles: s.roles, Client: s.client, Tenant: s.tenant})
	for _, role := range s.roles {
		command.NoteUnknown(s.Env, "role", role, KnownRoles(s.Config, s.Engine))
	}
	var err error
	if in.Tool, err = s.tool(ctx, tool); err != nil {
		return nil, err
	}
	if in.Arguments, err = s.Env.JSONObject("args", s.args); err != nil {
		return nil, err
	}
	return in, s.fillUsage(ctx, in)
}

// tool returns a tool by its exposed name, as the flags describe it.
func (s *supposed) tool(ctx context.Context, name string) (policy.Tool, error) {
	known, err := s.tools(ctx, false)
	if err != nil {
		return policy.Tool{}, err
	}
	t := s.named(known, name)[0]
	t.Server, t.Risk = cmp.Or(s.server, t.Server), cmp.Or(s.risk, t.Risk)
	if s.annotations != "" {
		t.Annotations, err = s.Env.JSONObject("annotations", s.annotations)
	}
	return t, err
}

// fillUsage fills in what the meters of the tool stand at: as the flag says, or as the state
// directory, if it exists, has counted for the subject.
func (s *supposed) fillUsage(ctx context.Context, in *policy.Input) error {
	meters := s.Meters(in.Tool)
	in.Usage = policy.Unused(meters)
	if s.usage != "" {
		raw, err := s.Env.JSONObject("usage", s.usage)
		if err != nil {
			return err
		}
		if err := policy.ReadStrict(raw, &in.Usage); err != nil {
			return command.Usage(fmt.Errorf("--usage: %w\nhint: --usage '{\"day\":{\"calls\":3,\"sum\":900}}'", err))
		}
		return nil
	}
	if s.subject == "" || len(meters) == 0 || !s.Env.HasState() {
		return nil
	}
	use, err := limit.Measure(in.Principal, in.Tool.Exposed, "", in.Arguments, meters)
	if err != nil {
		return command.Usage(err)
	}
	return s.Env.WithStore(ctx, func(db *store.DB) error {
		in.Usage, err = limit.NewUsage(db, nil).Read(ctx, use)
		return err
	})
}

// permission is the report of can-i.
type permission struct {
	Answer   string          `json:"answer"`
	Decision policy.Decision `json:"decision"`
	May      []string        `json:"may,omitempty"` // verdicts of other arguments, where the call has none and they decide
	Rows     []string        `json:"-"`             // May, for a terminal
	Failure  error           `json:"-"`
}

func policyCanI(e *command.Env) *cobra.Command {
	var s supposed
	c := e.Printing("can-i [TOOL]", "say whether a call would be allowed", func(ctx context.Context, args []string) (*report.Report, error) {
		v, err := Open(ctx, e, s.policy)
		if err != nil {
			return nil, err
		}
		s.View = v
		in, err := s.call(ctx, strings.Join(args, ""))
		if err != nil {
			return nil, err
		}
		var out permission
		out.Decision, out.Failure = v.Decide(ctx, in)
		if s.args == noArguments && s.input == "" {
			known, err := workbench.CellOf(ctx, v.Engine, in.Principal, in.Tool)
			if err != nil {
				return nil, err
			}
			c := cell{Cell: known}
			reads := func(w string) bool {
				return strings.Contains(w, "input.arguments") || strings.Contains(w, "input.facts")
			}
			if c.May == workbench.Sometimes && slices.ContainsFunc(c.Clauses, func(b workbench.Clause) bool { return slices.ContainsFunc(b.When, reads) }) {
				out.May, out.Rows = c.Lines(), c.Rows()
			}
		}
		switch out.Decision.Effect {
		case policy.Allow:
			out.Answer = "yes"
			return report.Of(out, answerText), nil
		case policy.Hold:
			out.Answer = "held"
			return report.Of(out, answerText), command.ExitIf(true, command.ExitApproval)
		}
		out.Answer = "no"
		return report.Of(out, answerText), command.ExitIf(true, command.ExitDenied)
	})
	s.flags(c)
	return c
}

// noArguments is the default of --args.
const noArguments = "{}"

// approvers says how many approvals a held call needs, and from whom.
func approvers(a *policy.Approval) string {
	by := strings.Join(a.Roles, " or ")
	if len(a.Each) > 0 {
		by = workbench.EachRole(a.Each)
	}
	return fmt.Sprintf("needs %s by %s", text.Count(max(a.Quorum, 1), "approval"), by)
}

func policyExplain(e *command.Env) *cobra.Command {
	var s supposed
	var trace bool
	c := e.Printing("explain [ID | TOOL]", "say why a call was decided so, and what would be allowed", func(ctx context.Context, args []string) (*report.Report, error) {
		v, err := Open(ctx, e, s.policy)
		if err != nil {
			return nil, err
		}
		s.View = v
		what := strings.Join(args, "")
		out := &explained{Revision: v.Revision(), engine: v.Engine}
		if s.asks() {
			out.Input, err = s.call(ctx, what)
		} else if out.Input, out.Recorded, err = recall(ctx, e, what); err == nil && out.Recorded.Decision == nil {
			asked := supposed{View: v}
			if out.Input.Tool, err = asked.tool(ctx, out.Input.Tool.Exposed); err == nil {
				err = asked.fillUsage(ctx, out.Input)
			}
		}
		if err != nil {
			return nil, err
		}
		if out.Explanation, err = workbench.Explain(ctx, v.Engine, out.Input, trace); err != nil {
			return nil, err
		}
		if out.Hopeless() && out.Whole == "" {
			out.Roles = workbench.WhoMay(ctx, v.Engine, KnownRoles(v.Config, v.Engine), out.Input.Tool)
		}
		return report.Of(out, explanationText), nil
	})
	s.flags(c)
	c.Flags().BoolVar(&trace, "trace", false, "print the evaluation step by step")
	return c
}

// explained is the report of explain.
type explained struct {
	Revision string        `json:"revision"` // of the policy that explains
	Input    *policy.Input `json:"input"`
	workbench.Explanation
	Recorded *recorded              `json:"recorded,omitempty"`
	Roles    []workbench.RoleAnswer `json:"roles,omitempty"` // that may call the tool, when the caller may not

	engine *rego.Engine
}

// recorded is what the trail has about a call.
type recorded struct {
	Time     time.Time        `json:"time"`
	ID       string           `json:"decision_id"`
	Outcome  string           `json:"outcome,omitempty"`
	Decision *policy.Decision `json:"decision,omitempty"` // nil = the policy was not asked
}

// recall finds a call in the trail by the id of its decision, call or trace.
func recall(ctx context.Context, e *command.Env, id string) (*policy.Input, *recorded, error) {
	if id == "" {
		return nil, nil, command.Usage(errors.New("name the id of a recorded call, or who calls what\nhint: toolgate policy explain --as ROLE TOOL --args '{…}'"))
	}
	dir, err := e.Trail()
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
		// A tool that the caller does not see does not exist for it.
		return &policy.Input{
			Principal: policy.Principal{Subject: unasked.Principal.Subject, Roles: unasked.Principal.Roles, Client: unasked.Principal.Client, Tenant: unasked.Principal.Tenant},
			Tool:      policy.Tool{Server: unasked.Server, Name: unasked.Tool, Exposed: unasked.Exposed, Fingerprint: unasked.Fingerprint},
			Arguments: unasked.Arguments,
			Request:   policy.Request{ID: unasked.RequestID, Transport: unasked.Transport, Era: unasked.Era, TraceID: unasked.TraceID, Time: unasked.Time, Tags: unasked.Tags},
		}, &recorded{Time: unasked.Time, ID: unasked.DecisionID, Outcome: string(unasked.Outcome)}, nil
	case why != nil:
		return nil, nil, fmt.Errorf("explaining %s: %w", id, why)
	}
	return nil, nil, command.Usage(fmt.Errorf("no record has the id %s\nhint: it is error.data.decision_id of a refusal; --state names another trail", id))
}

// Readable returns conditions of a Way as people read them, each alternative on its own line.
func (x *explained) Readable(conditions []string) (out []string) {
	for _, c := range conditions {
		for i, one := range strings.Split(c, " or ") {
			text := strings.Join(workbench.Readable(x.engine.Facts(x.Input.Tool.Exposed), strings.Split(one, " and ")), " and ")
			if i > 0 {
				text = "or " + text
			}
			out = append(out, text)
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
