package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// cursorPrefix marks toolgate's own cursors. The rest is the name of the last
// tool of the previous page, so that a list that changed meanwhile continues
// where it was left, or is refused when that tool is gone.
const cursorPrefix = "after:"

// staleCursor refuses a cursor that names no place in the list.
const staleCursor = "the cursor is none of ours or the list has changed: list again from the start"

// listTools returns one page of what the principal may see. The definitions are
// the upstreams' own bytes.
func (c *core) listTools(ctx context.Context, x *exchange) outcome {
	tools := c.opts.Gate.List(ctx, &x.call, x.who)
	if raw, ok := x.call.Message.Param("cursor"); ok {
		at := cursorPlace(raw, tools, x.call.Route)
		if at < 0 {
			return refused(signal.CodeEnvelopeParams, staleCursor)
		}
		tools = tools[at:]
	}
	var next string
	if len(tools) > c.opts.PageSize {
		tools = tools[:c.opts.PageSize]
		next = cursorAfter(shownName(tools[len(tools)-1], x.call.Route))
	}
	return outcome{result: page(tools, x.call.Route, next)}
}

// page returns the result of tools/list.
func page(tools []*registry.Tool, route, next string) json.RawMessage {
	size := 32 + len(next)
	for _, t := range tools {
		size += len(t.Definition) + len(t.Exposed) + 1
	}
	out := append(make([]byte, 0, size), `{"tools":[`...)
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		if route == "" {
			out = append(out, t.Listed...)
		} else {
			out = append(out, t.Definition...)
		}
	}
	out = append(out, ']')
	if next != "" {
		out = append(append(out, `,"nextCursor":`...), jsonrpc.Quote(next)...)
	}
	return append(out, '}')
}

// shownName returns the name of t as route lists it.
func shownName(t *registry.Tool, route string) string {
	if route == "" {
		return t.Exposed
	}
	return t.Name
}

// cursorAfter returns the cursor of the page that follows the tool name.
func cursorAfter(name string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + name))
}

// cursorPlace returns the index at which the page of the cursor raw starts, -1
// when raw is not a cursor of tools.
func cursorPlace(raw json.RawMessage, tools []*registry.Tool, route string) int {
	text, ok := jsonrpc.Text(raw)
	if !ok {
		return -1
	}
	plain, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return -1
	}
	last, ok := strings.CutPrefix(string(plain), cursorPrefix)
	if !ok {
		return -1
	}
	at := slices.IndexFunc(tools, func(t *registry.Tool) bool { return shownName(t, route) == last })
	if at < 0 {
		return -1
	}
	return at + 1
}
