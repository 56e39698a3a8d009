package bundle_test

import (
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	opabundle "github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"

	"github.com/toolgate/toolgate/policy/bundle"
)

// modules parses every Rego file of the default policy, tests included.
func modules(t testing.TB) map[string]*ast.Module {
	t.Helper()
	out := make(map[string]*ast.Module)
	err := fs.WalkDir(bundle.Files, ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".rego" {
			return err
		}
		src, err := fs.ReadFile(bundle.Files, name)
		if err != nil {
			return err
		}
		out["/"+name], err = ast.ParseModuleWithOpts("/"+name, string(src), ast.ParserOptions{ProcessAnnotation: true})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.rego") }

// TestRego runs the policy's own tests and holds that they reach every line.
func TestRego(t *testing.T) {
	loader, err := opabundle.NewFSLoader(bundle.Files)
	if err != nil {
		t.Fatal(err)
	}
	b, err := opabundle.NewCustomReader(loader).WithSkipBundleVerification(true).Read()
	if err != nil {
		t.Fatal(err)
	}
	coverage := cover.New()
	store := inmem.New()
	txn := storage.NewTransactionOrDie(t.Context(), store, storage.WriteParams)
	defer store.Abort(t.Context(), txn)
	run := tester.NewRunner().
		SetStore(store).
		SetBundles(map[string]*opabundle.Bundle{"toolgate": &b}).
		SetCoverageQueryTracer(coverage).
		SetTimeout(10 * time.Minute) // of each test; a busy machine is no failure
	results, err := run.RunTests(t.Context(), txn)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for r := range results {
		count++
		if !r.Pass() {
			t.Errorf("%s: fail=%v err=%v", r.Name, r.Fail, r.Error)
		}
	}
	if count < 60 {
		t.Errorf("ran %d tests, want at least 60", count)
	}
	all := modules(t)
	report := coverage.Report(all)
	for name := range all {
		if isTest(name) {
			continue
		}
		file := report.Files[name]
		if file == nil || len(file.Covered) < 3 {
			t.Errorf("coverage of %s was not recorded: %+v", name, file)
			continue
		}
		for _, r := range file.NotCovered {
			t.Errorf("%s:%d-%d: no test gets there", name, r.Start.Row, r.End.Row)
		}
	}
}

// TestLanguage holds that a not about a missing argument is true in what we ship.
func TestLanguage(t *testing.T) {
	for name, m := range modules(t) {
		if m.RegoVersionSpan().Max() < ast.RegoV2 {
			t.Errorf("%s does not import rego.v2", name)
		}
	}
}
