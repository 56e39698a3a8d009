// Package corpus finds public test data outside the project.
package corpus

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir returns the directory of a corpus, in TOOLGATE_CORPORA or in shared/corpora
// next to the checkout. If the corpus is missing the test skips; with CI=true it
// fails.
func Dir(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("TOOLGATE_CORPORA")
	if dir == "" {
		dir = filepath.Join(filepath.Dir(Checkout(t)), "shared", "corpora")
	}
	dir = filepath.Join(dir, name)
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the corpus is missing in CI: %v", err)
		}
		t.Skipf("the corpus is not here (set TOOLGATE_CORPORA): %v", err)
	}
	return dir
}

// Checkout returns the directory of go.mod, above the directory of the test.
func Checkout(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above this test")
		}
		dir = filepath.Dir(dir)
	}
}
