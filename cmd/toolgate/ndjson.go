package main

import (
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy/identity"
)

func ndjsonCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "ndjson", Short: "serve the NDJSON action protocol on stdin and stdout", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return e.attached(c.Context(), func(a *app.App, who identity.Credential) error {
				return a.ServeNDJSON(c.Context(), who, e.in, e.out)
			})
		},
	}
}
