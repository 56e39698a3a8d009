// Package parts says what a test needs beyond Go: programs of the system, and third-party
// parts that a lock file in testdata pins and a target of .ci/Makefile installs.
//
// With -short, as in make test, a test that needs a part skips. Otherwise it skips where the
// part is missing, with a reason; with CI=true it fails there. With CI=true the first test
// that asks installs the pinned parts, so that go test alone is enough in a fresh clone.
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
// Dir on. The test skips or fails without it, as the package comment says.
func (k *Kit) File(t testing.TB, path string) string {
	t.Helper()
	Long(t, "needs "+path)
	dir := filepath.Join(corpus.Checkout(t), "testdata", k.Dir)
	if os.Getenv("CI") == "true" {
		once, _ := installed.LoadOrStore(filepath.Join(dir, k.Stamp), sync.OnceValue(func() error { return k.install(dir) }))
		if err := once.(func() error)(); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, path)
	if _, err := os.Stat(full); err != nil {
		Missing(t, "%s is not installed (make -f .ci/Makefile %s): %v", path, k.Target, err)
	}
	return full
}

// Need returns the path of a program of the system, such as node. The test skips or fails
// without it, as the package comment says.
func Need(t testing.TB, program string) string {
	t.Helper()
	Long(t, "needs "+program)
	path, err := exec.LookPath(program)
	if err != nil {
		Missing(t, "%s is not installed (.ci/debian): %v", program, err)
	}
	return path
}

// Long skips the test with -short: make test-all runs it. The reason says why it is not in
// make test, such as "makes 20,000 calls".
func Long(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("%s: make test-all runs this test", reason)
	}
}

// Missing skips the test for what this machine lacks; with CI=true the test fails.
func Missing(t testing.TB, format string, args ...any) {
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
