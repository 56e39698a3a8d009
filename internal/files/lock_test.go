package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/files"
)

// A lock keeps others out until its file is closed. Those that share it do not
// keep each other out.
func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second := open(), open()
	if err := files.Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := files.TryLock(second); !errors.Is(err, files.ErrHeld) {
		t.Errorf("TryLock of a locked file: %v", err)
	}
	if err := files.TryShare(second); !errors.Is(err, files.ErrHeld) {
		t.Errorf("TryShare of a locked file: %v", err)
	}
	if _, err := second.WriteString("advisory"); err != nil {
		t.Errorf("writing to a locked file: %v", err)
	}
	first.Close()
	third := open()
	for _, f := range []*os.File{second, third} {
		if err := files.TryShare(f); err != nil {
			t.Errorf("TryShare: %v", err)
		}
	}
	if err := files.TryLock(open()); !errors.Is(err, files.ErrHeld) {
		t.Errorf("TryLock of a shared file: %v", err)
	}
}
