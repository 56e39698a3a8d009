package notary_test

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit/notary"
)

// replicas are two trails of one chain each, with a signer each, and the notes of both in
// a store.
func replicas(t *testing.T) (trails []*signedTrail, roots []string, evidence notary.Evidence) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		root := filepath.Join(t.TempDir(), "audit")
		signer, verifier := newKey(t)
		ledger, err := notary.OpenLedger(t.TempDir(), root)
		if err != nil {
			t.Fatal(err)
		}
		s := &signedTrail{root: root, signing: notary.Signing{Signer: signer, Ledger: ledger}}
		s.write(t, name, 30)
		signed, err := os.ReadFile(filepath.Join(root, name, "CHECKPOINT"))
		if err != nil {
			t.Fatal(err)
		}
		trails, roots = append(trails, s), append(roots, root)
		evidence.Keys = append(evidence.Keys, verifier)
		evidence.Notes = append(evidence.Notes, notary.Note{Source: "the store's checkpoint of " + name, Signed: signed})
	}
	return trails, roots, evidence
}

// The trails of several replicas are verified together. A store that has a checkpoint of
// each chain shows which one is missing, was cut or was written anew.
func TestTrailsOfReplicas(t *testing.T) {
	cut := func(t *testing.T, roots []string, e *notary.Evidence) {
		recompute(t, filepath.Join(roots[1], "b"), func(line []byte) bool {
			return bytes.Contains(line, []byte(`"seq":31,`)) || bytes.Contains(line, []byte(`"seq":32,`))
		})
		if err := os.Remove(filepath.Join(roots[1], "b", "CHECKPOINT")); err != nil {
			t.Fatal(err)
		}
	}
	strange := func(_ *testing.T, _ []string, e *notary.Evidence) { e.Keys = e.Keys[:1] }
	for name, tt := range map[string]struct {
		tamper func(t *testing.T, roots []string, e *notary.Evidence)
		roots  int
		want   []string
	}{
		"as they are": {func(*testing.T, []string, *notary.Evidence) {}, 2, nil},
		"one is not given": {func(*testing.T, []string, *notary.Evidence) {}, 1,
			[]string{"chain b is missing: the store's checkpoint of b names its record 32"}},
		"one is not given, nor its key": {strange, 1, []string{"chain b is missing: the store's checkpoint of b names its record 32"}},
		"one is cut":                    {cut, 2, []string{"records 31 to 32 missing at the end: the store's checkpoint of b names record 32"}},
		"one is cut, and its key is not given": {func(t *testing.T, roots []string, e *notary.Evidence) { cut(t, roots, e); strange(t, roots, e) }, 2,
			[]string{"records 31 to 32 missing at the end: the store's checkpoint of b names record 32"}},
		"a record is another, and the key is not given": {func(t *testing.T, roots []string, e *notary.Evidence) {
			strange(t, roots, e)
			edit(t, filepath.Join(roots[1], "b", "000001.jsonl"), func(lines [][]byte) [][]byte {
				lines[4] = bytes.ReplaceAll(lines[4], []byte("b3"), []byte("bx"))
				return lines
			})
			recompute(t, filepath.Join(roots[1], "b"), func([]byte) bool { return false })
		}, 2, []string{"CHECKPOINT of b: reading checkpoint: note has no verifiable signatures", "record 32 is not the one that the store's checkpoint of b names"}},
		"a note is no note": {func(_ *testing.T, _ []string, e *notary.Evidence) { e.Notes[0].Signed = []byte("x") }, 2,
			[]string{"the store's checkpoint of a: reading checkpoint: malformed note"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, roots, evidence := replicas(t)
			tt.tamper(t, roots, &evidence)
			rep, err := evidence.Verify(roots[:tt.roots]...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range rep.All() {
				got = append(got, p.What)
			}
			for _, want := range tt.want {
				if !strings.Contains(strings.Join(got, "\n"), want) {
					t.Errorf("%q is not among the problems", want)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("problems:\n%s", strings.Join(got, "\n"))
			}
		})
	}
}

// At one replica, the chains of others are elsewhere, whether or not their keys are known.
// A chain of its own that a note names is missing.
func TestTrailOfOneReplica(t *testing.T) {
	elsewhere := []notary.Elsewhere{{Instance: "b", Seq: 32, Source: "the store's checkpoint of b"}}
	for name, tt := range map[string]struct {
		change func(t *testing.T, root string, e *notary.Evidence)
		want   string
	}{
		"as it is":                     {func(*testing.T, string, *notary.Evidence) {}, ""},
		"the other's key is not known": {func(_ *testing.T, _ string, e *notary.Evidence) { e.Keys = e.Keys[:1] }, ""},
		"a chain of its own is removed": {func(t *testing.T, root string, e *notary.Evidence) {
			signed, err := os.ReadFile(filepath.Join(root, "c", "CHECKPOINT"))
			if err == nil {
				err = os.RemoveAll(filepath.Join(root, "c"))
			}
			if err != nil {
				t.Fatal(err)
			}
			e.Notes = append(e.Notes, notary.Note{Source: "the store's checkpoint of c", Signed: signed})
		}, "chain c is missing: the store's checkpoint of c names its record 3"},
	} {
		t.Run(name, func(t *testing.T) {
			trails, roots, evidence := replicas(t)
			evidence.Replica = true
			trails[0].write(t, "c", 1)
			tt.change(t, roots[0], &evidence)
			rep, err := evidence.Verify(roots[0])
			elsewhere[0].Hash = lastHash(t, evidence.Notes[1])
			if err != nil || !slices.Equal(rep.Elsewhere, elsewhere) {
				t.Errorf("elsewhere %v, %v", rep.Elsewhere, err)
			}
			var got string
			for _, p := range rep.All() {
				got += p.What
			}
			if got != tt.want {
				t.Errorf("problems %q, want %q", got, tt.want)
			}
		})
	}
}

// A note that no known key has signed proves nothing.
func TestNotesOfAStoreProveNothingAlone(t *testing.T) {
	_, roots, evidence := replicas(t)
	_, other := newKey(t)
	evidence.Keys = []note.Verifier{other}
	rep, err := evidence.Verify(roots...)
	if err != nil || rep.Verdicts.Independence != notary.Unproven || rep.Chains[0].Seen != 0 {
		t.Errorf("%+v, %v", rep.Verdicts, err)
	}
}

// lastHash returns the hash of the record that a note names.
func lastHash(t *testing.T, n notary.Note) string {
	t.Helper()
	c, err := n.Claimed()
	if err != nil {
		t.Fatal(err)
	}
	return c.Hash
}

// A chain of a retired replica may be missing. One that is there is verified, and a chain of
// a trail that is there does not go missing because a note says that it is retired.
func TestChainsOfRetiredReplicas(t *testing.T) {
	for name, tt := range map[string]struct {
		retired []int // notes
		named   []int // trails
		replica bool
		want    []string
		listed  bool
	}{
		"at another replica":               {[]int{1}, []int{0}, true, nil, true},
		"the others are named":             {[]int{1}, []int{0}, false, nil, true},
		"its trail is named":               {[]int{1}, []int{0, 1}, false, nil, false},
		"nobody retired it":                {nil, []int{0}, false, []string{"chain b is missing: the store's checkpoint of b names its record 32"}, false},
		"a chain of a trail that is there": {[]int{2}, []int{0, 1}, false, []string{"chain c is missing: the store's checkpoint of c names its record 3"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			trails, all, evidence := replicas(t)
			if slices.Contains(tt.retired, 2) {
				trails[0].write(t, "c", 1)
				signed, err := os.ReadFile(filepath.Join(all[0], "c", "CHECKPOINT"))
				if err = cmp.Or(err, os.RemoveAll(filepath.Join(all[0], "c"))); err != nil {
					t.Fatal(err)
				}
				evidence.Notes = append(evidence.Notes, notary.Note{Source: "the store's checkpoint of c", Signed: signed})
			}
			for _, i := range tt.retired {
				evidence.Notes[i].Retired = true
			}
			evidence.Replica = tt.replica
			var roots []string
			for _, i := range tt.named {
				roots = append(roots, all[i])
			}
			rep, err := evidence.Verify(roots...)
			var got []string
			for _, p := range rep.All() {
				got = append(got, p.What)
			}
			if err != nil || !slices.Equal(got, tt.want) || len(rep.Retired) == 1 != tt.listed || len(rep.Elsewhere) > 0 {
				t.Errorf("problems %q, retired %v, elsewhere %v, %v", got, rep.Retired, rep.Elsewhere, err)
			}
			if tt.listed && (rep.Retired[0].Instance != "b" || rep.Retired[0].Seq != 32 || rep.Retired[0].Hash != lastHash(t, evidence.Notes[1])) {
				t.Errorf("the last record is %+v", rep.Retired[0])
			}
		})
	}
}
