package conformance_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checksOf returns the results of one scenario from the text of a checks.json.
func checksOf(t *testing.T, text string) results {
	t.Helper()
	checks, err := readChecks([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return results{"s": checks}
}

func TestLostBetween(t *testing.T) {
	const pass, fail = `{"id":"a","status":"SUCCESS"}`, `{"id":"a","status":"FAILURE","errorMessage":"no"}`
	const warn, info = `{"id":"a","status":"WARNING","errorMessage":"hm"}`, `{"id":"a","status":"INFO"}`
	for _, tc := range []struct {
		name, direct, through string
		want                  string // the message of a lost check, "" for none
	}{
		{"passes both ways", pass, pass, ""},
		{"fails through toolgate", pass, fail, "no"},
		{"only warns through toolgate", pass, warn, "hm"},
		{"is not run through toolgate", pass, info, "the check did not run"},
		{"is missing through toolgate", pass, "", "the check did not run"},
		{"passes less often", pass + "," + pass, pass, "the check did not run"},
		{"passes more often", pass, pass + "," + pass, ""},
		{"passes and fails", pass, pass + "," + fail, "no"},
		{"fails, and does not run directly", "", fail, "no"},
		{"fails, and warns directly", warn, fail, "no"},
		{"fails both ways", fail, fail, ""},
		{"fails directly alone", fail, pass, ""},
		{"warns both ways", warn, warn, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := map[check]string{}
			if tc.want != "" {
				want[check{"s", "a"}] = tc.want
			}
			got := lostBetween(checksOf(t, "["+tc.direct+"]"), checksOf(t, "["+tc.through+"]"))
			if d := cmp.Diff(want, got, cmp.AllowUnexported(check{})); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("the whole scenario is missing", func(t *testing.T) {
		if got := lostBetween(checksOf(t, "["+pass+"]"), results{}); len(got) != 1 {
			t.Errorf("lost %v, want one check", got)
		}
	})
}

func TestReadChecksRefuses(t *testing.T) {
	for _, text := range []string{`{}`, `[{"id":"a","status":"MAYBE"}]`, `[{"id":"a"}]`, `[`} {
		if got, err := readChecks([]byte(text)); err == nil {
			t.Errorf("%s was read as %v", text, got)
		}
	}
}

func TestFaults(t *testing.T) {
	a, b := check{"s", "a"}, check{"s", "b"}
	known := expected{Lost: map[string]reason{"s": {Why: "not relayed", Checks: []string{"a"}}}}
	for _, tc := range []struct {
		name string
		runs [][]check // lost checks of each run
		want []string
	}{
		{"as the baseline says", [][]check{{a}, {a}}, nil},
		{"a regression", [][]check{{a, b}}, []string{"s b: lost through toolgate in 1 of 1 runs: m"}},
		{"a regression in some runs", [][]check{{a}, {a, b}}, []string{"s b: lost through toolgate in 1 of 2 runs: m"}},
		{"a fix", [][]check{{}}, []string{"s a: in the baseline, but not lost: remove it"}},
		{"a fix in some runs", [][]check{{}, {a}}, []string{"s a: unsteady, lost in 1 of 2 runs: m"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			y := newTally()
			for _, lost := range tc.runs {
				messages := map[check]string{}
				for _, c := range lost {
					messages[c] = "m"
				}
				y.add(messages)
			}
			if d := cmp.Diff(tc.want, y.faults(known)); d != "" {
				t.Error(d)
			}
			if got := y.faults(known.renewed(1, y)); len(tc.runs) == 1 && got != nil {
				t.Errorf("the renewed baseline has faults: %v", got)
			}
		})
	}
}

func TestBaselineHasReasons(t *testing.T) {
	known := readBaseline(t)
	want := []string{connecting.name}
	for _, s := range suites {
		want = append(want, s.name)
	}
	slices.Sort(want)
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(known))); d != "" {
		t.Error(d)
	}
	for name, e := range known {
		if e.Direct == 0 {
			t.Errorf("%s: no check passes directly, so the comparison is empty", name)
		}
		for beginning, why := range e.Apart {
			if beginning == "" || why == "" {
				t.Errorf("%s leaves out %q: %q", name, beginning, why)
			}
		}
		for scenario, r := range e.Lost {
			if r.Why == "" || len(r.Checks) == 0 || !slices.IsSorted(r.Checks) {
				t.Errorf("%s, %s: want a reason in words and checks in order, got %+v", name, scenario, r)
			}
		}
	}
}
