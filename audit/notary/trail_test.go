package notary_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
)

// testdata/trail was written by version 0.9.0: two chains in seven segments, one
// that its process closed and one that ends in half a line. Every later version
// has to verify and read it.
func TestAnOlderTrail(t *testing.T) {
	const root = "testdata/trail"
	rep, err := notary.Evidence{}.Verify(root)
	if err != nil {
		t.Fatal(err)
	}
	at := func(ms int) time.Time { return time.Date(2026, 3, 1, 12, 0, 0, ms*1e6, time.UTC) }
	want := notary.Report{Verdicts: notary.Verdicts{Chain: notary.OK, Content: notary.Unproven, Independence: notary.Unproven}, Chains: []notary.Chain{
		{
			Instance: "01KJXA", Segments: 4, Records: 17, First: at(137), Last: at(2466), Seq: 17, Closed: true,
			Head: "d353627cbca68037dae3054ce4471b999fdbed423da8b4f0f5d6fc52dec77ad6",
		},
		{
			Instance: "01KJXB", Segments: 3, Records: 15, First: at(2740), Last: at(4932), Seq: 15,
			Head: "cfbdd5d515be6b732a717626bc762cb318eb16d38cdd53572802e30f0279c37b",
			Torn: []notary.Place{{File: "01KJXB/000003.jsonl", Line: 5, Offset: 3749}},
		},
	}}
	if diff := cmp.Diff(want, rep); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	read := 0
	for r, err := range audit.Read(t.Context(), root, time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if read++; r.Kind == audit.KindOutcome && (r.Policy.Rule != "role" || r.CallID == "" || len(r.Principal.Roles) != 2) {
			t.Errorf("record %d of %s: %+v", r.Seq, r.Instance, r)
		}
	}
	if read != 17+15 {
		t.Errorf("%d records were read, want 32", read)
	}
}
