package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
)

// The most bytes that are kept of what a server says of itself.
const (
	maxInstructionsBytes = 8 << 10
	maxLineBytes         = 256
	maxIconsBytes        = 32 << 10
)

// Introduction is what a server says of itself to clients and models (MCP
// basic/lifecycle: serverInfo and instructions). It is not part of any tool's
// fingerprint.
type Introduction struct {
	Server string
	// Name, Version, Title and WebsiteURL are one line each of at most 256 bytes, "" for none.
	Name, Version, Title, WebsiteURL string
	Icons                            json.RawMessage // an array of at most 32 KiB, nil for none
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
	line := func(member string) string {
		value, _ := jsonrpc.TextAt(info, member)
		if cfg.HiddenText == "escape" {
			value = text.EscapeHidden(value)
		}
		return text.Clip(strings.Join(strings.Fields(value), " "), maxLineBytes, "")
	}
	if cfg.HiddenText == "escape" {
		instructions = text.EscapeHidden(instructions)
	}
	out := Introduction{Server: cfg.Name, Name: line("name"), Version: line("version"), Title: line("title"), WebsiteURL: line("websiteUrl")}
	if icons, ok := jsonrpc.Get(info, "icons"); ok && icons[0] == '[' && len(icons) <= maxIconsBytes {
		out.Icons = icons
	}
	out.Instructions = strings.TrimSpace(instructions)
	if n := len(out.Instructions); n > maxInstructionsBytes {
		out.Instructions = text.Clip(out.Instructions, maxInstructionsBytes, "") +
			fmt.Sprintf("\n[toolgate cut these instructions: %d of %d bytes shown]", maxInstructionsBytes, n)
	}
	return out
}

// unseenInIntroduction returns the kinds of hidden characters in how a server
// introduces itself, nil for none.
func (e *entry) unseenInIntroduction() []string {
	said := e.listed.Introduction
	texts := [][]byte{jsonrpc.Quote(said.Instructions)}
	for _, member := range []string{"name", "version", "title", "websiteUrl"} {
		if text, ok := jsonrpc.Get(said.Info, member); ok {
			texts = append(texts, text)
		}
	}
	return text.HiddenKinds(jsonrpc.Array(texts))
}
