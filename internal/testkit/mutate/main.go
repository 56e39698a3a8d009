// Mutate removes each security check of a package once and lists the checks that no
// test misses: the survivors.
//
//	go run ./internal/testkit/mutate ./proxy ./audit     # or make -f .ci/Makefile mutate PKG=./proxy
//
// A check is a branch that refuses: an if or a case of a switch without a tag whose
// body returns an error, a failure or false, or reports a problem. Each operand of
// its || is a check of its own. A bound on a reader, a Sync and a CheckRedirect are
// checks as well; a branch that continues a loop is one of kind filter. A branch on
// err != nil that only returns the error is of kind passed, and left out by default:
// errcheck and ineffassign find an error that is dropped, and what refuses because of
// the error is a check where it does so.
//
// One test program of the package holds all mutants; an environment variable chooses
// the one that is removed. Every test runs alone once, to find the checks that it
// reaches. Then each mutant meets the tests that reach it: those of its own package, and
// with -importers those of the packages that import it, which takes several times as long.
// Results are kept under .cache until the test program changes.
//
// A check whose removal changes nothing that a test could see is listed with the
// reason in equivalent.txt.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// settings are the command line.
type settings struct {
	packages []string
	kinds    string
	match    string
	tests    string
	sample   int
	seed     uint64
	limit    time.Duration
	all      bool // tests of importing packages too
	list     bool
}

func main() {
	var s settings
	flag.StringVar(&s.kinds, "kinds", "refusal,error,bound,sync,redirect", "kinds of checks, separated by commas; passed and filter are others")
	flag.StringVar(&s.match, "match", "", "only checks whose place or text contains this")
	flag.StringVar(&s.tests, "tests", ".", "only tests that match this regular expression")
	flag.IntVar(&s.sample, "sample", 0, "number of checks for each package, chosen by -seed; 0 = all")
	flag.Uint64Var(&s.seed, "seed", 1, "seed of the sample")
	flag.DurationVar(&s.limit, "limit", time.Minute, "time for one run of tests")
	flag.BoolVar(&s.all, "importers", false, "also tests of the packages that import it")
	flag.BoolVar(&s.list, "list", false, "list the checks and run nothing")
	flag.Parse()
	s.packages = flag.Args()
	os.Exit(mutate(s))
}

// mutate returns the exit code: 0 = no survivor, 1 = survivors, 2 = an error.
func mutate(s settings) int {
	equivalent, err := readEquivalents()
	if err != nil {
		return report(err)
	}
	packages, err := listPackages()
	if err != nil {
		return report(err)
	}
	survivors := 0
	for _, path := range s.packages {
		p := packages.find(path)
		if p == nil {
			return report(fmt.Errorf("no package %s", path))
		}
		checks, err := findChecks(p)
		if err != nil {
			return report(err)
		}
		chosen := choose(checks, s, equivalent)
		if s.list {
			for _, c := range chosen {
				fmt.Println(c)
			}
			continue
		}
		alive, err := run(packages, p, checks, chosen, s)
		if err != nil {
			return report(err)
		}
		survivors += len(alive)
		fmt.Printf("%s: %d of %d checks were removed, %d survived\n", p.ImportPath, len(chosen), len(checks), len(alive))
		for _, c := range alive {
			if fmt.Printf("  %s", c); c.reached == 0 {
				fmt.Print(", which no test reaches")
			}
			fmt.Println()
		}
	}
	if survivors > 0 {
		return 1
	}
	return 0
}

func report(err error) int {
	fmt.Fprintln(os.Stderr, "mutate:", err)
	return 2
}

// choose returns the checks that s names and that are not equivalent.
func choose(checks []*check, s settings, equivalent map[string]string) []*check {
	var out []*check
	for _, c := range checks {
		if slices.Contains(strings.Split(s.kinds, ","), c.kind) && strings.Contains(c.String(), s.match) && equivalent[c.key()] == "" {
			out = append(out, c)
		}
	}
	if s.sample > 0 && s.sample < len(out) {
		rand.New(rand.NewPCG(s.seed, 0)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		out = out[:s.sample]
		slices.SortFunc(out, func(a, b *check) int { return a.id - b.id })
	}
	return out
}
