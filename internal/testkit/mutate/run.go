package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// pkg is a package of the project, as go list says it.
type pkg struct {
	ImportPath, Dir, Name              string
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
	Module                             struct{ Path string }
}

// name returns the path of the package from the root.
func (p *pkg) name() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")
}

type packages []*pkg

func listPackages() (packages, error) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Name,GoFiles,Imports,TestImports,XTestImports,Module", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	var all packages
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		p := new(pkg)
		if err := d.Decode(p); err != nil {
			return nil, fmt.Errorf("listing packages: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}

func (all packages) find(path string) *pkg {
	path = strings.Trim(strings.TrimPrefix(path, "./"), "/")
	for _, p := range all {
		if p.name() == path {
			return p
		}
	}
	return nil
}

// whole are packages whose tests start built programs, which have no mutants.
var whole = []string{"cmd/toolgate/internal/cli", "internal/peers", "internal/conformance", "internal/house"}

// importers returns p and the packages with tests that import it.
func (all packages) importers(p *pkg) packages {
	out := packages{p}
	for _, q := range all {
		imports := slices.Concat(q.Imports, q.TestImports, q.XTestImports)
		tested := len(q.TestImports)+len(q.XTestImports) > 0
		if q != p && tested && slices.Contains(imports, p.ImportPath) && !slices.Contains(whole, q.name()) {
			out = append(out, q)
		}
	}
	return out
}

//go:embed equivalent.txt
var equivalentText string

// readEquivalents returns the reasons by the checks' keys.
func readEquivalents() (map[string]string, error) {
	out := make(map[string]string)
	for line := range strings.Lines(equivalentText) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, ok := strings.Cut(line, " # ")
		if !ok || reason == "" {
			return nil, fmt.Errorf("equivalent.txt: no reason: %s", line)
		}
		out[strings.TrimSpace(key)] = strings.TrimSpace(reason)
	}
	return out, nil
}

// run removes each chosen check once and returns the survivors.
func run(all packages, p *pkg, checks, chosen []*check, s settings) ([]*check, error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := writeOverlay(dir, p, checks)
	if err != nil {
		return nil, err
	}
	testers := all.importers(p)
	if !s.all {
		testers = testers[:1]
	}
	alive := chosen
	for _, q := range testers {
		if len(alive) == 0 {
			break
		}
		t, err := build(dir, overlay, q, s.tests)
		if err != nil {
			return nil, err
		}
		if t == nil {
			continue // no tests
		}
		t.limit = s.limit
		if err := t.measure(); err != nil {
			return nil, err
		}
		killed := make([]bool, len(alive))
		_ = each(len(alive), func(i int) error {
			killed[i] = t.kills(alive[i])
			return nil
		})
		var left []*check
		for i, c := range alive {
			if !killed[i] {
				left = append(left, c)
			}
		}
		alive = left
	}
	return alive, nil
}

// each calls do with 0 to n-1 from as many goroutines as there are processors, and returns
// the first error.
func each(n int, do func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	return g.Wait()
}

// writeOverlay writes the package with mutants and returns the file for -overlay.
func writeOverlay(dir string, p *pkg, checks []*check) (string, error) {
	replace := make(map[string]string)
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		own := slices.DeleteFunc(slices.Clone(checks), func(c *check) bool { return filepath.Base(c.file) != name })
		to := filepath.Join(dir, name)
		if err := os.WriteFile(to, edited(text, own), 0o600); err != nil {
			return "", err
		}
		replace[path] = to
	}
	added := filepath.Join(dir, "mutants.go")
	if err := os.WriteFile(added, fmt.Appendf(nil, control, p.Name), 0o600); err != nil {
		return "", err
	}
	replace[filepath.Join(p.Dir, "mutants_of_this_run.go")] = added
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// A tester is the test program of one package, with mutants inside. Its kills is safe for
// concurrent use.
type tester struct {
	of     *pkg
	binary string
	tests  string        // a regular expression
	limit  time.Duration // of one test
	cache  string

	mu    sync.Mutex // protects the fields below and the file of the cache
	known results
	kill  map[string]int // number of checks by the test that killed them in this run
}

// results are what is known of a test program. They are kept in a file that has the
// hash of the program as its name.
type results struct {
	Tests  []measured
	Killed map[int]bool // by the number of the check
}

// measured is one test that passes without a mutant.
type measured struct {
	Name    string
	Took    time.Duration
	Reaches []int
}

func build(dir, overlay string, q *pkg, tests string) (*tester, error) {
	t := &tester{of: q, tests: tests, binary: filepath.Join(dir, strings.ReplaceAll(q.name(), "/", "_")+".test"), kill: make(map[string]int)}
	fmt.Fprintf(os.Stderr, "building the tests of %s\n", q.name())
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-overlay", overlay, "-o", t.binary, q.ImportPath)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the tests of %s: %w\n%s", q.name(), err, out)
	}
	text, err := os.ReadFile(t.binary)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append(text, tests...))
	t.cache = filepath.Join(".cache", "mutate", hex.EncodeToString(sum[:8])+".json")
	if text, err := os.ReadFile(t.cache); err == nil {
		_ = json.Unmarshal(text, &t.known) // what cannot be read is measured again
	}
	if t.known.Killed == nil {
		t.known.Killed = make(map[int]bool)
	}
	return t, nil
}

func (t *tester) save() error {
	text, err := json.Marshal(t.known)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(t.cache), 0o755); err != nil {
		return err
	}
	return os.WriteFile(t.cache, text, 0o600)
}

// failure matches the first line about a test that failed.
var failure = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// test runs tests of the program. It reports whether they passed in time and, where they
// did not, the first test that failed: "" where the program names none.
func (t *tester) test(tests []string, limit time.Duration, env ...string) (passed bool, failed string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.binary, "-test.run", "^("+strings.Join(tests, "|")+")$", "-test.failfast", "-test.timeout", limit.String())
	cmd.Dir = t.of.Dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if found := failure.FindSubmatch(out); found != nil {
		failed = string(found[1])
	}
	return err == nil, failed
}

// measure runs each test alone and keeps which checks it reaches. Tests that fail or
// take too long without a mutant are left out.
func (t *tester) measure() error {
	if len(t.known.Tests) > 0 {
		return nil
	}
	cmd := exec.Command(t.binary, "-test.list", t.tests)
	cmd.Dir = t.of.Dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("listing the tests of %s: %w", t.of.name(), err)
	}
	names := slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool { return strings.HasPrefix(name, "Benchmark") })
	tests := make([]*measured, len(names))
	if err := each(len(names), func(i int) (err error) {
		tests[i], err = t.measureTest(names[i])
		return err
	}); err != nil {
		return err
	}
	for _, m := range tests {
		if m != nil {
			t.known.Tests = append(t.known.Tests, *m)
		}
	}
	return t.save()
}

// measureTest runs one test alone. It returns nil when the test fails or takes too long.
func (t *tester) measureTest(name string) (*measured, error) {
	hits := t.binary + "." + name + ".hits"
	began := time.Now()
	if passed, _ := t.test([]string{name}, t.limit, "TOOLGATE_MUTANT_HITS="+hits); !passed {
		fmt.Fprintf(os.Stderr, "left out, for it fails or takes longer than %v without a mutant: %s\n", t.limit, name)
		return nil, nil
	}
	m := &measured{Name: name, Took: time.Since(began)}
	text, _ := os.ReadFile(hits) // no file: the test reaches nothing
	for _, field := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("reading what %s reaches: %w", name, err)
		}
		m.Reaches = append(m.Reaches, n)
	}
	return m, nil
}

// kills reports whether a test fails, or takes ten times as long, once c is removed. Tests
// that are quick and have killed others run first, in batches that take twice as long each.
func (t *tester) kills(c *check) bool {
	t.mu.Lock()
	known, tests := t.known.Killed[c.id], t.reaching(c)
	t.mu.Unlock()
	c.reached += len(tests)
	if known {
		return true
	}
	for most := time.Second; len(tests) > 0; most *= 2 {
		var batch []string
		var took time.Duration
		for len(tests) > 0 && (len(batch) == 0 || took+tests[0].Took < min(most, t.limit/4)) {
			batch, took, tests = append(batch, tests[0].Name), took+tests[0].Took, tests[1:]
		}
		if passed, failed := t.test(batch, 10*(time.Second+took), "TOOLGATE_MUTANT="+strconv.Itoa(c.id)); !passed {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.known.Killed[c.id] = true
			t.kill[failed]++
			_ = t.save() // what is not saved is measured again
			return true
		}
	}
	return false
}

// reaching returns the tests that reach c, the most promising first: by the time that a
// test takes for each check that it has killed.
func (t *tester) reaching(c *check) []measured {
	tests := slices.DeleteFunc(slices.Clone(t.known.Tests), func(m measured) bool { return !slices.Contains(m.Reaches, c.id) })
	slices.SortStableFunc(tests, func(a, b measured) int {
		return cmp.Compare(a.Took/time.Duration(1+t.kill[a.Name]), b.Took/time.Duration(1+t.kill[b.Name]))
	})
	return tests
}
