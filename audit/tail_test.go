package audit_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
)

func tailed(t *testing.T, root string, n int) []string {
	t.Helper()
	var got []string
	for line, err := range audit.Tail(t.Context(), root, audit.TailOptions{Records: n}) {
		if err != nil {
			t.Fatal(err)
		}
		r := parse(t, line)
		got = append(got, r.Instance+" "+string(r.Kind)+" "+r.CallID)
	}
	return got
}

func TestTailMergesChainsByTime(t *testing.T) {
	root := t.TempDir()
	if got := tailed(t, filepath.Join(root, "none"), 5); got != nil {
		t.Errorf("no log yields %v", got)
	}
	var seconds atomic.Int64 // the writers read the clock, too
	clock := func() time.Time { return time.Date(2026, 1, 1, 0, 0, int(seconds.Load()), 0, time.UTC) }
	a := open(t, root, audit.Options{Instance: "a", Now: clock, SegmentBytes: 1000})
	b := open(t, root, audit.Options{Instance: "b", Now: clock, SegmentBytes: 1000})
	for i := range 4 {
		seconds.Add(1)
		r := sample(fmt.Sprint(i))
		if err := []*audit.Log{a, b}[i%2].Write(audit.KindDecision, r); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"a open ", "b open ", "a decision 0", "b decision 1", "a decision 2", "b decision 3"}
	for n := range 8 {
		if diff := cmp.Diff(want[max(0, 6-n):], append([]string{}, tailed(t, root, n)...)); diff != "" {
			t.Errorf("last %d (-want +got):\n%s", n, diff)
		}
	}
}

func TestTailFollows(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a", SegmentBytes: 3000})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := make(chan string)
	go func() {
		defer close(next)
		for line, err := range audit.Tail(ctx, root, audit.TailOptions{Records: 1, Follow: true, Poll: time.Millisecond}) {
			if err != nil {
				t.Error(err)
				return
			}
			r, err := audit.Parse(line)
			if err != nil {
				t.Error(err)
				return
			}
			next <- string(r.Kind) + " " + r.CallID
		}
	}()
	want := func(line string) {
		t.Helper()
		if got := <-next; got != line {
			t.Fatalf("got %q, want %q", got, line)
		}
	}
	want("open ")
	for i := range 10 {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		want(fmt.Sprint("outcome ", i))
	}
	open(t, root, audit.Options{Instance: "b"})
	want("open ")
	torn(t, filepath.Join(root, "b", "000001.jsonl"))
	l.Close()
	want("close ")
	cancel() // before the cleanup lets b write on behind the torn line
	for range next {
	}
}

// torn leaves half a line, which no reader may yield.
func torn(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"v":1`); err != nil {
		t.Fatal(err)
	}
}
