package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/internal/store"
)

func TestInstances(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "instances[1]") // no pattern, a name
	alive := func(id string, want bool) {
		t.Helper()
		if got, err := store.InstanceAlive(dir, id); err != nil || got != want {
			t.Errorf("%s lives: %v, %v; want %v", id, got, err, want)
		}
	}
	alive("one", false)
	one, err := store.HoldInstance(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	alive("one", true)
	if second, err := store.HoldInstance(dir, "one"); err == nil {
		second.Close()
		t.Error("one id was held twice")
	}
	alive("one", true)
	dead := filepath.Join(dir, "dead.lock")
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	alive("dead", false)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := store.SweepInstances(dir); err != nil || len(got) != 1 || got[0] != fmt.Sprintf("process %d on %s", os.Getpid(), host) {
		t.Fatalf("alive: %q, %v", got, err)
	}
	if _, err := os.Stat(dead); err == nil {
		t.Error("the lock of a dead process is still there")
	}
	alive("one", true)
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	alive("one", false)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	for _, bad := range []string{"", "../x", "a/b"} {
		if i, err := store.HoldInstance(dir, bad); err == nil {
			i.Close()
			t.Errorf("held %q", bad)
		}
	}
}
