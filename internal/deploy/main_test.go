// Package deploy_test installs toolgate as docs/deploy describes, and looks whether it
// serves, survives and tells: the unit under a systemd of its own, the image, the
// chart and the alerts with the programs that read them.
package deploy_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil { // for static, and make
		panic(err)
	}
	os.Exit(program.Run(m))
}

// static is toolgate as it is released.
var static = program.Built("github.com/toolgate/toolgate/cmd/toolgate", program.Tags, "-trimpath", "-ldflags=-s -w")

// deployed returns the path of a file of docs/deploy.
func deployed(t testing.TB, name string) string {
	t.Helper()
	return filepath.Join(corpus.Checkout(t), "docs", "deploy", filepath.FromSlash(name))
}

// install copies a file into a directory that is laid over a root file system.
func install(t testing.TB, root, name, from string, mode os.FileMode) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(root, name), text, mode)
}

func writeFile(t testing.TB, path string, text []byte, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, mode); err != nil {
		t.Fatal(err)
	}
}
