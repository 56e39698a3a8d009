// Package npm finds the third-party MCP servers and clients in testdata/npm.
//
// The lock file there pins them, and make npm installs them. Where they are not
// installed a test skips; with CI=true the first test that asks installs them, so
// that go test alone is enough in a fresh clone.
package npm

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/filelock"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// Program returns the path of a program such as node. Without it the test skips;
// with CI=true it fails.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "%s is not installed: %v", name, err)
	}
	return path
}

// File returns the absolute path of an installed file or directory, which is named
// from node_modules on. Without it the test skips; with CI=true it fails.
func File(t testing.TB, path string) string {
	t.Helper()
	return file(t, "", path)
}

// Anvil returns the path of an Ethereum node, from testdata/npm/chain. Without it the test
// skips; with CI=true it fails.
func Anvil(t testing.TB) string {
	t.Helper()
	system := runtime.GOOS + "-" + runtime.GOARCH
	return file(t, "chain", filepath.Join("@foundry-rs", "anvil-"+system, "bin", "anvil"))
}

// SoakFile is File for the large parts in testdata/npm/soak, which only the long form
// of the tests uses: without TOOLGATE_SOAK=1 the test skips.
func SoakFile(t testing.TB, path string) string {
	t.Helper()
	if os.Getenv("TOOLGATE_SOAK") == "" {
		t.Skipf("%s is for TOOLGATE_SOAK=1", path)
	}
	return file(t, "soak", path)
}

func file(t testing.TB, under, path string) string {
	t.Helper()
	dir := filepath.Join(corpus.Checkout(t), "testdata", "npm", under)
	if os.Getenv("CI") == "true" {
		once, _ := installed.LoadOrStore(dir, sync.OnceValue(func() error { return install(dir) }))
		if err := once.(func() error)(); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, "node_modules", path)
	if _, err := os.Stat(full); err != nil {
		missing(t, "%s is not installed (make npm, make npm-soak): %v", path, err)
	}
	return full
}

func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// installed has the one installation of this process for each directory:
// :: directory -> func() error.
var installed sync.Map

// install installs what the lock file of dir names, unless it is there. Test programs
// that run at once wait for each other.
func install(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, "package-lock.json"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	if err := filelock.Lock(lock); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return nil
	}
	cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	return cmd.Run()
}
