package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// A support bundle has the versions of the modules that the program was built from.
func TestBundleNamesModules(t *testing.T) {
	parts.Long(t, "builds a release")
	dir := t.TempDir()
	bundle := filepath.Join(dir, "bundle.tar.gz")
	cmd := exec.Command(static(t), "support-bundle", "--config", "mcp.json", "--state", "state", bundle)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
	if err := os.WriteFile(filepath.Join(dir, "mcp.json"), []byte(`{"mcpServers": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(plain); ; {
		head, err := files.Next()
		if err != nil {
			t.Fatalf("no versions.json: %v", err)
		}
		if path.Base(head.Name) != "versions.json" {
			continue
		}
		text, err := io.ReadAll(files)
		if err != nil || !bytes.Contains(text, []byte(`"github.com/open-policy-agent/opa"`)) {
			t.Errorf("%v, versions.json:\n%s", err, text)
		}
		return
	}
}
