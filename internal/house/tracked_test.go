package house_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// largest is the size in bytes of the largest file that git may track. What is built
// is larger, and stays in the history for good once it is committed.
const largest = 512 << 10

func TestNoTrackedFileIsBuilt(t *testing.T) {
	top := corpus.Checkout(t)
	out, err := exec.Command("git", "-C", top, "ls-files", "-z").Output()
	if err != nil {
		t.Skip("this is no git checkout:", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(files) < 500 {
		t.Fatalf("git tracks %d files: the list is broken", len(files))
	}
	for _, file := range files {
		info, err := os.Lstat(filepath.Join(top, file))
		switch {
		case err != nil: // deleted, and not committed yet
		case info.Size() > largest:
			t.Errorf("%s has %d bytes, at most %d are tracked", file, info.Size(), largest)
		case strings.Contains(file, "node_modules/"):
			t.Errorf("%s is installed and not a source", file)
		}
	}
}
