package policies

import (
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/testkit/printed"
)

// TestReports holds what every report prints of a value in which every text is the name of its
// field, every number is not zero, and every list has two members.
func TestReports(t *testing.T) {
	printed.Compare(t, "testdata/reports.golden",
		printed.Row{Name: "policy check", Report: printed.Sample(policyCheckText), Forms: []report.Form{"github"}},
		printed.Row{Name: "policy written", Report: printed.Sample(policyWrittenText)},
		printed.Row{Name: "tests", Report: printed.Sample(testsText), Forms: []report.Form{"github", "junit"}},
		printed.Row{Name: "answer", Report: printed.Sample(answerText)},
		printed.Row{Name: "shadow", Report: printed.Sample(shadowText)},
		printed.Row{Name: "verified decisions", Report: printed.Sample(verifiedDecisionsText)},
		printed.Row{Name: "replay", Report: printed.Sample(replayText), Forms: []report.Form{"markdown"}},
		printed.Row{Name: "tried", Report: printed.Sample(triedText), Forms: []report.Form{"markdown"}},
	)
}
