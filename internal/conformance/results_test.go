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

// outcome is how often one check of a scenario passed and failed. The suite makes
// some checks several times with one ID; a warning or information is neither.
type outcome struct {
	passed, failed int
	message        string // of the last check that did not pass
}

// results are the outcomes of a run, by scenario and check ID.
type results map[string]map[string]outcome

// passed returns the number of checks that passed.
func (r results) passed() int { return r.sum(func(o outcome) int { return o.passed }) }

// failed returns the number of checks that failed.
func (r results) failed() int { return r.sum(func(o outcome) int { return o.failed }) }

func (r results) sum(of func(outcome) int) (n int) {
	for _, checks := range r {
		for _, o := range checks {
			n += of(o)
		}
	}
	return n
}

// resultDir matches the suite's directory of a scenario: the scenario's name, which
// may contain a slash, and the time.
var resultDir = regexp.MustCompile(`^(?:server-)?(.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z$`)

// unfinished stands for the checks of a scenario that was aborted: the suite counts
// it as failed and writes no checks.
const unfinished = "the-scenario-ends"

// readResults reads the files of a suite below dir.
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

// apart reports whether a scenario is left out.
func apart(beginnings []string, scenario string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(scenario, b) })
}

// readScenario reads the results of one scenario.
func readScenario(dir string) (map[string]outcome, error) {
	text, err := os.ReadFile(filepath.Join(dir, "checks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]outcome{unfinished: {failed: 1, message: "the scenario was aborted"}}, nil
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

// lostBetween returns the checks that toolgate loses, with the suite's message:
// checks that pass directly and fail or pass less often through toolgate, and checks
// that do not fail directly and fail through toolgate.
func lostBetween(direct, through results) map[check]string {
	lost := map[check]string{}
	for scenario, checks := range direct {
		for id, want := range checks {
			got := through[scenario][id]
			if want.failed == 0 && want.passed > got.passed {
				lost[check{scenario, id}] = cmp.Or(got.message, "the check did not run")
			}
		}
	}
	for scenario, checks := range through {
		for id, got := range checks {
			if got.failed > 0 && direct[scenario][id].failed == 0 {
				lost[check{scenario, id}] = cmp.Or(got.message, "the check failed")
			}
		}
	}
	return lost
}

// tally counts the lost checks of several runs.
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

// lost returns the checks that were lost at least once, in order.
func (y *tally) lost() []check {
	return slices.SortedFunc(maps.Keys(y.times), func(a, b check) int {
		return cmp.Or(cmp.Compare(a.scenario, b.scenario), cmp.Compare(a.id, b.id))
	})
}

// faults compares with the baseline: checks that are lost and not in it, checks in
// it that pass, and checks that are lost in some runs only.
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
				faults = append(faults, fmt.Sprintf("%s %s: in the baseline, but not lost: remove it", scenario, id))
			}
		}
	}
	return faults
}

// expected is the baseline of one suite.
type expected struct {
	// Direct is the number of checks that pass without toolgate, so that no
	// comparison is empty.
	Direct int `json:"direct"`
	// Apart are prefixes of scenarios that have no meaning with a proxy in between,
	// with the reason.
	Apart map[string]string `json:"apart,omitempty"`
	// Lost are the checks that do not pass through toolgate, by scenario.
	Lost map[string]reason `json:"lost"`
}

// reason is why toolgate loses the checks of a scenario.
type reason struct {
	Why    string   `json:"why"`
	Checks []string `json:"checks"`
}

func (e expected) has(c check) bool { return slices.Contains(e.Lost[c.scenario].Checks, c.id) }

// renewed returns a baseline of the lost checks. A scenario keeps its reason; a new
// one gets the suite's message, for a person to replace.
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

// writeBaseline writes the baselines in order.
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
