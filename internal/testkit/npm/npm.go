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
	dir := filepath.Join(corpus.Checkout(t), "testdata", "npm")
	if os.Getenv("CI") == "true" {
		if err := install(dir); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, "node_modules", path)
	if _, err := os.Stat(full); err != nil {
		missing(t, "%s is not installed (make npm): %v", path, err)
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

// installed is the error of the one installation of this process.
var installed struct {
	once sync.Once
	err  error
}

// install installs what the lock file names, unless it is there. Test programs that
// run at once wait for each other.
func install(dir string) error {
	installed.once.Do(func() {
		lock, err := os.OpenFile(filepath.Join(dir, "package-lock.json"), os.O_RDWR, 0)
		if err != nil {
			installed.err = err
			return
		}
		defer lock.Close() // unlocks
		if installed.err = filelock.Lock(lock); installed.err != nil {
			return
		}
		if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
			return
		}
		cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
		installed.err = cmd.Run()
	})
	return installed.err
}
