package conformance_test

import (
	"flag"
	"os"
	"testing"
)

var (
	update = flag.Bool("update", false, "write the baseline anew, keeping its reasons")
	runs   = flag.Int("runs", 1, "how often to run each suite, to find what is unsteady")
)

// suite is one way of running the conformance suite against a server.
type suite struct {
	name   string // in the baseline
	script string // below node_modules
	args   []string
	server []string // flags of the everything-server
}

const (
	stable = "@modelcontextprotocol/conformance/dist/index.js"
	next   = "conformance-next/dist/index.js"
)

// The everything-server speaks both eras, but 2026-07-28 only when stateless,
// and asks nothing of its clients then in the era before.
var suites = []suite{
	{"stable", stable, []string{"--suite", "all"}, []string{"-stateless=false"}},
	{"next 2025-11-25", next, []string{"--requirements", "2025-11-25"}, []string{"-stateless=false"}},
	{"next 2026-07-28", next, []string{"--requirements", "2026-07-28"}, []string{"-stateless=true"}},
}

// TestServerScenarios: what passes directly passes through toolgate, but for
// what the baseline names.
func TestServerScenarios(t *testing.T) {
	if os.Getenv("TOOLGATE_CONFORMANCE") != "1" {
		t.Skip("TOOLGATE_CONFORMANCE is not 1: make test-conformance runs it")
	}
	known := readBaseline(t)
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			direct, y := compare(t, s)
			if *update {
				known[s.name] = known[s.name].renewed(direct, y)
				return
			}
			if want := known[s.name].Direct; direct != want {
				t.Errorf("%d checks pass directly, want %d: the suite or the server is another", direct, want)
			}
			for _, fault := range y.faults(known[s.name]) {
				t.Error(fault)
			}
		})
	}
	if *update && !t.Failed() {
		writeBaseline(t, known)
	}
}

// compare runs a suite directly and through toolgate, as often as the flag
// says, each time with processes of its own. It gives the fewest checks that
// passed directly, and what was lost.
func compare(t *testing.T, s suite) (fewest int, y *tally) {
	y = newTally()
	for i := range *runs {
		var direct, through results
		ran := t.Run("direct", func(t *testing.T) { direct = runSuite(t, s, startServer(t, s.server...)) }) &&
			t.Run("through", func(t *testing.T) { through = runSuite(t, s, startToolgate(t, startServer(t, s.server...))) })
		if !ran {
			t.FailNow()
		}
		t.Logf("directly %d passed, %d failed; through toolgate %d passed, %d failed",
			direct.passed(), direct.failed(), through.passed(), through.failed())
		if n := direct.passed(); i == 0 || n < fewest {
			fewest = n
		}
		y.add(lostBetween(direct, through))
	}
	return fewest, y
}
