package audit_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/audit/notary"
)

// noZeros checks that no segment under root contains zeros.
func noZeros(t *testing.T, root string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "*", "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		if data, err := os.ReadFile(path); err != nil || bytes.IndexByte(data, 0) >= 0 {
			t.Errorf("%s contains zeros (%v)", path, err)
		}
	}
}

// crash returns a copy of a chain "one" with five decisions as a killed process leaves it, the
// path of its segment, and the segment's bytes without zeros.
func crash(t *testing.T, checkpoint uint64) (root, path string, data []byte) {
	t.Helper()
	living := t.TempDir()
	l := open(t, living, audit.Options{Instance: "one", Checkpoint: time.Hour, CheckpointEvery: checkpoint})
	for i := range 5 {
		if err := l.Write(audit.KindDecision, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	root = copyTree(t, living)
	path = filepath.Join(root, "one", "000001.jsonl")
	data, err := os.ReadFile(path)
	if err != nil || data[len(data)-1] != 0 {
		t.Fatal("the segment does not end in zeros", err)
	}
	return root, path, bytes.TrimRight(data, "\x00")
}

func copyTree(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func put(t *testing.T, path string, parts ...[]byte) {
	t.Helper()
	if err := os.WriteFile(path, bytes.Join(parts, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Every reader ends at the zeros of the open segment, and goes on where they were.
func TestReadersEndAtZeros(t *testing.T) {
	for _, settled := range []bool{false, true} {
		root := t.TempDir()
		l := open(t, root, audit.Options{Instance: "one", Checkpoint: time.Millisecond})
		watch, follower, seq := audit.NewWatch(root, time.Time{}, audit.KindDecision), audit.NewFollower(root, nil), uint64(1)
		for round := range 3 {
			for range 5 {
				if err := l.Write(audit.KindDecision, sample("x")); err != nil {
					t.Fatal(err)
				}
				seq++
			}
			if settled {
				old(t, root, "one")
			}
			counts := map[string]int{}
			for name, lines := range map[string]func(func([]byte, error) bool){
				"tail": audit.Tail(t.Context(), root, audit.TailOptions{Records: 1000}), "lines": audit.Lines(t.Context(), root, time.Time{}),
			} {
				for _, err := range lines {
					if counts[name]++; err != nil {
						t.Error(name, err)
					}
				}
			}
			if counts["tail"] != int(seq) || counts["lines"] != int(seq) {
				t.Errorf("round %d: %v lines, want %d", round, counts, seq)
			}
			watched := 0
			for _, err := range watch.Next(t.Context()) {
				if watched++; err != nil {
					t.Error("watch", err)
				}
			}
			if watched != 5 {
				t.Errorf("round %d: %d records were watched, want 5", round, watched)
			}
			for last := uint64(0); last < seq; {
				for line, err := range follower.Next(t.Context()) {
					if last = chain.LineNumber(line); err != nil {
						t.Fatal("follow", err)
					}
				}
			}
			if follower.Unread() {
				t.Error("zeros count as unread records")
			}
			if ends, err := audit.Ends(root); err != nil || ends["one"] != seq {
				t.Errorf("ends are %v (%v), want %d", ends, err, seq)
			}
			if line, err := audit.LineAt(root, "one", seq); err != nil || chain.LineNumber(line) != seq {
				t.Errorf("line %d: %.40s (%v)", seq, line, err)
			}
			if _, err := audit.LineAt(root, "one", seq+1); !errors.Is(err, audit.ErrGone) {
				t.Errorf("line %d: %v", seq+1, err)
			}
			if chain := intact(t, root); chain.Records != int(seq) || len(chain.Torn) != 0 {
				t.Errorf("%+v", chain)
			}
			copied := t.TempDir()
			if err := audit.Copy(copied, root, io.Discard); err != nil {
				t.Fatal(err)
			}
			noZeros(t, copied)
			if chain := intact(t, copied); chain.Records != int(seq) {
				t.Errorf("the copy: %+v", chain)
			}
		}
	}
}

// A segment that ended has no zeros, whether it was full or its log was closed.
func TestEndedSegmentsHaveNoZeros(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{SegmentBytes: 100_000})
	for range 300 {
		if err := l.Write(audit.KindDecision, sample("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	noZeros(t, root)
	if chain := intact(t, root); chain.Records != 302 || chain.Segments < 3 {
		t.Errorf("%+v", chain)
	}
}

// A crash at any byte of the last record leaves what was acknowledged; the next start cuts the
// zeros off, and the chain that it begins names the last record.
func TestACrashAtEveryByteBeforeZeros(t *testing.T) {
	root, path, data := crash(t, 0)
	last, zeros := bytes.LastIndexByte(data[:len(data)-1], '\n')+1, make([]byte, 70_000)
	for cut := last; cut <= len(data); cut += unlessShort(13, 101) {
		put(t, path, data[:cut], zeros)
		torn := 0
		if cut > last && cut < len(data) {
			torn = 1
		}
		records := 5 + cut/len(data)
		chain := intact(t, root)
		if chain.Records != records || len(chain.Torn) != torn || torn == 1 && (chain.Torn[0].Offset != int64(last) || chain.Torn[0].Line != 6) {
			t.Fatalf("cut at %d: %+v", cut, chain)
		}
		started := copyTree(t, root)
		l := open(t, started, audit.Options{Instance: "two"})
		l.Close()
		noZeros(t, started)
		rep := verify(t, started)
		if !rep.OK() || rep.Chains[0].Records != records || len(rep.Chains[0].Torn) != torn {
			t.Fatalf("cut at %d, after the start: %+v", cut, rep)
		}
	}
	put(t, path, zeros) // before the first record
	open(t, root, audit.Options{Instance: "two"}).Close()
	noZeros(t, root)
}

// A power failure keeps any of the pages that were not flushed. Zeros among them are no damage
// where HEAD names no record behind them.
func TestAPowerFailureLeavesHoles(t *testing.T) {
	root, path, data := crash(t, 4) // HEAD names record 5 of 6
	start := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for hole := start; hole < len(data)-1; hole += unlessShort(17, 101) {
		holed := bytes.Clone(data)
		clear(holed[hole:min(hole+100, len(data)-1)])
		put(t, path, holed, make([]byte, 5000))
		if chain := intact(t, root); chain.Records != 5 || len(chain.Torn) != 1 {
			t.Fatalf("hole at %d: %+v", hole, chain)
		}
		started := copyTree(t, root)
		open(t, started, audit.Options{Instance: "two"}).Close()
		noZeros(t, started)
		if rep := verify(t, started); !rep.OK() || rep.Chains[0].Records != 5 {
			t.Fatalf("hole at %d, after the start: %+v", hole, rep)
		}
	}
}

// Zeros in the place of records that HEAD vouches for are damage: Verify reports it, no start
// removes what follows them, and readers report the line and go on.
func TestZerosInTheMiddleAreDamage(t *testing.T) {
	root, path, data := crash(t, 1)
	third := 0
	for range 2 {
		third += bytes.IndexByte(data[third:], '\n') + 1
	}
	for offset, length := range map[int]int{third: 50, third + 100: 1500, third + 200: 1} {
		holed := bytes.Clone(data)
		clear(holed[offset : offset+length])
		put(t, path, holed, make([]byte, 5000))
		old(t, root, "one")
		if rep := verify(t, root); rep.OK() || rep.Chains[0].Problems[0].Line != 3 || rep.Chains[0].Seq != 6 {
			t.Errorf("%d zeros at %d: %+v", length, offset, rep)
		}
		damaged, last := 0, uint64(0)
		for r, err := range audit.Read(t.Context(), root, time.Time{}) {
			switch {
			case errors.Is(err, audit.ErrNoRecord):
				damaged++
			case err != nil:
				t.Fatal(err)
			default:
				last = r.Seq
			}
		}
		if damaged != 1 || last != 6 {
			t.Errorf("%d zeros at %d: %d lines were reported, the last record was %d", length, offset, damaged, last)
		}
		started := copyTree(t, root)
		open(t, started, audit.Options{Instance: "two"}).Close()
		if left, err := os.ReadFile(filepath.Join(started, "one", "000001.jsonl")); err != nil || !bytes.Equal(left, holed) {
			t.Errorf("%d zeros at %d: the start left %d bytes of %d (%v)", length, offset, len(left), len(holed), err)
		}
	}
}

// The start leaves the segment of a living process alone.
func TestAStartLeavesTheSegmentsOfOthers(t *testing.T) {
	root := t.TempDir()
	one := open(t, root, audit.Options{Instance: "one"})
	open(t, root, audit.Options{Instance: "two"})
	if data, err := os.ReadFile(filepath.Join(root, "one", "000001.jsonl")); err != nil || data[len(data)-1] != 0 {
		t.Errorf("the zeros of a living process are gone (%v)", err)
	}
	if err := one.Write(audit.KindDecision, sample("x")); err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, root); !rep.OK() || rep.Chains[0].Records != 2 {
		t.Errorf("%+v", rep)
	}
}

// An archive has none of the zeros that a killed process left.
func TestArchiveOfAKilledProcess(t *testing.T) {
	root, _, data := crash(t, 1)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := notary.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	to, later := t.TempDir(), time.Now().Add(time.Hour)
	done, err := notary.Archive(root, to, later, later, "t", signer)
	if err != nil || done.Segments != 1 || done.Bytes != int64(len(data)) {
		t.Fatalf("%+v, %v", done, err)
	}
	noZeros(t, to)
	rep, err := notary.Evidence{Archive: true}.Verify(to)
	if err != nil || !rep.OK() || rep.Chains[0].Records != 6 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// Those who read beside a writer see every record once, in order, and no part of one.
func TestReadersBesideAWriter(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "one", Checkpoint: time.Millisecond, SegmentBytes: 300_000})
	const records = 1000
	go func() {
		large := sample("x")
		large.Error = string(bytes.Repeat([]byte("e"), 9000)) // more than two pages
		for i := range records {
			r := large
			if i%2 == 0 {
				r = sample("x")
			}
			if err := l.Write(audit.KindDecision, r); err != nil {
				t.Error(err)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	watch, seen := audit.NewWatch(root, time.Time{}, audit.KindDecision), uint64(1)
	for seen < 1+records && ctx.Err() == nil {
		for r, err := range watch.Next(ctx) {
			if err != nil || r.Seq != seen+1 {
				t.Fatalf("record %v (%v) after %d", r, err, seen)
			}
			seen = r.Seq
		}
	}
	seen = 1
	for r, err := range audit.Follow(ctx, root, audit.Cursor{"one": 1}, time.Millisecond) {
		if err != nil || r.Seq != seen+1 {
			t.Fatalf("record %v (%v) after %d", r, err, seen)
		}
		if seen = r.Seq; seen == 1+records {
			break
		}
	}
	if ctx.Err() != nil {
		t.Errorf("%d records came", seen)
	}
}
