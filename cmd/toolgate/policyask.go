package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/plural"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// A supposed call is described by the flags of explain and can-i and never
// made.
type supposed struct {
	path                    string
	roles                   []string
	subject, client, tenant string
	args, usage, at         string
	server, risk            string
	annotations, input      string
}

func (s *supposed) flags(c *cobra.Command) {
	f := c.Flags()
	policyPath(c, &s.path)
	f.StringSliceVar(&s.roles, "as", nil, "`ROLE` of whoever calls; may be repeated")
	f.StringVar(&s.subject, "subject", "", "`SUBJECT` who calls; without --as with the roles that the subject's token has")
	f.StringVar(&s.client, "client", "", "`NAME` that the client gives itself")
	f.StringVar(&s.tenant, "tenant", "", "`TENANT` of whoever calls")
	f.StringVar(&s.args, "args", "{}", "arguments as a `JSON` object; @FILE reads a file, - stdin")
	f.StringVar(&s.usage, "usage", "", "what meters stand at, as `JSON` such as {\"day\":{\"calls\":3,\"sum\":900}} (default: as the state directory has it for --subject, else nothing was used)")
	f.StringVar(&s.at, "time", "", "`TIME` of the call in RFC 3339 (default: now)")
	f.StringVar(&s.server, "server", "", "`SERVER` of the tool (default: as the configuration says)")
	f.StringVar(&s.risk, "risk", "", "`RISK` of the server (default: as the configuration says)")
	f.StringVar(&s.annotations, "annotations", "", "annotations of the tool as a `JSON` object (default: as the server said)")
	f.StringVar(&s.input, "input", "", "the whole input as `JSON` in place of all this; @FILE reads a file, - stdin")
}

// asks reports whether the flags describe a call.
func (s *supposed) asks() bool { return len(s.roles) > 0 || s.subject != "" || s.input != "" }

// call returns the input that the flags and a tool's name describe.
func (e *env) call(ctx context.Context, s *supposed, tool string, cfg *config.Config, engine *rego.Engine) (*policy.Input, error) {
	if s.input != "" {
		return e.wholeInput(s.input, tool)
	}
	if tool == "" || !s.asks() {
		return nil, usage(errors.New("name a tool and who calls it\nhint: --as ROLE TOOL --args '{…}'"))
	}
	in := &policy.Input{Request: policy.Request{ID: "1", Transport: "cli", TraceID: "trc_supposed", Time: time.Now().UTC()}}
	in.Principal = s.principal(cfg)
	var err error
	if in.Tool, err = e.supposedTool(ctx, s, tool, cfg, engine); err != nil {
		return nil, err
	}
	if in.Arguments, err = e.object("args", s.args); err != nil {
		return nil, err
	}
	if s.at != "" {
		if in.Request.Time, err = time.Parse(time.RFC3339, s.at); err != nil {
			return nil, usage(fmt.Errorf("--time %q is no time\nhint: --time 2026-03-02T15:04:05Z", s.at))
		}
	}
	return in, e.supposedUsage(ctx, s, cfg, engine, in)
}

// wholeInput reads an input as a policy sees it.
func (e *env) wholeInput(flag, tool string) (*policy.Input, error) {
	if tool != "" {
		return nil, usage(errors.New("--input has its tool\nhint: leave out the name"))
	}
	raw, err := e.object("input", flag)
	if err != nil {
		return nil, err
	}
	in := new(policy.Input)
	if err := json.Unmarshal(raw, in); err != nil {
		return nil, usage(fmt.Errorf("--input: %w\nhint: docs/schemas/policy-input.json says what it is", err))
	}
	return in, nil
}

func (s *supposed) principal(cfg *config.Config) policy.Principal {
	p := policy.Principal{Subject: s.subject, Roles: s.roles, Client: s.client, Tenant: s.tenant}
	p.Subject = cmp.Or(p.Subject, "somebody")
	for _, t := range cfg.Identity.Tokens {
		if t.Subject != s.subject {
			continue
		}
		p.Person, p.Tenant = t.Person, cmp.Or(p.Tenant, t.Tenant)
		if len(s.roles) == 0 {
			p.Roles = t.Roles
		}
	}
	return p
}

func (e *env) supposedTool(ctx context.Context, s *supposed, name string, cfg *config.Config, engine *rego.Engine) (policy.Tool, error) {
	known, err := e.knownTools(ctx, cfg, engine, false)
	if err != nil {
		return policy.Tool{}, err
	}
	t := toolsNamed(cfg, known, name)[0]
	if s.server != "" {
		t.Server = s.server
	}
	if s.risk != "" {
		t.Risk = s.risk
	}
	if s.annotations != "" {
		t.Annotations, err = e.object("annotations", s.annotations)
	}
	return t, err
}

// supposedUsage fills in what the meters of the tool stand at.
func (e *env) supposedUsage(ctx context.Context, s *supposed, cfg *config.Config, engine *rego.Engine, in *policy.Input) error {
	meters := engine.Meters(in.Tool)
	in.Usage = policy.Unused(meters)
	if s.usage != "" {
		raw, err := e.object("usage", s.usage)
		if err != nil {
			return err
		}
		if err := policy.ReadStrict(raw, &in.Usage); err != nil {
			return usage(fmt.Errorf("--usage: %w\nhint: --usage '{\"day\":{\"calls\":3,\"sum\":900}}'", err))
		}
		return nil
	}
	if s.subject == "" || len(meters) == 0 {
		return nil
	}
	return e.readUsage(ctx, cfg, meters, in)
}

// readUsage reads the usage that the state directory has counted, if it exists.
func (e *env) readUsage(ctx context.Context, cfg *config.Config, meters []policy.Meter, in *policy.Input) error {
	if !hasState(cmp.Or(e.state, cfg.State)) {
		return nil
	}
	use, err := limit.Measure(in.Principal, in.Tool.Exposed, "", in.Arguments, meters)
	if err != nil {
		return usage(err)
	}
	return e.withStore(ctx, func(db *store.DB) error {
		in.Usage, err = limit.NewUsage(db, nil).Read(ctx, use)
		return err
	})
}

func policyCanI(e *env) *cobra.Command {
	var s supposed
	c := command("can-i [TOOL]", "say whether a call would be allowed", func(ctx context.Context, args []string) error {
		return e.canI(ctx, &s, strings.Join(args, ""))
	})
	s.flags(c)
	return c
}

// canI prints the decision on a supposed call.
func (e *env) canI(ctx context.Context, s *supposed, tool string) error {
	engine, cfg, err := e.openPolicy(ctx, s.path)
	if err != nil {
		return err
	}
	in, err := e.call(ctx, s, tool, cfg, engine)
	if err != nil {
		return err
	}
	d, failed := engine.Decide(ctx, in)
	answer := map[policy.Effect]string{policy.Allow: "yes", policy.Hold: "held"}[d.Effect]
	answer = cmp.Or(answer, "no")
	err = e.Print("answer", struct {
		Answer   string          `json:"answer"`
		Decision policy.Decision `json:"decision"`
		Failure  error           `json:"-"`
	}{answer, d, failed})
	code := exitDenied
	if d.Effect == policy.Hold {
		code = exitApproval
	}
	return errors.Join(err, exitIf(d.Effect != policy.Allow, code))
}

// approvers says how many approvals a held call needs, and from whom.
func approvers(a *policy.Approval) string {
	by := strings.Join(a.Roles, " or ")
	if len(a.Each) > 0 {
		by = eachRole(a.Each)
	}
	return fmt.Sprintf("needs %s by %s", plural.Count(max(a.Quorum, 1), "approval"), by)
}

// eachRole names how many people of each role have to approve.
func eachRole(each map[string]int) string {
	var all []string
	for _, role := range slices.Sorted(maps.Keys(each)) {
		all = append(all, fmt.Sprintf("%d %s", each[role], role))
	}
	return strings.Join(all, " and ")
}
