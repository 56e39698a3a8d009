package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/clip"
	"github.com/toolgate/toolgate/internal/hidden"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry/config"
)

// The most bytes that are kept of what a server says of itself.
const (
	maxInstructionsBytes = 8 << 10
	maxTitleBytes        = 256
	maxIconsBytes        = 32 << 10
)

// Introduction is what a server says of itself to clients and models (MCP
// basic/lifecycle: serverInfo and instructions). It is not part of any tool's
// fingerprint.
type Introduction struct {
	Server string
	Title  string          // one line of at most 256 bytes, "" for none
	Icons  json.RawMessage // an array of at most 32 KiB, nil for none
	// Instructions are at most 8 KiB of text and, when more was cut off, a line
	// that says so; "" for none.
	Instructions string
}

// Introductions returns how the servers of route introduce themselves now, in
// configured order. A server that is not connected has the Introduction of its last
// connection, and one that was never seen an empty one.
func (r *Registry) Introductions(route string) []Introduction {
	var out []Introduction
	for _, e := range r.Catalogue().running[route] {
		said := e.listed.Introduction
		out = append(out, introductionOf(e.cfg, said.Info, said.Instructions))
	}
	return out
}

// introductionOf returns the Introduction of a server that names itself info.
func introductionOf(cfg config.Server, info json.RawMessage, instructions string) Introduction {
	title, _ := jsonrpc.TextAt(info, "title")
	if cfg.HiddenText == "escape" {
		title, instructions = hidden.Escape(title), hidden.Escape(instructions)
	}
	out := Introduction{Server: cfg.Name, Title: clip.Bytes(strings.Join(strings.Fields(title), " "), maxTitleBytes, "")}
	if icons, ok := jsonrpc.Get(info, "icons"); ok && icons[0] == '[' && len(icons) <= maxIconsBytes {
		out.Icons = icons
	}
	out.Instructions = strings.TrimSpace(instructions)
	if n := len(out.Instructions); n > maxInstructionsBytes {
		out.Instructions = clip.Bytes(out.Instructions, maxInstructionsBytes, "") +
			fmt.Sprintf("\n[toolgate cut these instructions: %d of %d bytes shown]", maxInstructionsBytes, n)
	}
	return out
}

// unseenInIntroduction returns the kinds of hidden characters in how a server
// introduces itself, nil for none.
func (e *entry) unseenInIntroduction() []string {
	said := e.listed.Introduction
	title, _ := jsonrpc.Get(said.Info, "title")
	if title == nil {
		title = json.RawMessage(`""`)
	}
	return hidden.Kinds(fmt.Appendf(nil, "[%s,%s]", title, jsonrpc.Quote(said.Instructions)))
}
