// Package npm finds the third-party MCP servers and clients in testdata/npm.
//
// The lock file there pins them. Package parts says when a test that needs one skips.
package npm

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// File returns the absolute path of an installed file or directory, which is named
// from node_modules on.
func File(t testing.TB, path string) string {
	t.Helper()
	return file(t, "", path)
}

// Anvil returns the path of an Ethereum node, from testdata/npm/chain.
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
	kit := parts.Kit{
		Dir: filepath.Join("npm", under), Lock: "package-lock.json", Stamp: filepath.Join("node_modules", ".package-lock.json"), Target: "npm npm-soak",
		Commands: [][]string{{"npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"}},
	}
	return kit.File(t, filepath.Join("node_modules", path))
}
