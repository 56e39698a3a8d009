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

// cursorPrefix marks our own cursors; the rest is the name of the last tool of
// the page before, so that a list that changed in between is continued where
// it was left, or refused when that tool has gone.
const cursorPrefix = "after:"

// staleCursor is what a client hears of a cursor that leads nowhere.
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

// cursorAfter is the cursor of the page that follows tool name.
func cursorAfter(name string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + name))
}

// cursorPlace is where the page of the cursor raw starts, -1 when raw is no
// cursor for tools.
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
