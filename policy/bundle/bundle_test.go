package bundle_test

import (
	"io/fs"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	opabundle "github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"

	"github.com/toolgate/toolgate/policy/bundle"
)

const policyFile = "/toolgate.rego"

// modules parses every Rego file of the default policy, tests included.
func modules(t *testing.T) map[string]*ast.Module {
	t.Helper()
	out := make(map[string]*ast.Module)
	names, err := fs.Glob(bundle.Files, "*.rego")
	if err != nil || len(names) < 2 {
		t.Fatalf("got files %v, %v; want the policy and its tests", names, err)
	}
	for _, name := range names {
		src, err := fs.ReadFile(bundle.Files, name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ast.ParseModule("/"+name, string(src))
		if err != nil {
			t.Fatal(err)
		}
		out["/"+name] = m
	}
	return out
}

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
		SetCoverageQueryTracer(coverage)
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
	if count < 15 {
		t.Errorf("ran %d tests, want at least 15", count)
	}
	file := coverage.Report(modules(t)).Files[policyFile]
	if file == nil || len(file.Covered) < 20 {
		t.Fatalf("coverage of %s was not recorded: %+v", policyFile, file)
	}
	for _, r := range file.NotCovered {
		t.Errorf("%s:%d-%d: no test gets there", policyFile, r.Start.Row, r.End.Row)
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
