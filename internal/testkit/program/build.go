package program

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// Run runs the tests of a package and returns the exit code, which is not 0 when
// a process outlives them.
func Run(m *testing.M) int { return Guard(m.Run) }

// Built returns a function that builds the main package at an import path with the
// flags of go build and returns the path of the program. The program stays in
// .cache/test of the checkout, for all packages and runs: go build makes it again only
// when its sources have changed. A build failure fails the test.
func Built(pkg string, flags ...string) func(t testing.TB) string {
	var once sync.Once
	var file string
	var err error
	return func(t testing.TB) string {
		t.Helper()
		once.Do(func() {
			dir := filepath.Join(corpus.Checkout(t), ".cache", "test")
			file = filepath.Join(dir, strings.ReplaceAll(path.Base(pkg)+strings.Join(flags, ""), "/", "."))
			err = build(dir, append(append([]string{"build"}, flags...), "-o", file, pkg))
		})
		if err != nil {
			t.Fatalf("building %s: %v", pkg, err)
		}
		return file
	}
}

// build runs go in dir. Test programs that build at once wait for each other.
func build(dir string, args []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	if err := files.Lock(lock); err != nil {
		return err
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// BinaryVar is an environment variable with the path of a toolgate to test, for
// example a release.
const BinaryVar = "TOOLGATE_BINARY"

var (
	toolgate = Built(command, Tags)
	// As in the Makefile, the race detector does not watch SQLite itself.
	racing = Built(command, Tags, "-race", "-gcflags=modernc.org/sqlite/lib=-race=false", "-gcflags=modernc.org/libc=-race=false", "-gcflags=modernc.org/memory=-race=false")
)

// Tags is the flag of go build with which every toolgate is built.
const Tags = "-tags=grpcnotrace"

const command = "github.com/toolgate/toolgate/cmd/toolgate"

// Toolgate returns the path of the toolgate under test.
func Toolgate(t testing.TB) string {
	t.Helper()
	if made := os.Getenv(BinaryVar); made != "" {
		return made
	}
	return toolgate(t)
}

// Watched returns the path of a toolgate with the race detector if the test has it,
// and of the usual one otherwise.
func Watched(t testing.TB) string {
	t.Helper()
	if !Raced {
		return Toolgate(t)
	}
	return racing(t)
}
