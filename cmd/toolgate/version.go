package main

import (
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return e.print("version", map[string]string{"version": version, "go": runtime.Version()})
		},
	}
}
