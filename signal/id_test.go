package signal_test

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// golden is what a run in reproducible mode makes.
func golden(t *testing.T) []string {
	t.Helper()
	defer signal.Reproducible(epoch)()
	a := must(signal.CreateText("a", here, "trc_1", nil))(t)
	b := must(signal.CreateText("b", here, "trc_1", nil))(t)
	from, _, err := signal.FromToolResult([]byte(`{"content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]}`), signal.Lineage{Origin: here, TraceID: "trc_1"})
	if err != nil {
		t.Fatal(err)
	}
	out := []string{signal.NewID("dec_"), signal.Now().Format(time.RFC3339Nano)}
	for _, s := range append([]signal.Signal{a, b}, from...) {
		if err := signal.ValidateSignal(s); err != nil {
			t.Error(err)
		}
		out = append(out, s.ID()+" "+s.CreatedAt().Format(time.RFC3339Nano))
	}
	return out
}

func TestReproducible(t *testing.T) {
	want := []string{
		"dec_01KDYAK3480000000000000005",
		"2026-01-02T03:04:05.004Z",
		"sig_01KDYAK3480000000000000001 2026-01-02T03:04:05.001Z",
		"sig_01KDYAK3480000000000000002 2026-01-02T03:04:05.002Z",
		"sig_01KDYAK3480000000000000003 2026-01-02T03:04:05.003Z",
		"sig_01KDYAK3480000000000000004 2026-01-02T03:04:05.003Z",
	}
	for range 2 {
		if diff := cmp.Diff(want, golden(t)); diff != "" {
			t.Error(diff)
		}
	}
	before := signal.NewID("dec_")
	if time.Since(signal.Now()) > time.Minute || slices.Contains(golden(t), before) {
		t.Error("the mode is still on after restore")
	}
	if after := signal.NewID("dec_"); after <= before {
		t.Errorf("%s after %s", after, before)
	}
}

// TestNewIDs: NewIDs makes the ids that NewID makes in as many calls.
func TestNewIDs(t *testing.T) {
	before := signal.NewID("a_")
	prefixes := []string{"dec_", "", "a_longer_prefix_than_usual_", "sig_", "trc_"}
	ids := make([]string, len(prefixes))
	signal.NewIDs(ids, prefixes...)
	last := before[len("a_"):]
	for i, id := range ids {
		ulid, ok := strings.CutPrefix(id, prefixes[i])
		if !ok || len(ulid) != len(last) || ulid <= last {
			t.Errorf("%q after %q, want %q and a later ULID", id, last, prefixes[i])
		}
		last = ulid
	}
	defer signal.Reproducible(epoch)()
	signal.NewIDs(ids[:2], "x_", "y_")
	want := []string{"x_01KDYAK3480000000000000001", "y_01KDYAK3480000000000000002"}
	if diff := cmp.Diff(want, ids[:2]); diff != "" {
		t.Error(diff)
	}
}

func TestReproducibleIDsGrowAndNeverRepeat(t *testing.T) {
	defer signal.Reproducible(epoch)()
	var wg sync.WaitGroup
	all := make([][]string, 4)
	for m := range all {
		wg.Go(func() {
			for range 500 {
				all[m] = append(all[m], signal.NewID("x_"))
			}
		})
	}
	wg.Wait()
	for _, ids := range all {
		if !slices.IsSorted(ids) {
			t.Error("out of order")
		}
	}
	if one := slices.Concat(all...); len(slices.Compact(slices.Sorted(slices.Values(one)))) != 2000 {
		t.Error("an id twice")
	}
}

func TestReproducibleTakesAnyEpoch(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(-1, 0), time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		restore := signal.Reproducible(at)
		if id := signal.NewID("x_"); !regexp.MustCompile(`^x_[0-7][0-9A-HJKMNP-TV-Z]{24}1$`).MatchString(id) {
			t.Errorf("%v: id %s", at, id)
		}
		restore()
	}
}

func TestUniqueIDNeverComesAgain(t *testing.T) {
	var ids []string
	for range 2 {
		restore := signal.Reproducible(epoch)
		ids = append(ids, signal.UniqueID("apr_"), signal.UniqueID("apr_"))
		restore()
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != 4 {
		t.Errorf("got %v", ids)
	}
}
