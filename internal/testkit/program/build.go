package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// workDir is where programs are built; Run removes it.
var workDir string

// Run runs the tests of a package and returns the exit code, which is not 0 when
// a process outlives them. What they built is removed.
func Run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolgate-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	workDir = dir
	code := Guard(m.Run)
	_ = os.RemoveAll(dir) // a leftover in the temporary directory fails no test
	return code
}

// Built returns a function that builds the main package at an import path with the
// flags of go build, once for all tests, and returns the path of the program. It
// needs Run. A build failure fails the test.
func Built(pkg string, flags ...string) func(t testing.TB) string {
	build := sync.OnceValues(func() (string, error) {
		file := filepath.Join(workDir, filepath.Base(pkg)+strings.Join(flags, ""))
		args := append(append([]string{"build"}, flags...), "-o", file, pkg)
		out, err := exec.Command("go", args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
		return file, nil
	})
	return func(t testing.TB) string {
		t.Helper()
		file, err := build()
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
}

// BinaryVar is an environment variable with the path of a toolgate to test, for
// example a release.
const BinaryVar = "TOOLGATE_BINARY"

var (
	toolgate = Built(command)
	racing   = Built(command, "-race")
)

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
	if !raceEnabled {
		return Toolgate(t)
	}
	return racing(t)
}
