// Command toolgate is an MCP tool-host proxy with governance: it stands between
// agents and MCP servers and takes every tool call down one road.
package main

import "github.com/toolgate/toolgate/cmd/toolgate/internal/cli"

// version is set by the build with -ldflags.
var version = "0.1.0-dev"

func main() { cli.Main(version) }
