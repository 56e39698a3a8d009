package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// The revisions served, newest first (MCP, Lifecycle: version negotiation).
// 2024-11-05 has no Streamable HTTP, so only stdio and HTTP+SSE agree to it.
var (
	httpVersions  = []string{"2025-11-25", "2025-06-18", "2025-03-26"}
	olderVersions = append(slices.Clone(httpVersions), "2024-11-05")
)

// maxClientNameBytes bounds the name that is kept for a client.
const maxClientNameBytes = 128

// errNoRoom is reported by exchange.open when no session can be kept.
var errNoRoom = errors.New("too many sessions are at work")

// initialize opens a session. Capabilities name what is relayed and no more.
func (c *core) initialize(_ context.Context, x *exchange) outcome {
	params := x.call.Message.Params
	raw, _ := jsonrpc.Get(params, "protocolVersion")
	wanted, ok := jsonrpc.Text(raw)
	if !ok {
		return refused(signal.CodeEnvelopeInvalid, "initialize needs params.protocolVersion, a string")
	}
	version := x.versions[0]
	if slices.Contains(x.versions, wanted) {
		version = wanted
	}
	offered := c.offered(x)
	made := newSession(x.who, x.call.Route, version, nameOf(params, "clientInfo"))
	if made.capabilities, ok = clientCapabilities(params); !ok {
		return refused(signal.CodeEnvelopeInvalid, "params.capabilities is too large")
	}
	made.mayBeNotified = mayBeNotified(made.capabilities, offered)
	opened, err := x.open(made)
	if errors.Is(err, errNoRoom) {
		return refused(signal.CodeOverloaded, err.Error())
	} else if err != nil {
		return refused(signal.CodeEnvelopeInvalid, err.Error())
	}
	opened.changes.clear() // a client that has listed nothing yet has missed no change
	x.opened = opened
	return outcome{result: slices.Concat(
		[]byte(`{"protocolVersion":`), jsonrpc.Quote(version), []byte(`,"capabilities":`), offered,
		[]byte(`,"serverInfo":`), c.serverInfo(), []byte(`,"instructions":`), jsonrpc.Quote(instructions), []byte{'}'})}
}

// offered returns the capabilities of x's route: those that its servers
// declare, and tools, whose list may always change.
func (c *core) offered(x *exchange) json.RawMessage {
	const least = `{"tools":{"listChanged":true}}`
	if c.opts.Relayer == nil {
		return json.RawMessage(least)
	}
	all := c.opts.Offers(c.base, x.call.Route)
	if !isObject(all) {
		return json.RawMessage(least)
	}
	return setIn(all, json.RawMessage("true"), "tools", "listChanged")
}

// instructions tell the model how toolgate answers.
const instructions = "Every tool call is checked against policy. " +
	"A refusal says why and what would make the call pass; a call that waits for approval says so."

// maxCapabilitiesBytes bounds the capabilities that are kept for a client.
const maxCapabilitiesBytes = 64 << 10

// clientCapabilities returns a copy of params.capabilities, nil when there are
// none. It returns false when they exceed maxCapabilitiesBytes.
func clientCapabilities(params json.RawMessage) (json.RawMessage, bool) {
	can, ok := jsonrpc.Get(params, "capabilities")
	if !ok || can[0] != '{' {
		return nil, true
	}
	return bytes.Clone(can), len(can) <= maxCapabilitiesBytes
}

// mayBeNotified reports whether servers may send something to a client with
// these capabilities before a request is answered.
func mayBeNotified(can, offered json.RawMessage) bool {
	if _, logs := jsonrpc.Get(offered, "logging"); logs {
		return true
	}
	return slices.ContainsFunc([]string{"sampling", "elicitation", "roots", "tasks"}, func(name string) bool {
		_, ok := jsonrpc.Get(can, name)
		return ok
	})
}

// nameOf returns name/version of the member of holder in printable form, at
// most maxClientNameBytes long, and "" when there is none.
func nameOf(holder json.RawMessage, member string) string {
	info, ok := jsonrpc.Get(holder, member)
	if !ok {
		return ""
	}
	var parts []string
	for _, key := range []string{"name", "version"} {
		raw, _ := jsonrpc.Get(info, key)
		if text, ok := jsonrpc.Text(raw); ok && text != "" {
			parts = append(parts, text)
		}
	}
	name := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.Join(parts, "/"))
	return strings.ToValidUTF8(name[:min(len(name), maxClientNameBytes)], "")
}

// progress returns a function that sends params of notifications/progress with
// the client's own token put back. Params that make no valid notification are
// dropped.
func progress(notify func([]byte), token json.RawMessage) func(json.RawMessage) {
	return func(params json.RawMessage) {
		params, err := jsonrpc.Set(params, "progressToken", token)
		if err != nil {
			return
		}
		if message, err := wire.CreateNotification("notifications/progress", params); err == nil {
			notify(message)
		}
	}
}
