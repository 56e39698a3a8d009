package rest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
)

// A line of the trail, of each kind, is what the document says it is.
func TestTrailIsInTheDocument(t *testing.T) {
	doc := readDocument(t, shipped(t, "openapi-admin.json"))
	root := t.TempDir()
	log, err := audit.Open(root, audit.Options{Durability: audit.OS})
	if err != nil {
		t.Fatal(err)
	}
	made := audit.Change{Seq: 1, To: "proposed", Who: "agent", Digest: "sha256:0"}
	denied := audit.Change{Seq: 2, From: "proposed", To: "denied", Who: "ann", Reason: "no", Digest: "sha256:0"}
	err = errors.Join(log.Write(audit.KindDecision, &audit.Record{}), log.Write(audit.KindOutcome, &audit.Record{}),
		log.Write(audit.KindTicket, &audit.Record{Change: &made}), log.Write(audit.KindTicket, &audit.Record{Change: &denied}), log.Close())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line, err := range audit.Tail(t.Context(), root, audit.TailOptions{Records: 10}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		record := object{"$ref": "#/components/schemas/AuditRecord"}
		if err := doc.fits(record, string(line)); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if other := strings.Replace(string(line), `"kind":"`, `"kind":"x`, 1); doc.fits(record, other) == nil {
			t.Errorf("fits as well: %s", other)
		}
	}
	if n != 6 {
		t.Errorf("%d lines, want 6", n)
	}
}
