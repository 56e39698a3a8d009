package app

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
)

// The overview's counts: those of each span of the last day, and all calls ever.
func TestActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var a activity
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx)
		}()
		a.allowed.Add(9) // before the day
		time.Sleep(25*time.Hour + 30*time.Minute)
		a.allowed.Add(3)
		a.held.Add(1)
		time.Sleep(45 * time.Minute)
		a.denied.Add(3)
		totals := func(since time.Time, buckets int) (all []console.Bucket) {
			all, err := a.since(ctx, since, buckets)
			if err != nil {
				t.Fatal(err)
			}
			for i := range all {
				all[i].From = time.Time{}
			}
			return all
		}
		want := make([]console.Bucket, 24)
		want[23] = console.Bucket{Allowed: 3, Held: 1, Denied: 3}
		if diff := cmp.Diff(want, totals(time.Now().Add(-24*time.Hour), 24)); diff != "" {
			t.Errorf("a day (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]console.Bucket{{Denied: 3}}, totals(time.Now().Add(-30*time.Minute), 1)); diff != "" {
			t.Errorf("half an hour (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]console.Bucket{{Allowed: 12, Held: 1, Denied: 3}}, totals(time.Time{}, 1)); diff != "" {
			t.Errorf("ever (-want +got):\n%s", diff)
		}
		if n := len(a.counts); n > 24*60+2 {
			t.Errorf("%d counts are kept", n)
		}
		stop()
		<-done
	})
}
