package command

import (
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/tools"
)

// ToolsFlags are the flags of toolgate tools.
type ToolsFlags struct {
	tools.Options
	BackendsFile string // path of the file of backends; "" = offline
	Describe     bool
}

// Bind adds the flags to f; dir is the default of --dir.
func (s *ToolsFlags) Bind(f *pflag.FlagSet, dir string) {
	f.StringVar(&s.Dir, "dir", dir, "`DIR` of the paper wallet (or TOOLGATE_TOOLS_DIR)")
	f.StringVar(&s.BackendsFile, "backends", "", "`FILE` that chooses services for search and images and a chain for payments, and allows fetch_page (default: offline)")
	f.StringVar(&s.Docs, "docs", "", "`DIR` of documents to search (default: the embedded ones)")
	f.BoolVar(&s.Describe, "describe", false, "print the contracts of the tools, and the facts that policies may know of their calls, and serve nothing")
}

// ToolsFlagsOf returns the flags with which a server starts the standard tools. All are
// empty for another server.
func ToolsFlagsOf(s *config.Server) (started ToolsFlags) {
	if s.Command != "toolgate" {
		return started
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	started.Bind(f, s.Env[app.ToolsDir])
	if f.Parse(s.Args) != nil {
		return ToolsFlags{}
	}
	return started
}
