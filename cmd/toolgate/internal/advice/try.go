package advice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
	"github.com/toolgate/toolgate/policy/workbench"
)

const (
	// shownExamples is how many calls a trial shows of each change.
	shownExamples = 3
	// comparedPairs bounds the pairs of a role and a tool of which a trial compares what they may.
	comparedPairs = 20_000
	// tryTime bounds one trial, and trySurveyTime a part of it.
	tryTime       = 30 * time.Minute
	trySurveyTime = 10 * time.Second
)

// Try checks a candidate, runs its tests, compares what roles may with the policy that serves, and judges
// recorded calls again. It takes one processor, and half an hour at most. Its files lie in a directory of
// their own meanwhile.
func (d *Desk) Try(ctx context.Context, c console.Candidate, report func(console.Progress)) (trial console.PolicyTrial, err error) {
	ctx, stop := context.WithTimeout(ctx, tryTime)
	defer stop()
	dir, err := os.MkdirTemp("", "toolgate-try-")
	if err != nil {
		return trial, fmt.Errorf("trying a policy: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeFiles(dir, c.Files); err != nil {
		return trial, fmt.Errorf("trying a policy: %w", err)
	}
	cfg := d.o.Config()
	options := rego.Options{Path: dir, Name: "the candidate", Data: cfg.Policy.Data, DataAt: cfg.Policy.DataAt, Timeout: 5 * rego.DefaultTimeout} // it shares the processors
	report(console.Progress{Doing: "checking"})
	candidate, slips, err := rego.Check(ctx, options)
	switch {
	case ctx.Err() != nil:
		return trial, ctx.Err()
	case err != nil:
		trial.Findings = refused(err)
		return trial, nil
	}
	trial.Revision, trial.Findings = candidate.Revision(), Findings(slips)
	report(console.Progress{Doing: "testing"})
	if trial.Tests, err = workbench.Test(ctx, workbench.TestOptions{Policy: options}); err != nil {
		trial.Findings = append(trial.Findings, refused(err)...)
	} else {
		for i := range trial.Tests.Cases { // as its author knows it
			trial.Tests.Cases[i].File = strings.TrimPrefix(trial.Tests.Cases[i].File, dir+string(filepath.Separator))
		}
	}
	if err := d.compare(ctx, candidate, &trial, report); err != nil {
		return trial, err
	}
	trial.Replay, err = d.replay(ctx, candidate, c, report)
	return trial, err
}

// compare adds what the candidate lets roles do that the policy which serves does not, and the reverse.
func (d *Desk) compare(ctx context.Context, candidate *rego.Engine, trial *console.PolicyTrial, report func(console.Progress)) error {
	tools, roles := d.o.Tools(), callers(d.o.Roles())
	if len(roles) > 0 {
		tools = tools[:min(len(tools), comparedPairs/len(roles))]
	}
	all := int64(2 * len(roles) * len(tools))
	var matrices [2][]workbench.Cell
	for i, e := range []*rego.Engine{d.o.Engine(), candidate} {
		cells, err := workbench.Matrix(ctx, e, roles, tools, func(done int) {
			report(console.Progress{Doing: "comparing roles and tools", Done: int64(i*len(roles)*len(tools) + done), All: all})
		})
		if err != nil {
			return err
		}
		matrices[i] = cells
	}
	trial.Matrix = workbench.Compare(matrices[0], matrices[1])
	surveying, stop := context.WithTimeout(ctx, trySurveyTime)
	defer stop()
	trial.Findings = append(trial.Findings, Doubts(workbench.SurveyOf(surveying, candidate, roles, tools, nil))...)
	return ctx.Err()
}

// replay judges recorded calls again.
func (d *Desk) replay(ctx context.Context, candidate *rego.Engine, c console.Candidate, report func(console.Progress)) (*replay.Report, error) {
	end := time.Now()
	return replay.Run(ctx, audit.Read(ctx, d.o.Trail, c.Since), judgement.Judge(candidate), replay.Options{
		Until: end, Examples: shownExamples, Bare: !c.Arguments, Workers: 1,
		Progress: func(at replay.Progress) {
			report(console.Progress{
				Doing: fmt.Sprintf("judging recorded calls again: %d decisions, %d otherwise", at.Judged, at.Changed),
				Done:  int64(at.At.Sub(c.Since) / time.Second), All: int64(end.Sub(c.Since) / time.Second),
			})
		},
	})
}

// writeFiles writes the files of a policy below dir.
func writeFiles(dir string, files map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err == nil {
			err = root.MkdirAll(filepath.Dir(name), 0o700)
		}
		if err == nil {
			err = root.WriteFile(name, text, 0o600)
		}
	}
	return errors.Join(err, root.Close())
}

// refused returns why a policy cannot serve.
func refused(err error) []console.Finding {
	if faults := rego.Faults(nil); errors.As(err, &faults) {
		return Findings(faults)
	}
	return []console.Finding{{Level: string(rego.LevelError), Message: err.Error()}}
}

var (
	_ console.PolicyReader = (*Desk)(nil)
	_ console.PolicyJudge  = (*Desk)(nil)
)
