package crash_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/crash"
	"github.com/toolgate/toolgate/internal/files"
)

// What dead processes wrote is found once, and ten of all are kept. Empty files are removed,
// and those of living processes stay.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "crash")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 10 {
		put(fmt.Sprintf("crash-2026010%dT000000Z-1.txt", n), "old")
	}
	put("running-20260201T000000Z-2.txt", "panic: planted")
	put("running-20260202T000000Z-3.txt", "")
	put("running-20260203T000000Z-4.txt", "still being written")
	alive, err := os.Open(filepath.Join(dir, "running-20260203T000000Z-4.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if err := files.TryLock(alive); err != nil {
		t.Fatal(err)
	}
	found, stop, err := crash.Keep(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(dir, "crash-20260201T000000Z-2.txt")}, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	all := crash.Files(dir)
	if len(all) != 10 || all[9] != found[0] {
		t.Errorf("kept %v", all)
	}
	count := func() int {
		live, _ := filepath.Glob(filepath.Join(dir, "running-*"))
		return len(live)
	}
	if n := count(); n != 2 { // that of another process, and ours
		t.Errorf("%d files of living processes", n)
	}
	stop()
	if n := count(); n != 1 {
		t.Errorf("%d files of living processes after a clean end", n)
	}
	found, stop, err = crash.Keep(dir)
	defer stop()
	if err != nil || len(found) > 0 {
		t.Errorf("found again: %v, %v", found, err)
	}
}

// A directory that cannot be made is an error, and stop can be called.
func TestKeepNowhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop, err := crash.Keep(filepath.Join(file, "crash"))
	if stop(); err == nil {
		t.Error("no error")
	}
}
