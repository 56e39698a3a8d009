package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Everybody who shares a state directory signs with the same key, which nobody
// else can read, and which the next start finds.
func TestStateKey(t *testing.T) {
	dir := t.TempDir()
	keys := make([][]byte, 16)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			key, err := stateKey(dir)
			if err != nil {
				t.Error(err)
			}
			keys[i] = key
		})
	}
	all.Wait()
	for _, key := range keys {
		if !bytes.Equal(key, keys[0]) || len(key) != 32 {
			t.Fatalf("keys %x and %x", keys[0], key)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	info, err := os.Stat(filepath.Join(dir, "request_state.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if other, err := stateKey(t.TempDir()); err != nil || bytes.Equal(other, keys[0]) {
		t.Errorf("the key of another directory is the same: %v", err)
	}
}

// A key that is cut short is no key.
func TestStateKeyThatIsNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "request_state.key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := stateKey(dir); err == nil || !strings.Contains(err.Error(), "hint:") || strings.Contains(err.Error(), "short") {
		t.Errorf("got %v", err)
	}
}
