package notary_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
)

// A trail verifies after its older part was moved, while a process writes to it, and so
// does the archive. A starting point that nobody signed hides nothing.
func TestArchive(t *testing.T) {
	s := signTrail(t, "")
	running := openSigned(t, s.root, audit.Options{Instance: "c", SegmentBytes: 4 << 10}, s.signing)
	for range 40 {
		if err := running.Write(audit.KindOutcome, sample("x")); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "old")
	now := time.Now().Add(time.Hour)
	done, err := notary.Archive(s.root, to, now, now, s.signing.Ledger.Trail, s.signing.Signer)
	if err != nil || done.Chains != 3 || done.Segments < 5 {
		t.Fatalf("%+v, %v", done, err)
	}
	if again, err := notary.Archive(s.root, to, now, now, s.signing.Ledger.Trail, s.signing.Signer); err != nil || again.Segments != 0 {
		t.Errorf("nothing is left to archive: %+v, %v", again, err)
	}
	if err := running.Write(audit.KindOutcome, sample("y")); err != nil {
		t.Fatal(err)
	}
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	good := notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.OK}
	rep := s.verify(t)
	if rep.Verdicts != good || rep.Chains[0].Archived != 32 || rep.Chains[0].Records != 0 || rep.Chains[2].Archived == 0 {
		t.Errorf("the trail: %+v", rep)
	}
	archive := notary.Evidence{Keys: s.evidence.Keys, Archive: true}
	old, err := archive.Verify(to)
	if err != nil || !old.OK() || old.Verdicts.Content != notary.OK || old.Chains[0].Records != 32 {
		t.Errorf("the archive: %+v, %v", old, err)
	}

	t.Run("forged starting point", func(t *testing.T) {
		forger, _ := newKey(t)
		if _, err := notary.Archive(s.root, t.TempDir(), now, now, s.signing.Ledger.Trail, forger); err != nil {
			t.Fatal(err)
		}
		if rep := s.verify(t); rep.OK() || rep.Verdicts.Content != notary.Broken {
			t.Errorf("%+v", rep.Verdicts)
		}
	})
	t.Run("cut archive", func(t *testing.T) {
		if err := os.Remove(lastSegment(t, to+"/a")); err != nil {
			t.Fatal(err)
		}
		if rep, err := archive.Verify(to); err != nil || rep.OK() {
			t.Errorf("%+v, %v", rep.Verdicts, err)
		}
	})
}
