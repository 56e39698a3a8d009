package records

import (
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/testkit/printed"
)

// TestReports holds what every report prints of a value in which every text is the name of its
// field, every number is not zero, and every list has two members.
func TestReports(t *testing.T) {
	printed.Compare(t, "testdata/reports.golden",
		printed.Row{Name: "verified", Report: printed.Sample(verifiedText)},
		printed.Row{Name: "records", Report: printed.Sample(recordsText)},
		printed.Row{Name: "calls", Report: printed.Sample(callsText)},
		printed.Row{Name: "indexed", Report: printed.Sample(indexedText)},
		printed.Row{Name: "archived", Report: printed.Sample(archivedText)},
		printed.Row{Name: "replicas", Report: printed.Sample(replicasText)},
		printed.Row{Name: "retired", Report: printed.Sample(retiredText)},
		printed.Row{Name: "store moved", Report: printed.Sample(storeMovedText)},
	)
}
