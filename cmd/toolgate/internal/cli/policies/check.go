package policies

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

func policyCheck(e *command.Env) *cobra.Command {
	var path, subject string
	var live, notes bool
	var strict command.Strictness
	c := command.WithForms(e.Printing("check [POLICY]", "compile the policy, try it on samples, and look for mistakes", func(ctx context.Context, args []string) (*report.Report, error) {
		path := append(args, path)[0]
		options, cfg, err := policySource(ctx, e, path)
		if err != nil {
			return nil, err
		}
		engine, slips, err := rego.Check(ctx, options)
		if err != nil {
			return nil, e.Unservable(err, options.Path)
		}
		v := &View{engine, e, path, cfg}
		tools, err := v.tools(ctx, live)
		if err != nil {
			return nil, err
		}
		callers := v.callers(subject, nil)
		progress, end := pairsProgress(e, len(callers)*len(tools))
		surveying, stop := context.WithTimeout(ctx, surveyTime)
		defer stop()
		sight := workbench.SurveyOf(surveying, engine, callers, tools, progress)
		end()
		found := append(command.Placed(slips, options.Path), advice.Doubts(sight)...)
		// A configuration is about the policy at path if somebody named the configuration, or that policy serves.
		absolute, err := filepath.Abs(path)
		if concerns := path == "" || e.Config != command.DefaultConfig || err == nil && absolute == cfg.Policy.Path; !concerns {
			cfg = nil
		}
		found = append(found, app.UnknownRoles(cfg, engine)...)
		if cfg != nil {
			tools = slices.DeleteFunc(tools, func(t policy.Tool) bool { return !live || t.Fingerprint == "" }) // not listed by a server
			found = append(found, app.UnknownTools(cfg, engine, tools)...)
		}
		failed := strict.Refuse(found)
		out := checked{OK: failed == nil, Revision: engine.Revision(), Roles: engine.Roles(), Findings: found, Survey: sight, Visible: engine.DefinesVisible()}
		for _, f := range found {
			if f.Level == command.LevelNote && !notes {
				out.Notes++
			}
		}
		return report.Of(out, policyCheckText), failed
	}), "github")
	policyPath(c, &path)
	c.Flags().StringVar(&subject, "subject", "", "look at the tools as this `SUBJECT` with the roles of its token (default: each role, subject unknown)")
	c.Flags().BoolVar(&live, "live", false, "start the upstreams and ask them for their tools")
	strict.Bind(c)
	c.Flags().BoolVar(&notes, "notes", false, "print notes on style, and not only their number")
	return c
}

// surveyTime bounds how long callers and tools are looked at.
const surveyTime = 20 * time.Second

// checked is the report of policy check.
type checked struct {
	OK       bool              `json:"ok"`
	Revision string            `json:"revision"`
	Roles    []string          `json:"roles"`
	Findings []command.Finding `json:"findings"`
	workbench.Survey
	Visible bool `json:"visible"`

	Notes int `json:"-"` // that the table leaves out
}

func policyMatrix(e *command.Env) *cobra.Command {
	var path, subject string
	var roles, names []string
	var live bool
	c := command.WithForms(e.Printing("matrix", "show which role may call which tool, and when", func(ctx context.Context, _ []string) (*report.Report, error) {
		v, err := Open(ctx, e, path)
		if err != nil {
			return nil, err
		}
		tools, err := v.tools(ctx, live)
		if err != nil {
			return nil, err
		}
		if len(names) > 0 {
			tools = v.named(tools, names...)
		}
		for _, role := range roles {
			command.NoteUnknown(e, "role", role, KnownRoles(v.Config, v.Engine))
		}
		callers := v.callers(subject, roles)
		if len(callers) == 0 || len(tools) == 0 {
			return nil, command.Usage(fmt.Errorf("the policy names %s and %s: there is nothing to show\nhint: --roles and --tools name some", text.Count(len(callers), "role"), text.Count(len(tools), "tool")))
		}
		progress, end := pairsProgress(e, len(callers)*len(tools))
		defer end()
		known, err := workbench.Matrix(ctx, v.Engine, callers, tools, progress)
		if err != nil {
			return nil, err
		}
		cells, notes := make([]cell, len(known)), 0
		for i, c := range known {
			cells[i].Cell = c
			if c.May == workbench.Sometimes || c.May == workbench.Depends {
				notes++
				cells[i].Note = notes
			}
		}
		return report.Of(matrixReport{v.Revision(), cells, slices.Collect(slices.Chunk(cells, len(tools)))}, matrixText), nil
	}), "markdown")
	policyPath(c, &path)
	f := c.Flags()
	f.StringVar(&subject, "subject", "", "what one `SUBJECT` may do (default: the subject is unknown)")
	f.StringSliceVar(&roles, "roles", nil, "only this `ROLE`, which data.roles need not name; may be repeated")
	f.StringSliceVar(&names, "tools", nil, "only this `TOOL`, which need not be known; may be repeated")
	f.BoolVar(&live, "live", false, "start the upstreams and ask them for their tools")
	return c
}

// cell is a workbench.Cell with the number of its note below the table; 0 = none.
type cell struct {
	workbench.Cell
	Note int `json:"-"`
}

// Rows are Lines for a terminal: a condition that makes a line too long begins the next.
func (c cell) Rows() (out []string) {
	for _, line := range c.Lines() {
		row := ""
		for i, part := range strings.Split(strings.NewReplacer(" and ", " and \n", "; ", "; \n").Replace(line), "\n") {
			if i > 0 && len(row)+len(part) > widestRow {
				out, row = append(out, strings.TrimSpace(row)), "  "
			}
			row += part
		}
		out = append(out, row)
	}
	return out
}

// widestRow is the widest row of a matrix, beside the names of a role and a tool.
const widestRow = 60

// pairsProgress returns what shows how many of all pairs of a role and a tool were looked at, and what
// ends it.
func pairsProgress(e *command.Env, all int) (progress func(done int), end func()) {
	bar := e.Progress(false)
	return func(done int) {
		bar.Update(int64(done), int64(all), func() string { return fmt.Sprintf("%d of %s of a role and a tool", done, text.Count(all, "pair")) })
	}, bar.End
}

// matrixReport is what policy matrix prints.
type matrixReport struct {
	Revision string   `json:"revision"`
	Cells    []cell   `json:"cells"`
	Rows     [][]cell `json:"-"` // the same, one row for each caller
}
