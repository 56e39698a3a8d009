// Package contract has the contracts of the three standard tools and of fetch_page as
// data: complete MCP tool definitions with JSON Schema 2020-12.
package contract

import (
	"embed"
	"encoding/json"
)

//go:embed definitions/*.json
var definitions embed.FS

// names are the tools that are always offered, in the order in which they are listed.
var names = []string{"search_internet", "generate_media", "manage_wallet"}

// Tool is one tool. Definition is its MCP tool definition: name,
// title, description, inputSchema, outputSchema, annotations.
type Tool struct {
	Name       string
	Definition json.RawMessage
}

// Tools returns the three standard tools in the order in which they are listed. The
// definitions are copies.
func Tools() []Tool {
	tools := make([]Tool, len(names))
	for i, name := range names {
		tools[i], _ = Get(name)
	}
	return tools
}

// Get returns the tool with a name, and false if there is none.
func Get(name string) (Tool, bool) {
	data, err := definitions.ReadFile("definitions/" + name + ".json")
	if err != nil {
		return Tool{}, false
	}
	return Tool{Name: name, Definition: data}, true
}
