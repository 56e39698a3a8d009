package console

import "net/http"

// StylePath is where the style sheet of the pages is.
const StylePath = "/console/style.css"

// AgentsPage serves browsers at the listener of agents, to which people come by mistake. At / it says
// what is there, elsewhere that there is nothing for them: endpoint is the address for MCP clients, and
// people that of the pages, "" = there are none. The page tells nothing else of this installation.
func AgentsPage(endpoint, people string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		if r.URL.Path == StylePath {
			_ = asset("text/css", styleText)(w, r)
			return
		}
		status := http.StatusOK
		if r.URL.Path != "/" {
			status = http.StatusNotFound
		}
		_ = render(w, pageCSP, status, agentsView(endpoint, people, status)) // a reader that went away needs no answer
	})
}
