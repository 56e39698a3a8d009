package clientfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/internal/files"
)

// A file of a client that is a pipe, or a link to a device, is neither read nor changed.
func TestIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, device := filepath.Join(dir, "pipe.json"), filepath.Join(dir, "device.json")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink("/dev/null", device)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, device, dir} {
		done := make(chan error, 1)
		go func() {
			_, err := clientfile.Plan(path, "json", set("", "s"))
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, files.ErrIrregular) {
				t.Errorf("planning a change of %s: %v", path, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("planning a change of %s does not end", path)
		}
	}
	// One that becomes a pipe after it was read is not written.
	file := filepath.Join(dir, "file.json")
	write(t, file, "{}", 0o600)
	c := plan(t, file)
	if err := errors.Join(os.Remove(file), os.Rename(pipe, file)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(time.Now()); !errors.Is(err, files.ErrIrregular) {
		t.Errorf("writing over a pipe: %v", err)
	}
}

func TestLargeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "large.json")
	write(t, file, "{}", 0o600)
	if err := os.Truncate(file, clientfile.MaxBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := clientfile.Read(file); err == nil {
		t.Error("a file beyond the bound was read")
	}
}
