package conformance_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// outcome is how often one check of a scenario passed and failed. The suite
// makes some checks more than once under one id, and warns or informs with
// others, which is neither.
type outcome struct {
	passed, failed int
	message        string // of the last time it did not pass
}

// results are the outcomes of a run, by scenario and the check's id.
type results map[string]map[string]outcome

// passed is how many checks passed in all.
func (r results) passed() int { return r.sum(func(o outcome) int { return o.passed }) }

// failed is how many checks failed in all.
func (r results) failed() int { return r.sum(func(o outcome) int { return o.failed }) }

func (r results) sum(of func(outcome) int) (n int) {
	for _, checks := range r {
		for _, o := range checks {
			n += of(o)
		}
	}
	return n
}

// resultDir is how the suite names the directory of a scenario's results, with
// the scenario's name before the time. That name may have a slash in it.
var resultDir = regexp.MustCompile(`^(?:server-)?(.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z$`)

// unfinished is the check that stands for a scenario that broke off: the suite
// counts it as failed and writes nothing of it.
const unfinished = "the-scenario-ends"

// readResults reads what a suite wrote below dir.
func readResults(t testing.TB, dir string, s suite) results {
	t.Helper()
	found := results{}
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		scenario := resultDir.FindStringSubmatch(filepath.ToSlash(name))
		if scenario == nil || apart(s.apart, scenario[1]) {
			return nil
		}
		found[scenario[1]], err = readScenario(path)
		return err
	}); err != nil {
		t.Fatalf("reading the results: %v", err)
	}
	return found
}

// apart reports whether a scenario is one of those that are left out.
func apart(beginnings []string, scenario string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(scenario, b) })
}

// readScenario reads the results of one scenario.
func readScenario(dir string) (map[string]outcome, error) {
	text, err := os.ReadFile(filepath.Join(dir, "checks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]outcome{unfinished: {failed: 1, message: "the scenario broke off"}}, nil
	}
	if err != nil {
		return nil, err
	}
	return readChecks(text)
}

// readChecks reads one checks.json.
func readChecks(text []byte) (map[string]outcome, error) {
	var checks []struct{ ID, Status, ErrorMessage string }
	if err := json.Unmarshal(text, &checks); err != nil {
		return nil, err
	}
	found := map[string]outcome{}
	for _, c := range checks {
		o := found[c.ID]
		switch c.Status {
		case "SUCCESS":
			o.passed++
		case "FAILURE":
			o.failed++
			o.message = c.ErrorMessage
		case "WARNING", "INFO", "SKIPPED":
			o.message = cmp.Or(c.ErrorMessage, o.message)
		default:
			return nil, fmt.Errorf("check %s has the unknown status %q", c.ID, c.Status)
		}
		found[c.ID] = o
	}
	return found, nil
}

// check names one check of a scenario.
type check struct{ scenario, id string }

// lostBetween gives every check that toolgate loses, with the suite's message:
// that passes directly and fails or passes less often through it, or that does
// not fail directly and fails through it.
func lostBetween(direct, through results) map[check]string {
	lost := map[check]string{}
	for scenario, checks := range direct {
		for id, want := range checks {
			got := through[scenario][id]
			if want.failed == 0 && want.passed > got.passed {
				lost[check{scenario, id}] = cmp.Or(got.message, "the check was not made")
			}
		}
	}
	for scenario, checks := range through {
		for id, got := range checks {
			if got.failed > 0 && direct[scenario][id].failed == 0 {
				lost[check{scenario, id}] = cmp.Or(got.message, "it failed")
			}
		}
	}
	return lost
}

// tally is what was lost in how many of several runs.
type tally struct {
	runs    int
	times   map[check]int
	message map[check]string
}

func newTally() *tally { return &tally{times: map[check]int{}, message: map[check]string{}} }

func (y *tally) add(lost map[check]string) {
	y.runs++
	for c, message := range lost {
		y.times[c]++
		y.message[c] = message
	}
}

// lost gives the checks that were lost at least once, in order.
func (y *tally) lost() []check {
	return slices.SortedFunc(maps.Keys(y.times), func(a, b check) int {
		return cmp.Or(cmp.Compare(a.scenario, b.scenario), cmp.Compare(a.id, b.id))
	})
}

// faults compares with the baseline: what is lost without being named there, what
// is named there and passes, and what does now this and now that.
func (y *tally) faults(known expected) (faults []string) {
	for _, c := range y.lost() {
		switch n := y.times[c]; {
		case !known.has(c):
			faults = append(faults, fmt.Sprintf("%s %s: lost through toolgate in %d of %d runs: %s", c.scenario, c.id, n, y.runs, y.message[c]))
		case n < y.runs:
			faults = append(faults, fmt.Sprintf("%s %s: unsteady, lost in %d of %d runs: %s", c.scenario, c.id, n, y.runs, y.message[c]))
		}
	}
	for _, scenario := range slices.Sorted(maps.Keys(known.Lost)) {
		for _, id := range known.Lost[scenario].Checks {
			if y.times[check{scenario, id}] == 0 {
				faults = append(faults, fmt.Sprintf("%s %s: in the baseline, and is not lost any more: take it out", scenario, id))
			}
		}
	}
	return faults
}

// expected is the baseline of one suite.
type expected struct {
	// Direct is how many checks pass without toolgate, so that nothing is ever
	// compared with nothing.
	Direct int `json:"direct"`
	// Apart are the beginnings of the names of scenarios that have no meaning
	// with a proxy in the middle, each with the reason.
	Apart map[string]string `json:"apart,omitempty"`
	// Lost are the checks that do not pass through toolgate, by scenario.
	Lost map[string]reason `json:"lost"`
}

// reason says of the checks of a scenario why toolgate loses them.
type reason struct {
	Why    string   `json:"why"`
	Checks []string `json:"checks"`
}

func (e expected) has(c check) bool { return slices.Contains(e.Lost[c.scenario].Checks, c.id) }

// renewed gives a baseline of what was lost just now. A scenario that had a
// reason keeps it; another gets the suite's message, for a person to replace.
func (e expected) renewed(direct int, y *tally) expected {
	next := expected{Direct: direct, Apart: e.Apart, Lost: map[string]reason{}}
	for _, c := range y.lost() {
		r := next.Lost[c.scenario]
		r.Why = cmp.Or(r.Why, e.Lost[c.scenario].Why, y.message[c])
		r.Checks = append(r.Checks, c.id)
		next.Lost[c.scenario] = r
	}
	return next
}

const baselineFile = "../../testdata/conformance/baseline.json"

// readBaseline reads the baselines by suite.
func readBaseline(t testing.TB) map[string]expected {
	t.Helper()
	text, err := os.ReadFile(baselineFile)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]expected{}
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatalf("reading the baseline: %v", err)
	}
	return known
}

// writeBaseline writes them, sorted.
func writeBaseline(t testing.TB, known map[string]expected) {
	t.Helper()
	text, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(baselineFile, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
