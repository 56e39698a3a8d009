package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		Example: "  toolgate version -o json",
		RunE: func(*cobra.Command, []string) error {
			if e.output == "json" {
				return e.json(map[string]string{"version": version, "go": runtime.Version()})
			}
			_, err := fmt.Fprintf(e.out, "toolgate %s (%s)\n", version, runtime.Version())
			return err
		},
	}
}
