package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/files"
)

// TestModes: a file has the mode that it was given, whatever it replaces, and nothing
// stays beside it.
func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	path := filepath.Join(t.TempDir(), "file")
	for i, mode := range []fs.FileMode{0o600, 0o644, 0o666, 0o400, 0o600} {
		if err := files.Replace(path, []byte{byte('0' + i)}, mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != mode {
			t.Fatalf("mode %v, want %v (%v)", info.Mode(), mode, err)
		}
	}
	alone(t, path, "4")
}

// TestCreate: of many that create one file one does, and what exists is not touched.
func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var wg sync.WaitGroup
	created := make(chan string, 20)
	for i := range cap(created) {
		wg.Go(func() {
			text := strings.Repeat(fmt.Sprintf("%02d", i), 1000)
			switch err := files.Create(path, []byte(text), 0o600); {
			case err == nil:
				created <- text
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(created) != 1 {
		t.Fatalf("%d created it", len(created))
	}
	alone(t, path, <-created)
}

// TestFailureLeavesTheFile: a file that cannot be replaced stays, and nothing else does.
func TestFailureLeavesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := files.Replace(path, []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if err := files.Create(path, []byte("x"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating a directory again: %v", err)
	}
	if err := files.Replace(filepath.Join(path, "missing", "file"), nil, 0o600); err == nil {
		t.Error("a file was written into a missing directory")
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
}

// TestReadersSeeWholeFiles: while a file is replaced, readers find it, and whole.
func TestReadersSeeWholeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := files.Create(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				if err := files.Replace(path, []byte(strings.Repeat(fmt.Sprint(i), 10_000)), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		text, err := os.ReadFile(path)
		if err != nil || len(text) > 0 && (len(text) != 10_000 || strings.Trim(string(text), string(text[:1])) != "") {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
	}
	wg.Wait()
}

// TestProbe finds a directory that cannot be written to.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	if err := files.Probe(dir); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the probe left %v (%v)", entries, err)
	}
	if err := files.Probe(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory can be written to")
	}
}

// TestSyncDir: a directory is flushed; on a file system that cannot, it fails.
func TestSyncDir(t *testing.T) {
	if err := files.SyncDir(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := files.SyncDir(filepath.Join(t.TempDir(), "missing")); err == nil && runtime.GOOS != "windows" {
		t.Error("a missing directory was flushed")
	}
	if runtime.GOOS == "linux" { // files of /proc are on no disk
		if err := files.SyncDir("/proc/self"); err == nil {
			t.Error("a directory that cannot be flushed was not tried")
		}
	}
}

// alone checks the content of path, and that its directory has no other file.
func alone(t *testing.T, path, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || string(text) != want {
		t.Errorf("%.40q, want %.40q (%v)", text, want, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
}
