package mcp

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// ownInstructions tell the model how toolgate answers.
const ownInstructions = "Every tool call is checked against policy. " +
	"A refusal says why and what would make the call pass; a call that waits for approval says so."

// maxInstructionsBytes bounds the instructions of all servers together.
const maxInstructionsBytes = 32 << 10

// introduce returns serverInfo and instructions for x. The route of one server
// has its serverInfo and instructions; the route of all has a paragraph for
// each server. A server of which the principal sees no tool adds nothing.
func (c *core) introduce(ctx context.Context, x *exchange) (info json.RawMessage, instructions string) {
	info, instructions = c.serverInfo, ownInstructions
	servers := c.visibleServers(ctx, x)
	if x.call.Route == "" {
		return info, instructions + paragraphs(servers)
	}
	for _, s := range servers { // one at most
		for _, m := range [][2]string{{"name", s.Name}, {"version", s.Version}, {"title", s.Title}, {"websiteUrl", s.WebsiteURL}} {
			if m[1] != "" {
				info = setIn(info, jsonrpc.Quote(m[1]), m[0])
			}
		}
		if s.Icons != nil {
			info = setIn(info, s.Icons, "icons")
		}
		if s.Instructions != "" {
			instructions += "\n\n" + s.Instructions
		}
	}
	return info, instructions
}

// visibleServers returns the introductions of those servers of x's route that
// have a tool which the principal sees. It opens no connection for the client.
func (c *core) visibleServers(ctx context.Context, x *exchange) []registry.Introduction {
	if c.opts.Introductions == nil {
		return nil
	}
	tools := c.opts.Gate.Listing(ctx, &proxy.Call{Route: x.call.Route}, x.call.Principal).Tools
	return slices.DeleteFunc(c.opts.Introductions(x.call.Route), func(s registry.Introduction) bool {
		return !slices.ContainsFunc(tools, func(t *registry.Tool) bool { return t.Server == s.Server })
	})
}

// quoteLines returns a server's text as a Markdown quotation, so that no line of it reads
// as the heading or the text of another server, or as toolgate's own.
func quoteLines(text string) string { return "> " + lineEnd.ReplaceAllString(text, "\n> ") }

// lineEnd is every line end of Unicode.
var lineEnd = regexp.MustCompile("\r\n|[\n\v\f\r\u0085\u2028\u2029]")

// paragraphs returns the instructions of servers, each quoted below a heading. When
// they exceed maxInstructionsBytes, the last line says that the rest was cut.
func paragraphs(servers []registry.Introduction) string {
	var b strings.Builder
	for _, s := range servers {
		if s.Instructions == "" {
			continue
		}
		b.WriteString("\n\n## " + s.Server)
		if s.Title != "" {
			b.WriteString(" (" + s.Title + ")")
		}
		b.WriteString("\n" + quoteLines(s.Instructions))
	}
	if b.Len() <= maxInstructionsBytes {
		return b.String()
	}
	return strings.ToValidUTF8(b.String()[:maxInstructionsBytes], "") +
		"\n[toolgate cut the instructions of the servers here; /mcp/{server} has those of one]"
}
