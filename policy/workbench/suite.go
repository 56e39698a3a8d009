// Package workbench has what the authors of a policy work with. OutlineOf says what a policy answers
// a principal about a tool, whatever the arguments; Explain says why one call is decided as it is, and
// what else would be allowed; NamedTools, GivenRoles and Approvers list what the policy names; Test runs the tests of a policy, which are rules in Rego and decision
// tables. All of that is for people: it judges by package rego, as the gate does, costs many times
// what a decision does, and nothing in the gate imports it.
//
//	report, err := workbench.Test(ctx, workbench.TestOptions{Policy: rego.Options{Path: "policy"}})
//	fmt.Println(report.Count(workbench.Failed))
//
// Every function is safe for concurrent use.
package workbench

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestOptions says which tests run against which policy.
type TestOptions struct {
	// Policy is what is tested; the tests beside it are run too.
	Policy rego.Options
	// Beside are files, directories and archives with more tests. All Rego there
	// is test code; data documents there are not read.
	Beside []string
	// Run is a regular expression: tests whose name it does not match are left
	// out. "" = all are run.
	Run string
	// Coverage says which lines of the policy the tests reach.
	Coverage bool
	// Trace keeps the evaluation of every test that does not pass.
	Trace bool
}

// Outcome is how a test ended.
type Outcome string

// The outcomes. Errored is a test that could not be judged.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Errored Outcome = "error"
	Skipped Outcome = "skip"
)

// TestCase is one test that was run.
type TestCase struct {
	Name    string  `json:"name"`
	File    string  `json:"file"`
	Row     int     `json:"row"` // from 1
	Outcome Outcome `json:"outcome"`
	// Message says of a test that did not pass what was wanted and what came.
	Message string  `json:"message,omitempty"`
	Output  string  `json:"output,omitempty"` // of print
	Trace   string  `json:"trace,omitempty"`
	Seconds float64 `json:"seconds"`
}

// TestReport is what a run of tests came to.
type TestReport struct {
	Revision string     `json:"revision"` // of the policy
	Cases    []TestCase `json:"cases"`    // in the order of their places
	Coverage *Coverage  `json:"coverage,omitempty"`
}

// Count is how many tests ended so.
func (r *TestReport) Count(o Outcome) (n int) {
	for _, c := range r.Cases {
		if c.Outcome == o {
			n++
		}
	}
	return n
}

// Coverage is which lines of a policy its tests reach.
type Coverage struct {
	Percent float64        `json:"percent"`
	Files   []FileCoverage `json:"files"`
}

// FileCoverage is Coverage of one file.
type FileCoverage struct {
	File    string   `json:"file"`
	Percent float64  `json:"percent"`
	Missing [][2]int `json:"missing"` // first and last line of what no test reaches
}

// Test runs the tests of a policy: rules named test_… in Rego, as the opa
// command runs them, and decision tables (readTable), which are judged as calls
// are. The policy is loaded as Load does; an error means that it, or a test,
// cannot be read. Built-in functions that fail make a Rego test an error, as
// they make a decision a denial.
func Test(ctx context.Context, o TestOptions) (*TestReport, error) {
	run, err := regexp.Compile(o.Run)
	if err != nil {
		return nil, fmt.Errorf("reading the pattern of names: %w", err)
	}
	e, err := rego.Load(ctx, o.Policy)
	if err != nil {
		return nil, err
	}
	t := &suite{engine: e, policy: e.Modules(), run: run, trace: o.Trace, modules: e.Modules()}
	if o.Coverage {
		t.cover = cover.New()
	}
	if err := t.read(o); err != nil {
		return nil, err
	}
	report := &TestReport{Revision: e.Revision()}
	if report.Cases, err = t.runRego(ctx); err != nil {
		return nil, err
	}
	report.Cases = append(report.Cases, t.runTables(ctx)...)
	slices.SortStableFunc(report.Cases, func(a, b TestCase) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Row, b.Row))
	})
	if o.Coverage {
		report.Coverage = t.coverage()
	}
	return report, ctx.Err()
}

// suite is a policy with its tests.
type suite struct {
	engine  *rego.Engine
	policy  map[string]*ast.Module // of the policy alone
	modules map[string]*ast.Module // of policy and tests, by name
	tables  []table
	run     *regexp.Regexp
	trace   bool
	cover   *cover.Cover // nil = not wanted
}

type table struct {
	file  string
	cases []tableCase
}

// read takes in the tests beside the policy and those that were named.
func (t *suite) read(o TestOptions) error {
	if err := t.readFrom(o.Policy.Path, isTest); err != nil {
		return err
	}
	for _, where := range o.Beside {
		if err := t.readFrom(where, func(name string) bool { return isTest(name) || path.Ext(name) == ".rego" }); err != nil {
			return err
		}
	}
	return nil
}

// isTest reports whether a file holds tests.
func isTest(name string) bool {
	base := path.Base(name)
	stem := strings.TrimSuffix(base, path.Ext(base))
	return base[0] != '.' && strings.HasSuffix(stem, "_test") && slices.Contains([]string{".rego", ".yaml", ".yml", ".json"}, path.Ext(base))
}

func (t *suite) readFrom(where string, keep func(string) bool) error {
	f, root, err := testFiles(where, keep)
	if err != nil {
		return fmt.Errorf("reading tests %q: %w", where, err)
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		shown := path.Join(root, name)
		if path.Ext(name) != ".rego" {
			cases, err := readTable(f[name])
			if err != nil {
				return fmt.Errorf("reading %s: %w", shown, err)
			}
			t.tables = append(t.tables, table{shown, cases})
			continue
		}
		m, err := rego.ParseModule(shown, f[name])
		if err != nil {
			return fmt.Errorf("parsing tests:\n%w", err)
		}
		t.modules[shown] = m
	}
	return nil
}

// testFiles reads the wanted files at where, and gives the folder that their
// names are relative to.
func testFiles(where string, keep func(string) bool) (map[string][]byte, string, error) {
	info, err := os.Stat(where)
	if err != nil && where != "" {
		return nil, "", err
	}
	if where != "" && info.Mode().IsRegular() && keep(where) {
		dir, name := filepath.Split(where)
		content, err := fs.ReadFile(os.DirFS(filepath.Clean(dir+".")), name)
		return map[string][]byte{name: content}, filepath.ToSlash(dir), err
	}
	f, err := rego.ReadFiles(where, keep)
	return f, filepath.ToSlash(where), err
}

// runRego runs the tests that are written in Rego. Those that fail run once
// more to see where: OPA traces or measures coverage, not both.
func (t *suite) runRego(ctx context.Context) ([]TestCase, error) {
	results, err := t.engine.RunTests(ctx, t.modules, t.run.String(), func(r *tester.Runner) {
		if t.cover != nil {
			r.SetCoverageQueryTracer(t.cover)
		}
	})
	if err != nil {
		return nil, err
	}
	var failed []string
	for _, r := range results {
		if r.Fail || r.Error != nil {
			failed = append(failed, regexp.QuoteMeta(r.Package+"."+r.Name))
		}
	}
	traces := map[string]*tester.Result{}
	if len(failed) > 0 {
		again, err := t.engine.RunTests(ctx, t.modules, "^("+strings.Join(failed, "|")+")$", func(r *tester.Runner) { r.EnableTracing(true) })
		if err != nil {
			return nil, err
		}
		for _, r := range again {
			traces[r.Package+"."+r.Name] = r
		}
	}
	var cases []TestCase
	for _, r := range results {
		cases = append(cases, t.casesOf(r, traces[r.Package+"."+r.Name])...)
	}
	return cases, nil
}

// casesOf gives a result as a case, or as one for each case of a test that
// names some (test_x[name]).
func (t *suite) casesOf(r, traced *tester.Result) []TestCase {
	c := TestCase{Name: r.Package + "." + r.Name, Outcome: Passed, Output: string(r.Output), Seconds: r.Duration.Seconds()}
	if r.Location != nil {
		c.File, c.Row = t.shown(r.Location.File), r.Location.Row
	}
	switch {
	case r.Skip:
		c.Outcome = Skipped
	case r.Error != nil:
		c.Outcome, c.Message = Errored, r.Error.Error()
	case r.Fail:
		c.Outcome = Failed
	}
	if traced != nil {
		t.explainFailure(&c, traced.Trace)
	}
	if len(r.SubResults) == 0 {
		return []TestCase{c}
	}
	parts := r.SubResults
	if traced != nil {
		parts = traced.SubResults
	}
	var cases []TestCase
	for names, sub := range parts.Iter {
		if len(sub.SubResults) > 0 {
			continue
		}
		one := TestCase{Name: c.Name + "/" + strings.Join(names, "/"), File: c.File, Row: c.Row, Outcome: Passed, Seconds: c.Seconds}
		if sub.Fail {
			one.Outcome, one.Output = Failed, c.Output
			t.explainFailure(&one, sub.Trace)
		}
		cases = append(cases, one)
	}
	return cases
}

// shown is the name of a file as people know it: those of the policy are kept
// with a slash before them.
func (t *suite) shown(file string) string {
	if t.policy[file] != nil {
		return strings.TrimPrefix(file, "/")
	}
	return file
}

// explainFailure says which expression did not hold, with the values in it.
func (t *suite) explainFailure(c *TestCase, trace []*topdown.Event) {
	var b bytes.Buffer
	for _, e := range slices.Backward(trace) {
		expr, ok := e.Node.(*ast.Expr)
		if !ok || e.Op != topdown.FailOp || e.Location == nil || e.QueryID == 0 {
			continue
		}
		if _, every := expr.Terms.(*ast.Every); every {
			continue // an expression within it has failed
		}
		fmt.Fprintf(&b, "%s:%d does not hold:\n", t.shown(e.Location.File), e.Location.Row)
		if err := topdown.PrettyEvent(&b, e, topdown.PrettyEventOpts{PrettyVars: true}); err != nil {
			fmt.Fprintf(&b, "%v", err)
		}
		break
	}
	if c.Message == "" {
		c.Message = strings.TrimSpace(b.String())
	}
	if t.trace {
		c.Trace = prettyTrace(trace)
	}
}

// runTables judges the cases of the decision tables.
func (t *suite) runTables(ctx context.Context) []TestCase {
	var out []TestCase
	for _, tab := range t.tables {
		for _, c := range tab.cases {
			name := path.Base(tab.file) + "/" + c.name
			if t.run.MatchString(name) && ctx.Err() == nil {
				out = append(out, t.runCase(ctx, tab.file, name, c))
			}
		}
	}
	return out
}

func (t *suite) runCase(ctx context.Context, file, name string, c tableCase) TestCase {
	out := TestCase{Name: name, File: file, Row: c.row, Outcome: Passed}
	begin := time.Now()
	if usage := policy.Unused(t.engine.Meters(c.input.Tool)); usage != nil {
		maps.Copy(usage, c.input.Usage)
		c.input.Usage = usage
	}
	d, err := t.engine.Decide(ctx, c.input)
	out.Seconds = time.Since(begin).Seconds()
	// A rule that fails is a denial, and may be what is wanted.
	if diff := c.want.differs(&d); diff != "" {
		out.Outcome = Failed
		out.Message = fmt.Sprintf("%s (the decision: %s)", diff, verdict(&d))
		if err != nil {
			out.Message += ": " + rego.Cause(err)
		}
	}
	t.watch(ctx, c.input, &out)
	return out
}

// watch evaluates a case once more, whole, where somebody wants to see which
// lines it reaches or why it failed.
func (t *suite) watch(ctx context.Context, in *policy.Input, c *TestCase) {
	failed := t.trace && c.Outcome == Failed
	if t.cover == nil && !failed {
		return
	}
	seen := topdown.NewBufferTracer()
	tracers := []topdown.QueryTracer{seen}
	if t.cover != nil {
		tracers = append(tracers, t.cover)
	}
	_ = t.engine.Trace(ctx, in, tracers...) // what it comes to is known
	if failed {
		c.Trace = prettyTrace(*seen)
	}
}

func prettyTrace(events []*topdown.Event) string {
	var b bytes.Buffer
	topdown.PrettyTraceWithLocation(&b, events)
	return b.String()
}

// verdict is a decision on one line.
func verdict(d *policy.Decision) string {
	text := string(d.Effect)
	if d.Rule != "" {
		text += " by " + d.Rule
	}
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	return text
}

// coverage is what the tests reached of the policy itself.
func (t *suite) coverage() *Coverage {
	report := t.cover.Report(t.policy)
	out := &Coverage{Percent: report.Coverage}
	for _, name := range slices.Sorted(maps.Keys(report.Files)) {
		r := report.Files[name]
		f := FileCoverage{File: strings.TrimPrefix(name, "/"), Percent: r.Coverage, Missing: [][2]int{}}
		for _, m := range r.NotCovered {
			f.Missing = append(f.Missing, [2]int{m.Start.Row, m.End.Row})
		}
		out.Files = append(out.Files, f)
	}
	return out
}
