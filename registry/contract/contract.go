// Package contract has the contracts of the standard tools as data: complete MCP tool
// definitions with JSON Schema 2020-12.
//
// A tool that works offline has one definition for all versions of toolgate, so that no
// upgrade makes people accept it again. Backends that an operator chooses add arguments
// and members of results: with them the tool has another definition. Its facts are the
// same: they know the arguments of both.
package contract

import (
	"embed"
	"encoding/json"
	"slices"
)

var (
	//go:embed definitions/*.json
	offline embed.FS
	//go:embed definitions/backends/*.json
	backends embed.FS
	//go:embed definitions/facts/*.json
	facts embed.FS
)

// names are the tools that are always offered, in the order in which they are listed.
var names = []string{"search_internet", "generate_media", "manage_wallet"}

// Tool is one tool. Definition is its MCP tool definition: name,
// title, description, inputSchema, outputSchema, annotations. Facts declare what policies
// may know of a call's arguments, in the form of package fact; nil for none.
type Tool struct {
	Name       string
	Definition json.RawMessage
	Facts      json.RawMessage
}

// Tools returns the three standard tools in the order in which they are listed, with
// the definitions that the tools in chosen have with backends. A tool that exists only
// with a backend follows them. The definitions are copies.
func Tools(chosen ...string) []Tool {
	var tools []Tool
	for _, name := range names {
		tool, ok := WithBackend(name)
		if !ok || !slices.Contains(chosen, name) {
			tool, _ = Get(name)
		}
		tools = append(tools, tool)
	}
	for _, name := range chosen {
		if tool, ok := WithBackend(name); ok && !slices.Contains(names, name) {
			tools = append(tools, tool)
		}
	}
	return tools
}

// Get returns the tool with a name as it is offline, and false if there is none.
func Get(name string) (Tool, bool) { return read(offline, "definitions/", name) }

// WithBackend returns the tool with a name as it is with a backend that an operator
// chooses, and false if there is none.
func WithBackend(name string) (Tool, bool) { return read(backends, "definitions/backends/", name) }

func read(from embed.FS, folder, name string) (Tool, bool) {
	data, err := from.ReadFile(folder + name + ".json")
	if err != nil {
		return Tool{}, false
	}
	declared, err := facts.ReadFile("definitions/facts/" + name + ".json")
	if err != nil {
		declared = nil // the tool has none
	}
	return Tool{Name: name, Definition: data, Facts: declared}, true
}
