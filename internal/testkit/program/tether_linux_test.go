package program

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A process that a test leaves behind is found, also when whoever started it has
// ended, and fails the run.
func TestGuard(t *testing.T) {
	if code := Guard(func() int { return 0 }); code != 0 {
		t.Errorf("without a survivor: exit %d, want 0", code)
	}
	if err := exec.Command("sh", "-c", "sleep 600 >/dev/null 2>&1 &").Run(); err != nil {
		t.Fatal(err)
	}
	found := survivors(0)
	if len(found) != 1 || !strings.Contains(found[0].command, "sleep 600") {
		t.Errorf("found %v, want the orphan", found)
	}
	for _, c := range found {
		if err := syscall.Kill(c.id, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if left := survivors(Timeout); len(left) != 0 {
		t.Errorf("found %v after the orphan ended", left)
	}
}
