package app

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
)

// The overview's counts: those of each span of a time, the last minute's too.
func TestActivity(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	minute := func(n int) time.Time { return noon.Truncate(time.Minute).Add(time.Duration(n) * time.Minute) }
	got := bucketsOf([]index.Minute{
		{Begin: minute(1), Effect: "allow", Calls: 3}, {Begin: minute(29), Effect: "hold", Calls: 1}, {Begin: minute(31), Effect: "deny", Calls: 2},
		{Begin: minute(40), Effect: "", Calls: 4}, {Begin: minute(90), Effect: "allow", Calls: 5}, {Begin: minute(91), Effect: "allow", Calls: 1},
	}, noon, 90*time.Minute, 3)
	want := []console.Bucket{{From: noon, Allowed: 3, Held: 1}, {From: noon.Add(30 * time.Minute), Denied: 6}, {From: noon.Add(time.Hour), Allowed: 6}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
