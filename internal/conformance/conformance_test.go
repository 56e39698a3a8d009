package conformance_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
)

var (
	update = flag.Bool("update", false, "rewrite the baseline, keeping its reasons")
	runs   = flag.Int("runs", 1, "how often to run each suite, to find unsteady checks")
)

// suite is one way to run the conformance suite.
type suite struct {
	name   string // in the baseline
	script string // below node_modules
	args   []string
	server []string // flags of the everything-server, nil when a client is tested
	apart  []string // prefixes of scenarios that are left out
	// behind are the flags of the server behind toolgate, nil = those of server. With stdio
	// it is a stdio server, which speaks every revision.
	behind []string
	stdio  bool
	token  bool // toolgate wants a token of an issuer, and gets one
}

const (
	stable = "@modelcontextprotocol/conformance/dist/index.js"
	next   = "conformance-next/dist/index.js"
)

// The everything-server has both kinds of revision, but 2026-07-28 only when
// stateless. A stateless server requests nothing from clients of earlier revisions.
var suites = []suite{
	{name: "stable", script: stable, args: []string{"--suite", "all"}, server: []string{"-stateless=false"}},
	{name: "next 2025-11-25", script: next, args: []string{"--requirements", "2025-11-25"}, server: []string{"-stateless=false"}},
	{name: "next 2026-07-28", script: next, args: []string{"--requirements", "2026-07-28"}, server: []string{"-stateless=true"}},
	{name: "stable, stdio", script: stable, args: []string{"--suite", "all"}, server: []string{"-stateless=false"}, stdio: true},
	{name: "next 2025-11-25, stdio", script: next, args: []string{"--requirements", "2025-11-25"}, server: []string{"-stateless=false"}, stdio: true},
	{name: "next 2026-07-28, stdio", script: next, args: []string{"--requirements", "2026-07-28"}, server: []string{"-stateless=true"}, stdio: true},
	{name: "stable, sessionless server", script: stable, args: []string{"--suite", "all"}, server: []string{"-stateless=true"}},
	{name: "next 2025-11-25, sessionless server", script: next, args: []string{"--requirements", "2025-11-25"}, server: []string{"-stateless=true"}},
	{name: "next 2026-07-28, server with sessions", script: next, args: []string{"--requirements", "2026-07-28"}, server: []string{"-stateless=true"}, behind: []string{"-stateless=false"}},
	{name: "stable, with a token", script: stable, args: []string{"--suite", "all"}, server: []string{"-stateless=false"}, token: true},
	{name: "next 2025-11-25, with a token", script: next, args: []string{"--requirements", "2025-11-25"}, server: []string{"-stateless=false"}, token: true},
	{name: "next 2026-07-28, with a token", script: next, args: []string{"--requirements", "2026-07-28"}, server: []string{"-stateless=true"}, token: true},
	{name: "client stable", script: stable, args: []string{"--suite", "all"}},
	{name: "client next 2025-11-25", script: next, args: []string{"--requirements", "2025-11-25"}},
	{name: "client next 2026-07-28", script: next, args: []string{"--requirements", "2026-07-28"}},
}

// direct runs a suite without toolgate.
func (s suite) direct(t *testing.T) results {
	if s.server == nil {
		return runClientSuite(t, s, false)
	}
	return runServerSuite(t, s, startServer(t, s.server...))
}

// through runs a suite with a toolgate between client and server.
func (s suite) through(t *testing.T) results {
	if s.server == nil {
		return runClientSuite(t, s, true)
	}
	if s.token {
		i := startIssuer(t)
		return runServerSuite(t, s, bearing(t, i, startToolgate(t, s.upstream(t), fmt.Sprintf(`"identity": {"jwt": [{"issuer": %q}]},`, i.url))))
	}
	return runServerSuite(t, s, startToolgate(t, s.upstream(t), ""))
}

// upstream returns the server behind toolgate, as mcp.json describes it.
func (s suite) upstream(t *testing.T) string {
	if s.stdio {
		return fmt.Sprintf(`{"command": %q}`, everything(t))
	}
	flags := s.behind
	if flags == nil {
		flags = s.server
	}
	return fmt.Sprintf(`{"type": "http", "url": %q}`, startServer(t, flags...))
}

// TestScenarios: every check that passes directly passes through toolgate, except
// for those in the baseline.
func TestScenarios(t *testing.T) {
	pinned.File(t, "node_modules")
	known := readBaseline(t)
	for _, s := range suites {
		s.apart = slices.Sorted(maps.Keys(known[s.name].Apart))
		t.Run(s.name, func(t *testing.T) {
			direct, y := compare(t, s)
			if *update {
				known[s.name] = known[s.name].renewed(direct, y)
				return
			}
			if want := known[s.name].Direct; direct != want {
				t.Errorf("%d checks pass directly, want %d: the suite or the server has changed", direct, want)
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

// compare runs a suite directly and through toolgate, as often as the flag says,
// each time with new processes. It returns the smallest number of checks that passed
// directly, and the lost checks.
func compare(t *testing.T, s suite) (fewest int, y *tally) {
	y = newTally()
	for i := range *runs {
		var direct, through results
		ran := t.Run("direct", func(t *testing.T) { direct = s.direct(t) }) &&
			t.Run("through", func(t *testing.T) { through = s.through(t) })
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
