package cli

import (
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/testkit/printed"
)

// TestReports holds what every report prints of a value in which every text is the name of its
// field, every number is not zero, and every list has two members.
func TestReports(t *testing.T) {
	printed.Compare(t, "testdata/reports.golden",
		printed.Row{Name: "tickets", Report: printed.Sample(ticketsText)},
		printed.Row{Name: "ticket", Report: printed.Sample(ticketText)},
		printed.Row{Name: "decided", Report: printed.Sample(decidedText)},
		printed.Row{Name: "change", Report: printed.Sample(changeText)},
		printed.Row{Name: "connections", Report: printed.Sample(connectionsText)},
		printed.Row{Name: "connection", Report: printed.Sample(connectionText)},
		printed.Row{Name: "connection revoked", Report: printed.Sample(connectionRevokedText)},
		printed.Row{Name: "connection page", Report: printed.Sample(connectionPageText)},
		printed.Row{Name: "sessions", Report: printed.Sample(sessionsText)},
		printed.Row{Name: "session ended", Report: printed.Sample(sessionEndedText)},
		printed.Row{Name: "limits", Report: printed.Sample(limitsText)},
		printed.Row{Name: "stops", Report: printed.Sample(stopsText)},
		printed.Row{Name: "stopped", Report: printed.Sample(stoppedText)},
		printed.Row{Name: "resumed", Report: printed.Sample(resumedText)},
		printed.Row{Name: "token", Report: printed.Sample(tokenText)},
		printed.Row{Name: "tokens", Report: printed.Sample(tokensText)},
		printed.Row{Name: "inspection", Report: printed.Sample(inspectionText)},
		printed.Row{Name: "rotated", Report: printed.Sample(rotatedText)},
		printed.Row{Name: "tools", Report: printed.Sample(toolsText)},
		printed.Row{Name: "offered tools", Report: printed.Sample(offeredToolsText)},
		printed.Row{Name: "tool", Report: printed.Sample(toolText)},
		printed.Row{Name: "contracts", Report: printed.Sample(contractsText)},
		printed.Row{Name: "servers", Report: printed.Sample(serversText)},
		printed.Row{Name: "server", Report: printed.Sample(serverText)},
		printed.Row{Name: "pins", Report: printed.Sample(pinsText)},
		printed.Row{Name: "lock", Report: printed.Sample(lockText)},
		printed.Row{Name: "support bundle", Report: printed.Sample(supportBundleText)},
		printed.Row{Name: "check", Report: printed.Sample(checkText)},
		printed.Row{Name: "doctor", Report: printed.Sample(doctorText)},
		printed.Row{Name: "setup", Report: printed.Sample(setupText)},
		printed.Row{Name: "drafted policy", Report: printed.Sample(draftedPolicyText)},
	)
}
