package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/files"
)

// Only regular files are read, with a bound, and nothing waits for a writer.
func TestRead(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "project")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, size := range map[string]int{"project/file": 10, "project/large": 11, "project/empty": 0, "project/sub/file": 10, "outside": 10} {
		if err := os.WriteFile(filepath.Join(top, path), []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "sub/file", "out": "../outside", "absolute": filepath.Join(dir, "file"), "device": "/dev/null", "above": ".."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const read, tooLarge, escapes = "", "larger than 10 bytes", "escapes"
	irregular := files.ErrIrregular.Error()
	for _, tc := range []struct{ name, anywhere, inside string }{
		{"file", read, read},
		{"empty", read, read},
		{"sub/file", read, read},
		{"link", read, read},
		{"large", tooLarge, tooLarge},
		{".", irregular, irregular},
		{"pipe", irregular, irregular},
		{"device", irregular, escapes},
		{"out", read, escapes},
		{"above/outside", read, escapes},
		{"../outside", read, escapes},
		{"absolute", read, escapes},
		{"none", "no such file", "no such file"},
	} {
		for how, one := range map[string]struct {
			want string
			read func() ([]byte, error)
		}{
			"Read":   {tc.anywhere, func() ([]byte, error) { return files.Read(filepath.Join(dir, tc.name), 10) }},
			"ReadIn": {tc.inside, func() ([]byte, error) { return files.ReadIn(dir, tc.name, 10) }},
		} {
			done := make(chan error, 1)
			go func() {
				_, err := one.read()
				done <- err
			}()
			select {
			case err := <-done:
				if (err == nil) != (one.want == read) || err != nil && !strings.Contains(err.Error(), one.want) {
					t.Errorf("%s of %s: %v, want %q", how, tc.name, err, one.want)
				}
				if one.want == irregular && !errors.Is(err, files.ErrIrregular) {
					t.Errorf("%s of %s: %v", how, tc.name, err)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s of %s does not end", how, tc.name)
			}
		}
	}
}
