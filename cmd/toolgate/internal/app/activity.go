package app

import (
	"context"
	"time"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// activityOf returns what counts the calls since a time for the chart of the overview, in buckets of equal
// length and at most a day back; of the zero time it returns one bucket, which is empty if the index has no call.
func activityOf(calls *index.Index) func(ctx context.Context, since time.Time, buckets int) ([]console.Bucket, error) {
	return func(ctx context.Context, since time.Time, buckets int) ([]console.Bucket, error) {
		if since.IsZero() {
			page, err := calls.Search(ctx, index.Query{Limit: 1})
			return []console.Bucket{{Allowed: len(page.Calls)}}, err
		}
		minutes, err := calls.Minutes(ctx, since)
		if err != nil {
			return nil, err
		}
		return bucketsOf(minutes, since, time.Since(since), buckets), nil
	}
}

// bucketsOf puts minutes into buckets of equal length.
func bucketsOf(minutes []index.Minute, since time.Time, length time.Duration, buckets int) []console.Bucket {
	all, width := make([]console.Bucket, buckets), length/time.Duration(buckets)
	for i := range all {
		all[i].From = since.Add(time.Duration(i) * width)
	}
	for _, m := range minutes {
		b := &all[min(int(m.Begin.Sub(since)/width), buckets-1)]
		switch policy.Effect(m.Effect) {
		case policy.Allow:
			b.Allowed += m.Calls
		case policy.Hold:
			b.Held += m.Calls
		default:
			b.Denied += m.Calls
		}
	}
	return all
}
