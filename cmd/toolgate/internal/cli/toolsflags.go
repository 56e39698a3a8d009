package cli

import (
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/tools"
)

// toolsFlags are the flags of toolgate tools.
type toolsFlags struct {
	tools.Options
	backends string // path of the file of backends; "" = offline
	describe bool
}

// bind adds the flags to f; dir is the default of --dir.
func (s *toolsFlags) bind(f *pflag.FlagSet, dir string) {
	f.StringVar(&s.Dir, "dir", dir, "`DIR` of the paper wallet (or TOOLGATE_TOOLS_DIR)")
	f.StringVar(&s.backends, "backends", "", "`FILE` that chooses services for search and images and a chain for payments, and allows fetch_page (default: offline)")
	f.StringVar(&s.Docs, "docs", "", "`DIR` of documents to search (default: the embedded ones)")
	f.BoolVar(&s.describe, "describe", false, "print the contracts of the tools, and the facts that policies may know of their calls, and serve nothing")
}

// toolsFlagsOf returns the flags with which a server starts the standard tools. All are
// empty for another server.
func toolsFlagsOf(s *config.Server) (started toolsFlags) {
	if s.Command != "toolgate" {
		return started
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	started.bind(f, s.Env[app.ToolsDir])
	if f.Parse(s.Args) != nil {
		return toolsFlags{}
	}
	return started
}
