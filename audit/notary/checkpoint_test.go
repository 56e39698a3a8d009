package notary_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
)

// A signedTrail has two chains that are closed, and the evidence about them.
type signedTrail struct {
	root     string
	evidence notary.Evidence
	signing  notary.Signing
}

func newKey(t *testing.T) (note.Signer, note.Verifier) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := notary.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := notary.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	return signer, verifier
}

// signTrail writes chains a and b, with a copy of the trail as it was between them in
// old when that is not "".
func signTrail(t *testing.T, old string) *signedTrail {
	t.Helper()
	s := &signedTrail{root: filepath.Join(t.TempDir(), "audit")}
	signer, verifier := newKey(t)
	ledger, err := notary.OpenLedger(t.TempDir(), s.root)
	if err != nil {
		t.Fatal(err)
	}
	s.signing = notary.Signing{Signer: signer, Ledger: ledger}
	s.evidence = notary.Evidence{Keys: []note.Verifier{verifier}, Ledgers: []notary.Ledger{ledger}}
	s.write(t, "a", 30)
	if old != "" {
		if err := os.CopyFS(old, os.DirFS(s.root)); err != nil {
			t.Fatal(err)
		}
	}
	s.write(t, "b", 30)
	return s
}

func (s *signedTrail) write(t *testing.T, instance string, records int) {
	t.Helper()
	l := openSigned(t, s.root, audit.Options{Instance: instance, SegmentBytes: 8 << 10}, s.signing)
	for i := range records {
		if err := l.Write(audit.KindOutcome, sample(fmt.Sprint(instance, i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *signedTrail) verify(t *testing.T) notary.Report {
	t.Helper()
	rep, err := s.evidence.Verify(s.root)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// recompute gives every record of a chain, from the nth on, the hashes that it would
// have had, and HEAD with them: what somebody does who removes records.
func recompute(t *testing.T, dir string, drop func(line []byte) bool) {
	t.Helper()
	prev, seq := strings.Repeat("0", 64), 0
	paths, _ := filepath.Glob(dir + "/*.jsonl")
	for _, path := range paths {
		edit(t, path, func(lines [][]byte) (kept [][]byte) {
			for _, line := range lines {
				if len(line) == 0 || drop(line) {
					continue
				}
				seq++
				r := parse(t, line)
				line = bytes.Replace(line, fmt.Appendf(nil, `"seq":%d,`, r.Seq), fmt.Appendf(nil, `"seq":%d,`, seq), 1)
				line = bytes.Replace(line, []byte(r.Prev), []byte(prev), 1)
				prev = chainHash(line)
				kept = append(kept, bytes.Replace(line, []byte(r.Hash), []byte(prev), 1))
			}
			return kept
		})
	}
	head, _ := json.Marshal(map[string]any{"v": 1, "seq": seq, "hash": prev, "time": time.Now()})
	if err := os.WriteFile(filepath.Join(dir, "HEAD"), head, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Seven ways to tamper with a trail (J2), each by somebody who can write everything but
// the ledger. A trail that nobody tampered with has three good verdicts.
func TestSignedTrailTamperings(t *testing.T) {
	replace := func(t *testing.T, root, with string) {
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(root, os.DirFS(with)); err != nil {
			t.Fatal(err)
		}
	}
	never := func([]byte) bool { return false }
	tests := map[string]struct {
		tamper   func(t *testing.T, root, old string)
		verdicts notary.Verdicts
		problem  string
	}{
		"nothing": {func(*testing.T, string, string) {}, notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.OK}, ""},
		"delete records and recompute the chain": {func(t *testing.T, root, _ string) {
			recompute(t, root+"/b", func(line []byte) bool { return bytes.Contains(line, []byte(`"call_id":"b7"`)) })
		}, notary.Verdicts{Chain: notary.OK, Content: notary.Broken, Independence: notary.Broken}, "missing at the end: the signed checkpoint names record 32"},
		"edit and recompute the chain": {func(t *testing.T, root, _ string) {
			path := root + "/b/000001.jsonl"
			edit(t, path, func(lines [][]byte) [][]byte {
				lines[3] = bytes.Replace(lines[3], []byte("50.10"), []byte("50.11"), 1)
				return lines
			})
			recompute(t, root+"/b", never)
		}, notary.Verdicts{Chain: notary.OK, Content: notary.Broken, Independence: notary.Broken}, "record 32 is not the one that the signed checkpoint names"},
		"reorder and recompute the chain": {func(t *testing.T, root, _ string) {
			edit(t, root+"/b/000001.jsonl", func(lines [][]byte) [][]byte {
				lines[2], lines[3] = lines[3], lines[2]
				return lines
			})
			recompute(t, root+"/b", never)
		}, notary.Verdicts{Chain: notary.OK, Content: notary.Broken, Independence: notary.Broken}, "record 32 is not the one"},
		"remove an old chain": {func(t *testing.T, root, _ string) { os.RemoveAll(root + "/a") },
			notary.Verdicts{Chain: notary.Broken, Content: notary.OK, Independence: notary.Broken}, "chain a is missing: the open record of b names its record 32"},
		"remove the last chain": {func(t *testing.T, root, _ string) { os.RemoveAll(root + "/b") },
			notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Broken}, "chain b is missing: the ledger names its record 32"},
		"remove all chains": {func(t *testing.T, root, _ string) { os.RemoveAll(root) },
			notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Broken}, "chain a is missing: the ledger"},
		"cut the tail, HEAD and the checkpoint": {func(t *testing.T, root, _ string) {
			paths, _ := filepath.Glob(root + "/b/*.jsonl")
			for _, path := range paths[1:] {
				os.Remove(path)
			}
			recompute(t, root+"/b", never)
			os.Remove(root + "/b/CHECKPOINT")
		}, notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Broken}, "missing at the end: the ledger names record 32"},
		"an old copy of the trail": {func(t *testing.T, root, old string) { replace(t, root, old) },
			notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Broken}, "chain b is missing: the ledger names"},
		"a checkpoint of somebody else": {func(t *testing.T, root, _ string) {
			signer, _ := newKey(t)
			forged := &signedTrail{root: t.TempDir(), signing: notary.Signing{Signer: signer, Ledger: notary.Ledger{Trail: "x"}}}
			forged.write(t, "b", 30)
			os.RemoveAll(root + "/b")
			if err := os.CopyFS(root+"/b", os.DirFS(forged.root+"/b")); err != nil {
				t.Fatal(err)
			}
		}, notary.Verdicts{Chain: notary.OK, Content: notary.Broken, Independence: notary.Broken}, "CHECKPOINT of b: "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := filepath.Join(t.TempDir(), "old")
			s := signTrail(t, old)
			test.tamper(t, s.root, old)
			rep := s.verify(t)
			var all strings.Builder
			for _, p := range rep.All() {
				fmt.Fprintf(&all, "%s: %s\n", p.Question, p)
			}
			if rep.Verdicts != test.verdicts || !strings.Contains(all.String(), test.problem) || rep.OK() != (test.problem == "") {
				t.Errorf("%+v, want %+v and %q:\n%s", rep.Verdicts, test.verdicts, test.problem, all.String())
			}
		})
	}
}

// Without a key nothing says whether the content was signed, and without a ledger
// nothing says what others have seen.
func TestUnprovenVerdicts(t *testing.T) {
	s := signTrail(t, "")
	for _, test := range []struct {
		evidence notary.Evidence
		want     notary.Verdicts
	}{
		{notary.Evidence{}, notary.Verdicts{Chain: notary.OK, Content: notary.Unproven, Independence: notary.Unproven}},
		{notary.Evidence{Keys: s.evidence.Keys}, notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Unproven}},
		{notary.Evidence{Keys: s.evidence.Keys, Anchors: []string{s.signing.Ledger.Dir}}, notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.OK}},
		{notary.Evidence{Keys: s.evidence.Keys, Anchors: []string{t.TempDir()}}, notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Broken}},
	} {
		rep, err := test.evidence.Verify(s.root)
		if err != nil || rep.Verdicts != test.want {
			t.Errorf("%+v, %v, want %+v", rep.Verdicts, err, test.want)
		}
	}
}

// firstSigned is the signed checkpoint of the first record of a chain.
func (s *signedTrail) firstSigned(t *testing.T, chain string, at time.Time) (signed []byte) {
	t.Helper()
	edit(t, filepath.Join(s.root, chain, "000001.jsonl"), func(lines [][]byte) [][]byte {
		hash, err := hex.DecodeString(parse(t, lines[0]).Hash)
		if err == nil {
			text := fmt.Sprintf("toolgate/audit/%s/%s\n1\n%s\ntime %s\n", s.signing.Ledger.Trail, chain, base64.StdEncoding.EncodeToString(hash), at.UTC().Format(time.RFC3339Nano))
			signed, err = note.Sign(&note.Note{Text: text}, s.signing.Signer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return lines
	})
	return signed
}

// Records for which no known key vouches are no fault, and nothing proves them. A process
// that has just begun its chain has not signed yet.
func TestRecordsThatNobodySigned(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, s *signedTrail)
		want   notary.Verdict
		what   string
	}{
		"a chain without a checkpoint": {func(t *testing.T, s *signedTrail) {
			if err := open(t, s.root, audit.Options{Instance: "c"}).Close(); err != nil {
				t.Fatal(err)
			}
		}, notary.Unproven, "no checkpoint signed by a known key covers chain c"},
		"a chain that has just begun": {func(t *testing.T, s *signedTrail) { open(t, s.root, audit.Options{Instance: "c"}) }, notary.OK, ""},
		"no chain has a checkpoint": {func(t *testing.T, s *signedTrail) {
			s.root, s.evidence.Ledgers = t.TempDir(), nil
			open(t, s.root, audit.Options{Instance: "c"})
		}, notary.Unproven, "no checkpoint signed by a known key covers chain c"},
		"records after the last checkpoint": {func(t *testing.T, s *signedTrail) {
			s.evidence.Ledgers = nil
			edit(t, s.root+"/b/CHECKPOINT", func([][]byte) [][]byte { return [][]byte{s.firstSigned(t, "b", time.Now().Add(-time.Hour))} })
		}, notary.Unproven, "no checkpoint covers records 2 to 32 of chain b"},
	} {
		t.Run(name, func(t *testing.T) {
			s := signTrail(t, "")
			test.change(t, s)
			rep := s.verify(t)
			var what string
			for _, p := range rep.Unproven {
				what += p.What
			}
			if !rep.OK() || rep.Verdicts.Content != test.want || what != test.what {
				t.Errorf("content %s, %q, problems %v; want %s, %q", rep.Verdicts.Content, what, rep.All(), test.want, test.what)
			}
		})
	}
}

// A key directory with keys and without a ledger of the trail, none of whose keys signed a
// checkpoint of it, is that of another trail. What a person named as a key is not.
func TestOtherKeys(t *testing.T) {
	_, other := newKey(t)
	for name, test := range map[string]struct {
		change func(e *notary.Evidence)
		want   error
	}{
		"keys of another trail":                    {func(e *notary.Evidence) { e.Keys, e.Ledgers = []note.Verifier{other}, nil }, notary.ErrOtherKeys},
		"keys of another trail, beside the ledger": {func(e *notary.Evidence) { e.Keys = []note.Verifier{other} }, nil},
		"keys of another trail, named one by one":  {func(e *notary.Evidence) { *e = notary.Evidence{Keys: []note.Verifier{other}} }, nil},
		"keys of both":                             {func(e *notary.Evidence) { e.Keys, e.Ledgers = append(e.Keys, other), nil }, nil},
		"no keys":                                  {func(e *notary.Evidence) { e.Keys, e.Ledgers = nil, nil }, nil},
		"keys of this trail, which has no ledger":  {func(e *notary.Evidence) { e.Ledgers = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := signTrail(t, "")
			s.evidence.Directory = true
			test.change(&s.evidence)
			if _, err := s.evidence.Verify(s.root); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

// A chain of a version that signed nothing is covered by the chain that names it.
func TestCheckpointCoversOlderChains(t *testing.T) {
	signer, verifier := newKey(t)
	root := t.TempDir()
	if err := open(t, root, audit.Options{Instance: "old"}).Close(); err != nil {
		t.Fatal(err)
	}
	s := &signedTrail{root: root, signing: notary.Signing{Signer: signer, Ledger: notary.Ledger{Trail: "x"}}, evidence: notary.Evidence{Keys: []note.Verifier{verifier}}}
	s.write(t, "new", 1)
	rep := s.verify(t)
	if !rep.OK() || rep.Verdicts.Content != notary.OK || rep.Chains[1].Signed != 2 {
		t.Errorf("%+v", rep)
	}
	recompute(t, root+"/old", func(line []byte) bool { return bytes.Contains(line, []byte(`"kind":"close"`)) })
	if rep := s.verify(t); rep.OK() || rep.Verdicts.Chain != notary.Broken {
		t.Errorf("the recomputed older chain: %+v", rep)
	}
}

// A chain names the ends of the chains before it, each end once.
func TestOpenRecordNamesChains(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := open(t, root, audit.Options{Instance: name}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	rep := intactAll(t, root)
	for i, c := range rep.Chains {
		line, _, _ := bytes.Cut(read(t, filepath.Join(root, c.Instance, "000001.jsonl")), []byte("\n"))
		before := parse(t, line).Before
		if i == 0 && len(before) == 0 {
			continue
		}
		if want := rep.Chains[i-1]; len(before) != 1 || before[0] != (audit.Earlier{Instance: want.Instance, Seq: want.Seq, Hash: want.Head}) {
			t.Errorf("%s names %+v", c.Instance, before)
		}
	}
}

func intactAll(t *testing.T, root string) notary.Report {
	t.Helper()
	rep, err := notary.Evidence{}.Verify(root)
	if err != nil || !rep.OK() {
		t.Fatal(rep, err)
	}
	return rep
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A text has one reading: what parses is what was signed, byte for byte.
func FuzzOpenCheckpoint(f *testing.F) {
	public, private, _ := ed25519.GenerateKey(nil)
	signer, _ := notary.NewSigner(private)
	verifier, _ := notary.NewVerifier(public)
	f.Add("toolgate/audit/t/i\n7\n" + strings.Repeat("A", 43) + "=\ntime 2026-01-01T00:00:00Z\n")
	f.Add("toolgate/audit/t/i\n7\n" + strings.Repeat("A", 43) + "=\ntime 2026-01-01T00:00:00Z\nstart 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		signed, err := note.Sign(&note.Note{Text: text}, signer)
		if err != nil {
			return
		}
		c, err := notary.OpenCheckpoint(signed, note.VerifierList(verifier))
		if err != nil {
			return
		}
		hash, _ := hex.DecodeString(c.Hash)
		if !strings.HasPrefix(text, fmt.Sprintf("toolgate/audit/%s/%s\n%d\n", c.Trail, c.Instance, c.Seq)) || len(hash) > len(text) {
			t.Errorf("%q reads as %+v", text, c)
		}
	})
}

// Anchors receive the first checkpoint of a chain and the last one, and verify with the
// public key alone. An anchor that fails is reported and holds nobody up.
func TestAnchors(t *testing.T) {
	s := signTrail(t, "")
	dir := t.TempDir()
	var failures atomic.Int64
	s.signing.Anchors = []notary.Anchoring{
		{Anchor: notary.DirectoryAnchor(dir), Name: "directory", Every: time.Hour},
		{Anchor: notary.DirectoryAnchor(filepath.Join(dir, "not mounted")), Name: "missing"},
	}
	l := openSigned(t, s.root, audit.Options{Instance: "c", OnError: func(string, error) { failures.Add(1) }}, s.signing)
	for len(notes(t, dir)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	rep, err := notary.Evidence{Keys: s.evidence.Keys, Anchors: []string{dir}}.Verify(s.root)
	if err != nil || !rep.OK() || rep.Verdicts.Independence != notary.OK || rep.Chains[2].Seen != rep.Chains[2].Seq || failures.Load() == 0 {
		t.Errorf("%+v, %v, %d failures", rep, err, failures.Load())
	}
}

func notes(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(dir + "/*.note")
	if err != nil {
		t.Fatal(err)
	}
	return found
}
