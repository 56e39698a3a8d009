package policies

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/workbench"
)

func policyTest(e *command.Env) *cobra.Command {
	var policyAt, run string
	var coverage, verbose, trace bool
	var threshold float64
	c := command.WithForms(command.New("test [POLICY [TESTS...]]", "run the tests of a policy", func(ctx context.Context, args []string) error {
		if policyAt == "" && len(args) > 0 {
			policyAt, args = args[0], args[1:]
		}
		options, _, err := policySource(ctx, e, policyAt)
		if err != nil {
			return err
		}
		rep, err := workbench.Test(ctx, workbench.TestOptions{Policy: options, Beside: args, Run: run, Coverage: coverage || threshold > 0, Trace: trace})
		if err != nil {
			return e.Unservable(err, options.Path)
		}
		if rep.Coverage != nil {
			for i, f := range rep.Coverage.Files {
				rep.Coverage.Files[i].File = path.Join(options.Path, f.File)
				rep.Coverage.Files[i].Missing = slices.Compact(f.Missing) // two expressions of one line
			}
		}
		rep.Cases = append([]workbench.TestCase{}, rep.Cases...) // none is [], not null
		return errors.Join(e.Print(report.Of(tested{rep, verbose}, testsText)), testVerdict(rep, threshold))
	}), "junit,github")
	policyPath(c, &policyAt)
	f := c.Flags()
	f.StringVar(&run, "run", "", "run the tests whose name matches this `REGEXP`")
	f.BoolVar(&coverage, "coverage", false, "say which lines of the policy no test reaches")
	f.Float64Var(&threshold, "threshold", 0, "least `PERCENT` of lines that tests must reach; implies --coverage")
	f.BoolVarP(&verbose, "verbose", "v", false, "name the tests that pass, too")
	f.BoolVar(&trace, "trace", false, "print the evaluation of each test that does not pass")
	return c
}

// testVerdict is the error of tests that failed, were not there, or reached too
// little.
func testVerdict(rep *workbench.TestReport, threshold float64) error {
	bad := rep.Count(workbench.Failed) + rep.Count(workbench.Errored)
	switch {
	case len(rep.Cases) == 0:
		return &command.Exit{Code: command.ExitDiffer, Err: errors.New("no test was found\nhint: rules named test_… in *_test.rego, or tables in *_test.yaml")}
	case bad > 0:
		return &command.Exit{Code: command.ExitDiffer, Err: fmt.Errorf("%d of %s did not pass", bad, text.Count(len(rep.Cases), "test"))}
	case rep.Coverage != nil && rep.Coverage.Percent < threshold:
		return &command.Exit{Code: command.ExitDiffer, Err: fmt.Errorf("tests reach %.1f%% of the policy, and %.1f%% are wanted", rep.Coverage.Percent, threshold)}
	}
	return nil
}

// tested is the report of policy test.
type tested struct {
	*workbench.TestReport
	Verbose bool `json:"-"` // tests that pass are named
}

// OK reports whether all tests passed.
func (t tested) OK() bool { return testVerdict(t.TestReport, 0) == nil }

// Findings are the tests that did not pass and the lines that no test reaches.
func (t tested) Findings() (found []command.Finding) {
	for _, c := range t.Cases {
		if c.Outcome != workbench.Passed && c.Outcome != workbench.Skipped {
			found = append(found, command.Finding{Level: command.LevelError, File: c.File, Row: c.Row, Message: c.Name + ": " + c.Message})
		}
	}
	if t.Coverage == nil {
		return found
	}
	for _, f := range t.Coverage.Files {
		for _, m := range f.Missing {
			found = append(found, command.Finding{Level: command.LevelNote, File: f.File, Row: m[0], Message: "no test reaches line " + span(m)})
		}
	}
	return found
}

func span(rows [2]int) string {
	if rows[0] == rows[1] {
		return fmt.Sprint(rows[0])
	}
	return fmt.Sprintf("%d-%d", rows[0], rows[1])
}

// Suites returns one report for each file, as JUnit's XML has them.
func (t tested) Suites() (suites []tested) {
	for _, c := range t.Cases {
		if n := len(suites); n == 0 || suites[n-1].Cases[0].File != c.File {
			suites = append(suites, tested{TestReport: new(workbench.TestReport)})
		}
		last := suites[len(suites)-1]
		last.Cases = append(last.Cases, c)
	}
	return suites
}

// Counts returns the attributes that say how the tests ended.
func (t tested) Counts() string {
	return fmt.Sprintf(`tests="%d" failures="%d" errors="%d" skipped="%d"`, len(t.Cases), t.Count(workbench.Failed), t.Count(workbench.Errored), t.Count(workbench.Skipped))
}

// xmlText returns text as character data or as the value of an attribute.
func xmlText(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(report.Printable(text))) // a strings.Builder takes everything
	return b.String()
}
