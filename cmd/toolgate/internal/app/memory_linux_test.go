package app_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
)

// TestProgramIsReleased: the pages of the program file that the process has read are no
// longer counted to it, and the program goes on.
func TestProgramIsReleased(t *testing.T) {
	before := filePages(t)
	after := before
	for range 20 { // the collector may read pages again at the same time
		app.ReleaseProgram()
		after = min(after, filePages(t))
	}
	if after > before/2 {
		t.Errorf("%d KiB of files are resident, want less than half of %d KiB", after, before)
	}
}

// filePages returns how many KiB of mapped files are resident.
func filePages(t *testing.T) (n int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(after, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
