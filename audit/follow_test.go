package audit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/chain"
)

// follow gives the records that Follow yields from after on until there are n.
func follow(t *testing.T, root string, after audit.Cursor, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []string
	for r, err := range audit.Follow(ctx, root, after, time.Millisecond) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, label(r))
		if len(got) == n {
			return got
		}
	}
	t.Fatalf("%d records came, want %d: %v", len(got), n, got)
	return nil
}

func label(r *audit.Record) string {
	return strings.TrimSpace(fmt.Sprint(r.Instance, " ", r.Seq, " ", r.Kind, " ", r.CallID))
}

// old makes a chain one that nobody has written to for long.
func old(t *testing.T, root, instance string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, instance, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	past := time.Now().Add(-time.Hour)
	for _, f := range files {
		if err := os.Chtimes(f, past, past); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFollowGoesOnFromItsPlace(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a", SegmentBytes: 1500, Checkpoint: time.Millisecond})
	want := []string{"a 1 open"}
	for i := range 9 {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("a %d outcome %d", i+2, i))
	}
	l.Close()
	want = append(want, "a 11 close")
	if files, _ := filepath.Glob(filepath.Join(root, "a", "*.jsonl")); len(files) < 3 {
		t.Fatalf("the chain has %d segments, want some", len(files))
	}
	for place := range want {
		if diff := cmp.Diff(want[place:], follow(t, root, audit.Cursor{"a": uint64(place)}, len(want)-place)); diff != "" {
			t.Errorf("from %d (-want +got):\n%s", place, diff)
		}
	}
	ends, err := audit.Ends(root)
	if diff := cmp.Diff(audit.Cursor{"a": 11}, ends); err != nil || diff != "" {
		t.Errorf("ends: %v %s", err, diff)
	}
	open(t, root, audit.Options{Instance: "b", Checkpoint: time.Millisecond})
	if got := follow(t, root, ends, 1); got[0] != "b 1 open" {
		t.Errorf("from the ends on came %v", got)
	}
}

// What HEAD does not vouch for may still be taken back by its writer.
func TestFollowWaitsForHead(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a", Checkpoint: time.Hour, CheckpointEvery: 3})
	for i := range 4 {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"a 1 open", "a 2 outcome 0", "a 3 outcome 1", "a 4 outcome 2"}
	if diff := cmp.Diff(want, follow(t, root, nil, len(want))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // of the bubble
		defer cancel()
		for r, err := range audit.Follow(ctx, root, audit.Cursor{"a": 4}, time.Millisecond) {
			t.Errorf("a fifth record came: %+v, %v", r, err)
		}
	})
	old(t, root, "a") // as if its process had been killed
	if got := follow(t, root, audit.Cursor{"a": 4}, 1); got[0] != "a 5 outcome 3" {
		t.Errorf("of a dead chain came %v", got)
	}
}

func TestFollowLive(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a", SegmentBytes: 2000, Checkpoint: time.Millisecond})
	const records = 200
	done := make(chan []string)
	go func() { done <- follow(t, root, nil, records+2) }()
	for i := range records {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
			t.Error(err)
		}
	}
	l.Close()
	for i, got := range <-done {
		if want := fmt.Sprintf("a %d ", i+1); !strings.HasPrefix(got, want) {
			t.Fatalf("record %d is %q, want %q", i, got, want)
		}
	}
}

// A segment that begins again before the end of the last one was begun after a
// failed write: what stands behind that point in the last one never counted.
func TestReadersPassOverWhatWasLeftBehind(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a"})
	for i := range 4 {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	data, err := os.ReadFile(filepath.Join(root, "a", "000001.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	anew := strings.ReplaceAll(strings.Join(lines[3:], ""), `"call_id":"`, `"call_id":"new `)
	if err := os.WriteFile(filepath.Join(root, "a", "000002.jsonl"), []byte(anew), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"a 1 open", "a 2 outcome 0", "a 3 outcome 1", "a 4 outcome new 2", "a 5 outcome new 3", "a 6 close"}
	if diff := cmp.Diff(want, follow(t, root, nil, len(want))); diff != "" {
		t.Errorf("Follow (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, readAll(t, root, time.Time{})); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
}

func TestFollowGoesOnAfterABrokenLine(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a"})
	for i := range 2 {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	path := filepath.Join(root, "a", "000001.jsonl")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	lines[1] = `{"v":1,"seq":2,` + "\n"
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []string
	for r, err := range audit.Follow(ctx, root, nil, time.Millisecond) {
		if errors.Is(err, audit.ErrNoRecord) {
			got = append(got, "broken")
			continue
		}
		got = append(got, label(r))
		if r.Kind == audit.KindClose {
			break
		}
	}
	want := []string{"a 1 open", "broken", "a 3 outcome 1", "a 4 close"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func readAll(t *testing.T, root string, since time.Time) []string {
	t.Helper()
	var got []string
	for r, err := range audit.Read(t.Context(), root, since) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, label(r))
	}
	return got
}

// Read against a plain sort of everything, for trails of random processes.
func TestReadMergesByTime(t *testing.T) {
	for seed := range unlessShort(uint64(20), 3) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		root := t.TempDir()
		var ticks atomic.Int64
		clock := func() time.Time { return time.Date(2026, 1, 1, 0, 0, int(ticks.Add(1)), 0, time.UTC) }
		type line struct {
			at   time.Time
			text string
		}
		var want []line
		logs := map[string]*audit.Log{}
		seqs := map[string]int{}
		for i := range 60 {
			name := string(rune('a' + rnd.IntN(5)))
			if logs[name] == nil {
				logs[name] = open(t, root, audit.Options{Instance: name, Now: clock, SegmentBytes: 1500, Checkpoint: time.Hour, CheckpointEvery: 1 << 40})
				seqs[name] = 1
			}
			r := sample(fmt.Sprint(i))
			r.Time = clock()
			if err := logs[name].Write(audit.KindOutcome, r); err != nil {
				t.Fatal(err)
			}
			seqs[name]++
			want = append(want, line{r.Time, fmt.Sprintf("%s %d outcome %d", name, seqs[name], i)})
		}
		for range 5 {
			from := rnd.IntN(len(want))
			since := want[from].at
			var texts []string
			for _, l := range want {
				if !l.at.Before(since) {
					texts = append(texts, l.text)
				}
			}
			var got []string
			for _, l := range readAll(t, root, since) {
				if !strings.HasSuffix(l, "open") {
					got = append(got, l)
				}
			}
			if diff := cmp.Diff(texts, got); diff != "" {
				t.Fatalf("seed %d from %v (-want +got):\n%s", seed, since, diff)
			}
		}
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	open(t, root, audit.Options{Instance: "a"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs int
	for r, err := range audit.Read(ctx, root, time.Time{}) {
		if r != nil || err == nil {
			t.Fatalf("got %v, %v", r, err)
		}
		errs++
	}
	if errs != 1 {
		t.Errorf("%d errors, want one", errs)
	}
	if got := readAll(t, filepath.Join(root, "none"), time.Time{}); got != nil {
		t.Errorf("no log yields %v", got)
	}
}

// A Follower yields lines one look at a time, and knows whether there are more.
func TestFollower(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "a", Checkpoint: time.Millisecond})
	f := audit.NewFollower(root, nil)
	next := func() (kinds []string) {
		for line, err := range f.Next(t.Context()) {
			if err != nil || f.Chain() != "a" {
				t.Fatal(f.Chain(), err)
			}
			r, err := audit.Parse(line)
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, label(r))
		}
		return kinds
	}
	await := func(want ...string) {
		t.Helper()
		var got []string
		for deadline := time.Now().Add(20 * time.Second); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			got = append(got, next()...)
		}
		if diff := cmp.Diff(want, got); diff != "" || f.Unread() {
			t.Errorf("unread %v (-want +got):\n%s", f.Unread(), diff)
		}
	}
	await("a 1 open")
	if err := l.Write(audit.KindOutcome, sample("1")); err != nil {
		t.Fatal(err)
	}
	if !f.Unread() {
		t.Error("a record was not read, and nobody says so")
	}
	await("a 2 outcome 1")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	await("a 3 close")
	begins, err := audit.Begins(root)
	if diff := cmp.Diff(audit.Cursor{"a": 1}, begins); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for number, there := range map[uint64]bool{0: false, 1: true, 3: true, 4: false} {
		line, err := audit.LineAt(root, "a", number)
		if there && (err != nil || chain.LineNumber(line) != number) || !there && !errors.Is(err, audit.ErrGone) {
			t.Errorf("record %d: %q, %v", number, line, err)
		}
	}
	for _, chain := range []string{"b", "../a", ""} {
		if _, err := audit.LineAt(root, chain, 1); !errors.Is(err, audit.ErrGone) {
			t.Errorf("chain %q: %v", chain, err)
		}
	}
}
