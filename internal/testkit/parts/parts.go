// Package parts finds third-party parts of the tests that a lock file in testdata pins.
//
// A target of the Makefile installs them. Where they are not installed a test skips; with
// CI=true the first test that asks installs them, so that go test alone is enough in a
// fresh clone.
package parts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// Kit is what one lock file pins. It is safe for concurrent use.
type Kit struct {
	Dir      string     // of the kit, below testdata
	Lock     string     // the lock file in Dir
	Stamp    string     // a file below Dir that is there when the kit is installed; made if the commands do not
	Target   string     // of the Makefile
	Commands [][]string // install the kit, in Dir and in this order
}

// File returns the absolute path of a file or directory of the kit, which is named from
// Dir on. Without it the test skips; with CI=true it fails.
func (k *Kit) File(t testing.TB, path string) string {
	t.Helper()
	dir := filepath.Join(corpus.Checkout(t), "testdata", k.Dir)
	if os.Getenv("CI") == "true" {
		once, _ := installed.LoadOrStore(filepath.Join(dir, k.Stamp), sync.OnceValue(func() error { return k.install(dir) }))
		if err := once.(func() error)(); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, path)
	if _, err := os.Stat(full); err != nil {
		missing(t, "%s is not installed (make %s): %v", path, k.Target, err)
	}
	return full
}

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

func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// installed has the one installation of this process for each stamp:
// :: path -> func() error.
var installed sync.Map

// install installs the kit in dir unless it is there. Test programs that run at once
// wait for each other.
func (k *Kit) install(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, k.Lock), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	if err := files.Lock(lock); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, k.Stamp)); err == nil {
		return nil
	}
	for _, args := range k.Commands {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("installing %s: %w", k.Dir, err)
		}
	}
	stamp, err := os.OpenFile(filepath.Join(dir, k.Stamp), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return stamp.Close()
}
