package notary_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/files"
)

// removalTrail is a trail with the chains a and b, c of a killed process, d, and e of one that
// runs. anchor has the checkpoints of a and b.
type removalTrail struct {
	*signedTrail
	running    *notary.Log
	to, anchor string
	gone       []audit.Earlier // what Archive has moved whole
}

// archivedTrail returns a trail of which everything old is archived.
func archivedTrail(t *testing.T) *removalTrail {
	t.Helper()
	s := &removalTrail{signedTrail: signTrail(t, ""), to: filepath.Join(t.TempDir(), "old"), anchor: t.TempDir()}
	if err := os.CopyFS(s.anchor, os.DirFS(s.signing.Ledger.Dir)); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	killed := openSigned(t, elsewhere, audit.Options{Instance: "c", SegmentBytes: 4 << 10}, notary.Signing{Signer: s.signing.Signer, Ledger: notary.Ledger{Trail: s.signing.Ledger.Trail}})
	for range 10 {
		if err := killed.Write(audit.KindDecision, sample("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(s.root, os.DirFS(elsewhere)); err != nil {
		t.Fatal(err)
	}
	edit(t, lastSegment(t, filepath.Join(s.root, "c")), func(lines [][]byte) [][]byte { return append(lines, []byte(`{"v":1,"se`)) })
	s.write(t, "d", 3)
	s.running = openSigned(t, s.root, audit.Options{Instance: "e"}, s.signing)
	if rep := s.check(t); !rep.OK() {
		t.Fatalf("before: %v", rep.All())
	}
	s.gone = s.archive(t)
	return s
}

func (s *removalTrail) archive(t *testing.T) []audit.Earlier {
	t.Helper()
	later := time.Now().Add(time.Hour)
	done, err := notary.Archive(s.root, s.to, later, later, s.signing.Ledger.Trail, s.signing.Signer)
	if err != nil {
		t.Fatal(err)
	}
	return done.Removed
}

// record records a removal in a chain of its own.
func (s *removalTrail) record(t *testing.T, instance string, signing notary.Signing, gone ...audit.Earlier) {
	t.Helper()
	l := openSigned(t, s.root, audit.Options{Instance: instance}, signing)
	e := &audit.Event{Name: audit.EventArchived}
	for _, g := range gone {
		e.Removed = append(e.Removed, g.String())
	}
	if err := l.Write(audit.KindEvent, &audit.Record{Event: e}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// check verifies the trail with the ledger and the anchor.
func (s *removalTrail) check(t *testing.T) notary.Report {
	t.Helper()
	evidence := s.evidence
	evidence.Anchors = []string{s.anchor}
	rep, err := evidence.Verify(s.root)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func names(gone []audit.Earlier) (all string) {
	for _, e := range gone {
		all += e.Instance
	}
	return all
}

// Chains of ended processes leave the trail, and the trail verifies after each step, with the
// ledger and an anchor that still name them. That of a living process stays, and so does the
// one that records the removal.
func TestArchivedChainsAreRemoved(t *testing.T) {
	t.Parallel()
	s := archivedTrail(t)
	if names(s.gone) != "abcd" {
		t.Fatalf("%v may go", s.gone)
	}
	sound := func(step string) {
		t.Helper()
		if rep := s.check(t); !rep.OK() || rep.Verdicts.Content != notary.OK {
			t.Fatalf("%s: %+v %v %v", step, rep.Verdicts, rep.All(), rep.Unproven)
		}
	}
	sound("moved")
	if diff := cmp.Diff(s.gone, s.check(t).Archivable()); diff != "" {
		t.Error("an interrupted archiving is finished", diff)
	}
	s.record(t, "z", s.signing, s.gone...)
	sound("recorded")
	for _, file := range []string{"HEAD", "CHECKPOINT", "LOCK", "START", ""} {
		if err := os.Remove(filepath.Join(s.root, "a", file)); err != nil {
			t.Fatal(err)
		}
		sound("without " + file)
	}
	for range 2 {
		if err := notary.RemoveChains(s.root, s.signing.Ledger, s.gone); err != nil {
			t.Fatal(err)
		}
		sound("removed")
	}
	if left, _ := filepath.Glob(s.signing.Ledger.Dir + "/*.note"); len(left) != 2 {
		t.Errorf("the ledger has %q", left)
	}
	if again := s.archive(t); len(again) > 0 {
		t.Errorf("%v may go too", again)
	}
	sound("archived again")
	if err := s.running.Close(); err != nil {
		t.Fatal(err)
	}
	rep := s.check(t)
	if !rep.OK() || len(rep.Chains) != 2 || rep.Chains[0].Instance != "e" || cmp.Diff(s.gone, rep.Removed) != "" {
		t.Errorf("%+v", rep)
	}
	if again := s.archive(t); names(again) != "e" {
		t.Errorf("%v may go, want the chain that was closed", again)
	}
	old, err := notary.Evidence{Keys: s.evidence.Keys, Archive: true}.Verify(s.to)
	if err != nil || !old.OK() || old.Verdicts.Content != notary.OK || len(old.Chains) != 5 || old.Chains[2].Records != 11 || len(old.Chains[2].Torn) != 1 {
		t.Errorf("the archive: %+v, %v", old, err)
	}
}

// A missing chain is explained by nothing but a record of its removal that a checkpoint of the
// record's own chain covers, and that names its last record or a later one.
func TestMissingChainsWithoutRecord(t *testing.T) {
	t.Parallel()
	forger, _ := newKey(t)
	for name, record := range map[string]func(t *testing.T, s *removalTrail, b audit.Earlier){
		"none":          func(*testing.T, *removalTrail, audit.Earlier) {},
		"another chain": func(t *testing.T, s *removalTrail, _ audit.Earlier) { s.record(t, "z", s.signing, s.gone[0]) },
		"an earlier record": func(t *testing.T, s *removalTrail, b audit.Earlier) {
			b.Seq--
			s.record(t, "z", s.signing, b)
		},
		"another record": func(t *testing.T, s *removalTrail, b audit.Earlier) {
			b.Hash = s.gone[0].Hash
			s.record(t, "z", s.signing, b)
		},
		"unsigned": func(t *testing.T, s *removalTrail, b audit.Earlier) { s.record(t, "z", notary.Signing{}, b) },
		"signed by another key": func(t *testing.T, s *removalTrail, b audit.Earlier) {
			s.record(t, "z", notary.Signing{Signer: forger, Ledger: notary.Ledger{Trail: s.signing.Ledger.Trail}}, b)
		},
		"of another trail": func(t *testing.T, s *removalTrail, b audit.Earlier) {
			s.record(t, "z", notary.Signing{Signer: s.signing.Signer, Ledger: notary.Ledger{Trail: "another"}}, b)
		},
		"unsigned, and named by a later chain": func(t *testing.T, s *removalTrail, b audit.Earlier) {
			s.record(t, "y", notary.Signing{}, b)
			s.write(t, "z", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := archivedTrail(t)
			b := s.gone[slices.IndexFunc(s.gone, func(e audit.Earlier) bool { return e.Instance == "b" })]
			record(t, s, b)
			if err := os.RemoveAll(filepath.Join(s.root, "b")); err != nil {
				t.Fatal(err)
			}
			rep := s.check(t)
			missing := slices.ContainsFunc(rep.All(), func(p notary.Problem) bool { return strings.HasPrefix(p.What, "chain b is missing: ") })
			if rep.OK() || !missing {
				t.Errorf("%+v: %v", rep.Verdicts, rep.All())
			}
		})
	}
}

// Without a lock, only a close record shows that the process has ended. A process that has
// written it and signs its last checkpoint still holds the lock.
func TestLastSegmentNeedsProofOfTheEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lock, held, closed bool
		want               int
	}{
		"killed":                    {true, false, false, 1},
		"killed, an older version":  {false, false, false, 0},
		"closed, an older version":  {false, false, true, 1},
		"signs its last checkpoint": {true, true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			elsewhere, root := t.TempDir(), t.TempDir()
			signer, _ := newKey(t)
			l := openSigned(t, elsewhere, audit.Options{Instance: "one"}, notary.Signing{Signer: signer})
			if err := l.Write(audit.KindDecision, sample("x")); err != nil {
				t.Fatal(err)
			}
			if tt.closed {
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.CopyFS(root, os.DirFS(elsewhere)); err != nil {
				t.Fatal(err)
			}
			if !tt.lock {
				if err := os.Remove(filepath.Join(root, "one", "LOCK")); err != nil {
					t.Fatal(err)
				}
			}
			if tt.held {
				f, err := os.Open(filepath.Join(root, "one", "LOCK"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if err := files.TryLock(f); err != nil {
					t.Fatal(err)
				}
			}
			later := time.Now().Add(time.Hour)
			done, err := notary.Archive(root, t.TempDir(), later, later, "", signer)
			if err != nil || len(done.Removed) != tt.want {
				t.Errorf("%+v, %v", done, err)
			}
		})
	}
}

// The trail no longer holds a record of an archived chain, nor a record of an archived segment.
func TestHolds(t *testing.T) {
	t.Parallel()
	root := build(t, 34, 4<<10)
	one := filepath.Join(root, "one")
	if !audit.Holds(root, "one", 1) || audit.Holds(root, "two", 1) {
		t.Error("of a whole chain")
	}
	if err := os.Remove(filepath.Join(one, "000001.jsonl")); err != nil {
		t.Fatal(err)
	}
	if audit.Holds(root, "one", 1) || !audit.Holds(root, "one", 34) {
		t.Error("of a chain without its first segment")
	}
	if err := os.RemoveAll(one); err != nil {
		t.Fatal(err)
	}
	if audit.Holds(root, "one", 34) {
		t.Error("of a removed chain")
	}
}
