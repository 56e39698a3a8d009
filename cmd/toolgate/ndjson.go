package main

import (
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy/identity"
)

func ndjsonCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "ndjson", Short: "serve the NDJSON action protocol on stdin and stdout", Args: cobra.NoArgs,
		Long: `ndjson is for programs that speak one JSON object per line instead of MCP: a request
{"id"?, "type": "list_actions" | "invoke", "payload"?} on stdin, an answer
{"id"?, "ok", "data" | "error", "issues"?} on stdout. An action is a tool, and takes
the same road as any other call. A line has at most 524,288 bytes. The principal is
local with the role of --role, or the one that --token names; held calls are decided
at the admin listener of a running serve with the same state directory.`,
		Example: `  toolgate ndjson --role researcher                  # one request per line on stdin
  echo '{"id":"2","type":"invoke","payload":{"action":"search_internet","input":{"query":"mcp"}}}' | toolgate ndjson --role researcher`,
		RunE: func(c *cobra.Command, _ []string) error {
			return e.attached(c.Context(), func(a *app.App, who identity.Credential) error {
				return a.ServeNDJSON(c.Context(), who, e.in, e.out)
			})
		},
	}
}
