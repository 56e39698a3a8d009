package main

import (
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/tools"
)

func toolsCommand(e *env) *cobra.Command {
	var opts tools.Options
	c := &cobra.Command{
		Use: "tools", Short: "serve the standard tools as an MCP server on stdin and stdout", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir, ok := e.lookup(app.ToolsDir); ok && !c.Flags().Changed("dir") {
				opts.Dir = dir
			}
			return tools.Serve(c.Context(), opts, e.in, e.out)
		},
	}
	c.Flags().StringVar(&opts.Dir, "dir", ".toolgate/tools", "where the paper wallet is kept (or TOOLGATE_TOOLS_DIR)")
	c.Flags().StringVar(&opts.Docs, "docs", "", "folder of documents to search (default: the embedded ones)")
	return c
}
