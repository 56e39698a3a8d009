package notary_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// build writes a closed chain named one with the given number of records in
// all, in segments of about size bytes.
func build(t *testing.T, records int, size int64) string {
	t.Helper()
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "one", Durability: audit.OS, SegmentBytes: size})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range (records - 2) / 8 {
				if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return root
}

func copyTree(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func edit(t *testing.T, path string, change func(lines [][]byte) [][]byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Join(change(bytes.SplitAfter(data, []byte("\n"))), nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTamperings(t *testing.T) {
	parts.Long(t, "changes every part of a trail")
	clean := build(t, 10_002, 2<<20)
	if chain := intact(t, clean); chain.Records != 10_002 || !chain.Closed || chain.Segments < 4 {
		t.Fatalf("chain = %+v", chain)
	}
	type lines = [][]byte
	inSecond := func(change func(l lines) lines) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { edit(t, dir+"/000002.jsonl", change) }
	}
	tests := map[string]struct {
		tamper func(t *testing.T, dir string)
		want   []string // patterns of the problems, in order
	}{
		"edit": {inSecond(func(l lines) lines {
			l[99] = bytes.Replace(l[99], []byte("50.10"), []byte("50.11"), 1)
			return l
		}), []string{`^one/000002.jsonl:100 .* record \d+ was changed`}},
		"edit with its own hash mended": {inSecond(func(l lines) lines {
			changed := bytes.Replace(l[99], []byte("50.10"), []byte("50.11"), 1)
			l[99] = bytes.Replace(changed, []byte(parse(t, changed).Hash), []byte(chainHash(changed)), 1)
			return l
		}), []string{`^one/000002.jsonl:101 .* does not chain`}},
		"reorder": {inSecond(func(l lines) lines {
			l[99], l[100] = l[100], l[99]
			return l
		}), []string{`^one/000002.jsonl:100 .* record \d+ missing`, `^one/000002.jsonl:101 .* is out of order`}},
		"insert": {inSecond(func(l lines) lines {
			return slices.Insert(l, 99, l[50])
		}), []string{`^one/000002.jsonl:100 .* is out of order`}},
		"delete": {inSecond(func(l lines) lines {
			return slices.Delete(l, 99, 102)
		}), []string{`^one/000002.jsonl:100 .* records \d+ to \d+ missing`}},
		"delete the first of a segment": {inSecond(func(l lines) lines {
			return l[1:]
		}), []string{`^one/000002.jsonl:1 .* record \d+ missing`}},
		"cut the tail": {func(t *testing.T, dir string) {
			last := lastSegment(t, dir)
			edit(t, last, func(l lines) lines { return l[:len(l)-4] })
		}, []string{`^one/00000\d.jsonl:\d+ .* records 1\d+ to 10002 missing at the end: HEAD names`}},
		"remove a segment": {func(t *testing.T, dir string) {
			os.Remove(dir + "/000002.jsonl")
		}, []string{`^one/000003.jsonl .* segment 2 is missing`, `^one/000003.jsonl:1 .* records \d+ to \d+ missing`}},
		"remove the last segment": {func(t *testing.T, dir string) {
			os.Remove(lastSegment(t, dir))
		}, []string{`missing at the end: HEAD names`}},
		"an old file in place of the new": {func(t *testing.T, dir string) {
			data, _ := os.ReadFile(dir + "/000001.jsonl")
			os.WriteFile(dir+"/000002.jsonl", data, 0o600)
		}, nil},
		"join two lines": {inSecond(func(l lines) lines {
			l[99][len(l[99])-1] = ' '
			return l
		}), []string{`^one/000002.jsonl:100 .* not a record`}},
		"remove HEAD": {func(t *testing.T, dir string) {
			os.Remove(dir + "/HEAD")
		}, []string{`^one/HEAD .* missing`}},
		"append after the end": {func(t *testing.T, dir string) {
			edit(t, lastSegment(t, dir), func(l lines) lines { return append(l, []byte("x")) })
		}, []string{`bytes follow the close record`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := copyTree(t, clean)
			test.tamper(t, filepath.Join(root, "one"))
			rep := verify(t, root)
			var got []string
			for _, p := range rep.Chains[0].Problems {
				got = append(got, p.String())
			}
			if test.want == nil && len(got) > 0 {
				return // where is told by the first line
			}
			if len(got) != len(test.want) || rep.OK() {
				t.Fatalf("problems:\n%s\nwant %d", strings.Join(got[:min(len(got), 10)], "\n"), len(test.want))
			}
			for i, want := range test.want {
				if !regexp.MustCompile(want).MatchString(got[i]) {
					t.Errorf("problem %q, want %q", got[i], want)
				}
			}
		})
	}
}

func lastSegment(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatal("no segments", err)
	}
	return paths[len(paths)-1]
}

// TestEveryByteCounts changes each byte of a record and wants one problem, on
// that line or at its end.
func TestEveryByteCounts(t *testing.T) {
	t.Parallel()
	root := build(t, 26, 1<<20)
	path := filepath.Join(root, "one", "000001.jsonl")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.SplitAfter(data, []byte("\n"))
	start := len(bytes.Join(all[:9], nil))
	for i := 0; i < len(all[9]); i += unlessShort(1, 9) {
		changed := bytes.Clone(data)
		changed[start+i] ^= 1
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		problems := verify(t, root).Chains[0].Problems
		if len(problems) == 0 || problems[0].Line != 10 || problems[0].File != "one/000001.jsonl" {
			t.Fatalf("byte %d (%q): %v", i, data[start+i], problems)
		}
		if len(problems) > 1 {
			t.Errorf("byte %d (%q): more than one problem: %v", i, data[start+i], problems)
		}
	}
}

// TestEveryCutOfTheLastRecord cuts an unfinished chain behind its checkpoint.
func TestEveryCutOfTheLastRecord(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Instance: "one", Checkpoint: time.Hour})
	for i := range 5 {
		if err := l.Write(audit.KindDecision, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	crashed := copyTree(t, root)
	path := filepath.Join(crashed, "one", "000001.jsonl")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.TrimRight(data, "\x00")
	if chain := intact(t, crashed); chain.Records != 6 || chain.Closed {
		t.Fatalf("chain = %+v", chain)
	}
	last := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for cut := last; cut < len(data); cut += unlessShort(1, 9) {
		if err := os.WriteFile(path, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		chain := intact(t, crashed)
		if chain.Records != 5 || len(chain.Unfinished) != 4 {
			t.Fatalf("cut at %d: %+v", cut, chain)
		}
		if torn := cut > last; torn != (len(chain.Torn) == 1) || torn && (chain.Torn[0].Offset != int64(last) || chain.Torn[0].Line != 6) {
			t.Fatalf("cut at %d: torn = %v", cut, chain.Torn)
		}
	}
}

func TestVerifyWhileWriting(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: audit.OS, SegmentBytes: 100_000, CheckpointEvery: 10})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range unlessShort(5000, 500) {
			if err := l.Write(audit.KindOutcome, sample("x")); err != nil {
				t.Error(err)
			}
		}
	}()
	for running := true; running; {
		intact(t, root)
		select {
		case <-done:
			running = false
		default:
		}
	}
}

func TestVerifyNeedsADirectory(t *testing.T) {
	if _, err := (notary.Evidence{}).Verify(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing directory verifies")
	}
}

// FuzzVerify holds the verifier to one answer per file: it ends, it does not
// panic, and what is not what was written is never OK.
func FuzzVerify(f *testing.F) {
	f.Add([]byte("{}\n"), 3)
	f.Add([]byte(`{"v":1,"seq":1,"kind":"open","hash":"`), 0)
	f.Add([]byte("\n\n"), 700)
	f.Fuzz(func(t *testing.T, junk []byte, at int) {
		root := t.TempDir()
		l := open(t, root, audit.Options{Instance: "one", Durability: audit.OS})
		if err := l.Write(audit.KindOutcome, sample("x")); err != nil {
			t.Fatal(err)
		}
		l.Close()
		path := filepath.Join(root, "one", "000001.jsonl")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at = min(max(at, 0), len(data))
		changed := slices.Concat(data[:at], junk, data[min(len(data), at+len(junk)):])
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if ok := verify(t, root).OK(); ok != bytes.Equal(changed, data) {
			t.Fatalf("ok = %v for a file that is changed: %v", ok, !bytes.Equal(changed, data))
		}
	})
}

// unlessShort returns whole, or with -short short.
func unlessShort[T any](whole, short T) T {
	if testing.Short() {
		return short
	}
	return whole
}
