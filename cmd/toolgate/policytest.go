package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy/rego"
)

// policyTests are the flags of policy test.
type policyTests struct {
	path, run string
	coverage  bool
	threshold float64
	verbose   bool
	trace     bool
}

func policyTest(e *env) *cobra.Command {
	var flags policyTests
	c := &cobra.Command{
		Use: "test [POLICY [TESTS...]]", Short: "run the tests of a policy", Args: cobra.ArbitraryArgs,
		Long: `test loads a policy as serve would and runs its tests: rules named test_… in files
named *_test.rego, as the opa command does, and decision tables, which are lists of
inputs with the decisions that are wanted, in files named *_test.yaml or *_test.json.
They stand beside the policy, or in TESTS. Without POLICY it is the configured one.
Exit 0: all passed; 12: not all did, or fewer lines of the policy were reached than
--threshold demands; 2: the policy or a test cannot be read.`,
		Example: `  toolgate policy test my-policy
  toolgate policy test my-policy tests --coverage --threshold 100
  toolgate policy test my-policy --run transfer --verbose --trace
  toolgate policy test my-policy -o junit > report.xml`,
		Annotations: map[string]string{outputs: "junit,github"},
		RunE:        func(c *cobra.Command, args []string) error { return e.testPolicy(c.Context(), flags, args) },
	}
	policyPath(c, &flags.path)
	f := c.Flags()
	f.StringVar(&flags.run, "run", "", "regular expression: run the tests whose name it matches")
	f.BoolVar(&flags.coverage, "coverage", false, "say which lines of the policy no test reaches")
	f.Float64Var(&flags.threshold, "threshold", 0, "least percentage of lines that tests must reach; implies --coverage")
	f.BoolVarP(&flags.verbose, "verbose", "v", false, "name the tests that pass, too")
	f.BoolVar(&flags.trace, "trace", false, "print the evaluation of each test that does not pass")
	return c
}

func (e *env) testPolicy(ctx context.Context, flags policyTests, args []string) error {
	if flags.path == "" && len(args) > 0 {
		flags.path, args = args[0], args[1:]
	}
	options, _, err := e.about(ctx, flags.path)
	if err != nil {
		return err
	}
	flags.coverage = flags.coverage || flags.threshold > 0
	report, err := rego.Test(ctx, rego.TestOptions{Policy: options, Beside: args, Run: flags.run, Coverage: flags.coverage, Trace: flags.trace})
	if err != nil {
		return e.unservable(err, options.Path)
	}
	if report.Coverage != nil && options.Path != "" {
		for i, f := range report.Coverage.Files {
			report.Coverage.Files[i].File = path.Join(options.Path, f.File)
		}
	}
	return errors.Join(e.sayTests(report, flags), testVerdict(report, flags))
}

// testVerdict is the error of tests that failed, were not there, or reached too
// little.
func testVerdict(report *rego.TestReport, flags policyTests) error {
	bad := report.Count(rego.Failed) + report.Count(rego.Errored)
	switch {
	case len(report.Cases) == 0:
		return &exit{exitDiffer, errors.New("no test was found\nhint: rules named test_… in *_test.rego, or tables in *_test.yaml")}
	case bad > 0:
		return &exit{exitDiffer, fmt.Errorf("%d of %d tests did not pass", bad, len(report.Cases))}
	case report.Coverage != nil && report.Coverage.Percent < flags.threshold:
		return &exit{exitDiffer, fmt.Errorf("tests reach %.1f%% of the policy, and %.1f%% are wanted", report.Coverage.Percent, flags.threshold)}
	}
	return nil
}

func (e *env) sayTests(report *rego.TestReport, flags policyTests) error {
	switch e.output {
	case "json":
		if report.Cases == nil {
			report.Cases = []rego.TestCase{}
		}
		return e.json(report)
	case "junit":
		return e.junit(report)
	case "github":
		return e.testAnnotations(report)
	}
	for _, c := range report.Cases {
		if c.Outcome == rego.Passed && !flags.verbose {
			continue
		}
		fmt.Fprintf(e.out, "%s %s:%d: %s\n", strings.ToUpper(string(c.Outcome)), c.File, c.Row, oneLine(c.Name))
		for _, text := range []string{c.Message, c.Output, c.Trace} {
			if text != "" && c.Outcome != rego.Skipped {
				fmt.Fprintln(e.out, indented(printable(text)))
			}
		}
	}
	if report.Coverage != nil {
		e.sayCoverage(report.Coverage)
	}
	if testVerdict(report, policyTests{}) == nil {
		fmt.Fprintf(e.out, "ok: %d tests passed%s\n", report.Count(rego.Passed), counted(report.Count(rego.Skipped), ", %d left out (todo_)"))
	}
	return nil
}

// counted is text with a number in it, and nothing for none.
func counted(n int, text string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(text, n)
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}

func (e *env) sayCoverage(c *rego.Coverage) {
	for _, f := range c.Files {
		if len(f.Missing) == 0 {
			continue
		}
		var rows []string
		for _, m := range f.Missing {
			rows = append(rows, span(m))
		}
		fmt.Fprintf(e.out, "not reached: %s: line %s\n", f.File, strings.Join(slices.Compact(rows), ", "))
	}
	fmt.Fprintf(e.out, "coverage: %.1f%% of the policy\n", c.Percent)
}

func span(rows [2]int) string {
	if rows[0] == rows[1] {
		return fmt.Sprint(rows[0])
	}
	return fmt.Sprintf("%d-%d", rows[0], rows[1])
}

// testAnnotations prints what a workflow of GitHub shows beside the code.
func (e *env) testAnnotations(report *rego.TestReport) error {
	for _, c := range report.Cases {
		if c.Outcome == rego.Passed || c.Outcome == rego.Skipped {
			continue
		}
		if _, err := fmt.Fprintln(e.out, annotation("error", c.File, c.Row, c.Name+": "+c.Message, "")); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	if report.Coverage == nil {
		return nil
	}
	for _, f := range report.Coverage.Files {
		for _, m := range f.Missing {
			fmt.Fprintln(e.out, annotation("notice", f.File, m[0], "no test reaches line "+span(m), ""))
		}
	}
	return nil
}

// The document that JUnit made a custom.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string     `xml:"name,attr"`
		Class   string     `xml:"classname,attr"`
		File    string     `xml:"file,attr"`
		Line    int        `xml:"line,attr"`
		Time    string     `xml:"time,attr"` // seconds
		Failure *junitText `xml:"failure"`
		Error   *junitText `xml:"error"`
		Skipped *struct{}  `xml:"skipped"`
		Output  string     `xml:"system-out,omitempty"`
	}
	junitText struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// junit prints one suite for each file.
func (e *env) junit(report *rego.TestReport) error {
	all := junitSuites{
		Name: "policy " + short(report.Revision), Tests: len(report.Cases),
		Failures: report.Count(rego.Failed), Errors: report.Count(rego.Errored), Skipped: report.Count(rego.Skipped),
	}
	for _, c := range report.Cases {
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != c.File {
			all.Suites = append(all.Suites, junitSuite{Name: c.File})
		}
		all.Suites[len(all.Suites)-1].add(c)
	}
	raw, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("writing JUnit: %w", err)
	}
	_, err = fmt.Fprintf(e.out, "%s%s\n", xml.Header, raw)
	return err
}

func (s *junitSuite) add(c rego.TestCase) {
	out := junitCase{Name: printable(c.Name), Class: c.File, File: c.File, Line: c.Row, Time: fmt.Sprintf("%.6f", c.Seconds), Output: printable(c.Output + c.Trace)}
	first, _, _ := strings.Cut(printable(c.Message), "\n")
	text := &junitText{Message: first, Text: printable(c.Message)}
	s.Tests++
	switch c.Outcome {
	case rego.Failed:
		s.Failures++
		out.Failure = text
	case rego.Errored:
		s.Errors++
		out.Error = text
	case rego.Skipped:
		s.Skipped++
		out.Skipped = &struct{}{}
	}
	s.Cases = append(s.Cases, out)
}
