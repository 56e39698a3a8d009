package files_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/testkit/nosync"
)

// What cannot be flushed does not get its name.
func TestNoSync(t *testing.T) {
	fail, ok := nosync.Process(t)
	if !ok {
		return
	}
	dir := t.TempDir()
	fail()
	for name, write := range map[string]func(string, []byte, os.FileMode) error{"created": files.Create, "replaced": files.Replace} {
		path := filepath.Join(dir, name)
		if err := write(path, []byte("x"), 0o600); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s: the file is there", name)
		}
	}
	if err := files.Probe(dir); err == nil {
		t.Error("a disk that flushes nothing can be written to")
	}
}
