package connect

import (
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/testkit/printed"
)

// TestReports holds what every report prints of a value in which every text is the name of its
// field, every number is not zero, and every list has two members.
func TestReports(t *testing.T) {
	printed.Compare(t, "testdata/reports.golden",
		printed.Row{Name: "client plan", Report: printed.Sample(clientPlanText)},
		printed.Row{Name: "undone", Report: printed.Sample(undoneText)},
		printed.Row{Name: "clients", Report: printed.Sample(clientsText)},
		printed.Row{Name: "service", Report: printed.Sample(serviceText)},
	)
}
