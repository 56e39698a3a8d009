package page

import (
	_ "embed"
	"net/http"
)

// Addresses that the frame of pages leads to.
const (
	OverviewPath  = "/console/"
	ApprovalsPath = "/console/approvals"
	StopPath      = "/console/stop"
	// ConnectionsPath is at an address that agents pass on to people.
	ConnectionsPath = "/connections"
	// StylePath is where the style sheet of the pages is.
	StylePath = "/console/style.css"
)

//go:embed style.css
var styleText []byte

// Style serves the style sheet.
var Style = Asset("text/css", styleText)

// ForAgents serves browsers at the listener of agents, to which people come by mistake. At / it says
// what is there, elsewhere that there is nothing for them: endpoint is the address for MCP clients, and
// people that of the pages, "" = there are none. The page tells nothing else of this installation.
func ForAgents(endpoint, people string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Secure(w.Header())
		if r.URL.Path == StylePath {
			_ = Style(w, r)
			return
		}
		status := http.StatusOK
		if r.URL.Path != "/" {
			status = http.StatusNotFound
		}
		_ = Render(w, PlainCSP, status, agentsView(endpoint, people, status)) // a reader that went away needs no answer
	})
}
