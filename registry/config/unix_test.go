//go:build unix

package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/registry/config"
)

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.json")
	if err := os.WriteFile(big, bytes.Repeat([]byte(" "), 1<<20+1), 0o644); err != nil {
		t.Fatal(err)
	}
	// Opening a pipe that nobody writes to would block for ever.
	pipe := filepath.Join(dir, "pipe.json")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:                               "reading it: it is not a regular file",
		pipe:                              "reading it: it is not a regular file",
		big:                               "reading it: it is larger than 1048576 bytes",
		filepath.Join(dir, "none"):        "there is no such file",
		filepath.Join(dir, "none", "one"): "there is no such file",
	} {
		got := refuse(t, config.Options{Path: path})
		if len(got) != 1 || got[0].Message != want || got[0].File != path || got[0].Hint == "" {
			t.Errorf("%s: %v, want %s", path, got, want)
		}
	}
}
