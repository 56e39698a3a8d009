// Package advice answers what people ask a running toolgate about its policy: what is wrong with it, who may
// call what, why a call would be decided so, and what another policy would change. Nothing in it changes
// what serves, and no call of an agent waits for it.
package advice

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
	"github.com/toolgate/toolgate/registry/config"
)

// Options say what advice is about. The functions are safe for concurrent use.
type Options struct {
	Engine func() *rego.Engine   // that serves
	Source func() rego.Options   // where the policy lies that Engine was loaded from
	Config func() *config.Config // the tokens of people, and what is laid over the policy
	Tools  func() []policy.Tool  // that servers list, in the order of their exposed names
	Roles  func() []string       // that callers may have
	Shadow func() string         // counts of the shadow policy; "" = there is none
	Served func() []console.ServedPolicy
	Usage  *limit.Usage
	Trail  string // directory
}

// Desk gives advice. It is safe for concurrent use, and implements console.PolicyReader and
// console.PolicyJudge.
type Desk struct {
	o Options

	mu    sync.Mutex // protects state and about
	state console.PolicyState
	about string // what state is about
}

// New returns a desk.
func New(o Options) *Desk { return &Desk{o: o} }

// surveyTime bounds how long callers and tools are looked at for one State.
const surveyTime = 3 * time.Second

// State returns the policy that serves and what is wrong with it. What it found is kept until policy or
// tools change.
func (d *Desk) State(ctx context.Context) (console.PolicyState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	engine, tools := d.o.Engine(), d.o.Tools()
	about := engine.Revision()
	for _, t := range tools {
		about += "\n" + t.Exposed + " " + t.Fingerprint
	}
	if d.about != about {
		findings, err := d.findings(ctx, engine, tools)
		if err != nil {
			return console.PolicyState{}, err
		}
		d.state, d.about = console.PolicyState{Revision: engine.Revision(), Roles: engine.Roles(), Findings: findings}, about
	}
	state := d.state
	state.Shadow, state.Revisions = d.o.Shadow(), d.o.Served()
	return state, nil
}

// findings returns what is wrong with the policy that serves, and with what lies at its place now.
func (d *Desk) findings(ctx context.Context, engine *rego.Engine, tools []policy.Tool) ([]console.Finding, error) {
	found := []console.Finding{}
	checked, slips, err := rego.Check(ctx, d.o.Source())
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		found = append(found, refused(err)...)
	default:
		found = append(found, Findings(slips)...)
		if checked.Revision() != engine.Revision() {
			found = append(found, console.Finding{Level: string(rego.LevelWarning), Code: "not-serving", Message: "the policy at its path is another one, which does not serve yet", Hint: "reload, or see why the last reload was refused"})
		}
	}
	surveying, stop := context.WithTimeout(ctx, surveyTime)
	defer stop()
	return append(found, Doubts(workbench.SurveyOf(surveying, engine, callers(d.o.Roles()), tools, nil))...), ctx.Err()
}

// Findings returns what a compiler or a check says of a policy, as people read it.
func Findings(slips []rego.Finding) (found []console.Finding) {
	for _, s := range slips {
		found = append(found, console.Finding{Level: string(s.Level), Code: s.Code, Where: s.Where(), Message: s.Message, Hint: s.Hint, File: s.File, Row: s.Row})
	}
	return found
}

// Doubts returns what a survey found, as people read it.
func Doubts(s workbench.Survey) (found []console.Finding) {
	for _, d := range s.Doubts {
		f := console.Finding{Level: string(d.Level), Code: d.Code, Message: d.Message, Hint: d.Hint}
		if d.Tool != "" {
			f.Where = "tool " + d.Tool
		}
		found = append(found, f)
	}
	return found
}

// callers returns a principal for each role, whose subject is unknown.
func callers(roles []string) (all []policy.Principal) {
	for _, role := range roles {
		all = append(all, policy.Principal{Roles: []string{role}})
	}
	return all
}

// Matrix returns who may call what.
func (d *Desk) Matrix(ctx context.Context, q console.MatrixQuery) (console.PolicyMatrix, error) {
	engine := d.o.Engine()
	m := console.PolicyMatrix{Revision: engine.Revision(), Cells: []workbench.Cell{}, Roles: d.o.Roles(), Rules: map[string]console.RuleText{}}
	tools := slices.DeleteFunc(d.o.Tools(), func(t policy.Tool) bool {
		return t.Exposed <= q.After && q.After != "" || len(q.Tools) > 0 && !slices.Contains(q.Tools, t.Exposed)
	})
	if len(tools) > q.Limit {
		tools = tools[:q.Limit]
		m.Next = tools[q.Limit-1].Exposed
	}
	asked := callers(q.Roles)
	switch {
	case q.Subject != "":
		asked = []policy.Principal{Principal(d.o.Config(), policy.Principal{Subject: q.Subject, Roles: q.Roles})}
	case len(q.Roles) == 0:
		asked = callers(m.Roles)
	}
	var err error
	m.Cells, err = workbench.Matrix(ctx, engine, asked, tools, nil)
	for _, c := range m.Cells {
		for _, clause := range c.Clauses {
			if _, known := m.Rules[clause.Rule]; known {
				continue
			}
			if where, text := engine.RuleText(clause.Rule); text != "" {
				m.Rules[clause.Rule] = console.RuleText{Where: where, Text: text}
			}
		}
	}
	return m, err
}

const (
	// sourceFiles and sourceBytes bound what Files returns.
	sourceFiles = 200
	sourceBytes = 1 << 20
)

// Files returns the texts of the policy that serves as they are at its place now, none for one that lies in
// an archive or is too large to be edited in a browser.
func (d *Desk) Files(context.Context) (map[string][]byte, error) {
	at := d.o.Source().Path
	var source fs.FS = bundle.Files
	if info, err := os.Stat(at); at != "" && (err != nil || !info.IsDir()) {
		return nil, err
	} else if at != "" {
		source = os.DirFS(at)
	}
	files, size := map[string][]byte{}, 0
	err := fs.WalkDir(source, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !slices.Contains([]string{".rego", ".json", ".yaml"}, path.Ext(name)) {
			return err
		}
		text, err := fs.ReadFile(source, name)
		files[name] = text
		if size += len(text); size > sourceBytes || len(files) > sourceFiles {
			return errTooLarge
		}
		return err
	})
	if errors.Is(err, errTooLarge) {
		return nil, nil
	}
	return files, err
}

var errTooLarge = errors.New("the policy is too large")

// Principal completes a principal with what the token of its subject says.
func Principal(cfg *config.Config, p policy.Principal) policy.Principal {
	named := len(p.Roles) > 0
	for _, t := range cfg.Identity.Tokens {
		if t.Subject != p.Subject || p.Subject == "" {
			continue
		}
		p.Person, p.Tenant = t.Person, cmp.Or(p.Tenant, t.Tenant)
		if !named {
			p.Roles = t.Roles
		}
	}
	p.Subject = cmp.Or(p.Subject, "somebody")
	return p
}

// input returns the input of a call. The error wraps console.ErrBadCall.
func (d *Desk) input(ctx context.Context, engine *rego.Engine, c console.SupposedCall) (*policy.Input, error) {
	in := &policy.Input{
		Principal: Principal(d.o.Config(), policy.Principal{Subject: c.Subject, Roles: c.Roles, Client: c.Client, Tenant: c.Tenant}),
		Request:   policy.Request{ID: "1", Transport: "console", TraceID: "trc_supposed", Time: cmp.Or(c.Time, time.Now()).UTC()},
		Arguments: c.Arguments,
	}
	if len(in.Arguments) == 0 {
		in.Arguments = json.RawMessage("{}")
	}
	tools := d.o.Tools()
	i := slices.IndexFunc(tools, func(t policy.Tool) bool { return t.Exposed == c.Tool })
	if i < 0 {
		return nil, fmt.Errorf("%w: no server lists the tool %s", console.ErrBadCall, c.Tool)
	}
	in.Tool = tools[i]
	meters := engine.Meters(in.Tool)
	in.Usage = policy.Unused(meters)
	if c.Subject != "" && len(meters) > 0 {
		use, err := limit.Measure(in.Principal, in.Tool.Exposed, "", in.Arguments, meters)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", console.ErrBadCall, err)
		}
		if in.Usage, err = d.o.Usage.Read(ctx, use); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// CanI says whether a call would be allowed.
func (d *Desk) CanI(ctx context.Context, c console.SupposedCall) (a console.PolicyAnswer, err error) {
	engine := d.o.Engine()
	in, err := d.input(ctx, engine, c)
	if err != nil {
		return a, err
	}
	if a.Decision, err = engine.Decide(ctx, in); err != nil {
		a.Failure = rego.Cause(err)
	}
	a.Answer = map[policy.Effect]string{policy.Allow: "yes", policy.Hold: "held"}[a.Decision.Effect]
	a.Answer = cmp.Or(a.Answer, "no")
	if len(c.Arguments) == 0 {
		if cell, err := workbench.CellOf(ctx, engine, in.Principal, in.Tool); err == nil && cell.May == workbench.Sometimes {
			a.May = cell.Lines()
		}
	}
	return a, nil
}

// Explain says why a call would be decided so.
func (d *Desk) Explain(ctx context.Context, c console.SupposedCall) (x console.PolicyExplanation, err error) {
	engine := d.o.Engine()
	x.Revision = engine.Revision()
	if x.Input, err = d.input(ctx, engine, c); err != nil {
		return x, err
	}
	if x.Explanation, err = workbench.Explain(ctx, engine, x.Input, false); err != nil {
		return x, fmt.Errorf("%w: %w", console.ErrBadCall, err)
	}
	if x.Decision.Effect != policy.Deny || len(x.Ways) > 0 || x.Whole != "" {
		return x, nil
	}
	x.Roles = workbench.WhoMay(ctx, engine, d.o.Roles(), x.Input.Tool)
	return x, nil
}
