package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"regexp"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mirror"
)

// Headers that repeat what the body says (MCP 2026-07-28, Streamable HTTP:
// request metadata), in canonical form.
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
)

// safeInteger is the largest integer that has a header: beyond it JavaScript
// reads another number.
const safeInteger = 1<<53 - 1

// contradiction says what is wrong with a header that must repeat text, "" when
// nothing is.
func contradiction(h http.Header, name, text string, decode bool) string {
	lines := h[name]
	switch {
	case len(lines) == 0:
		return "header " + name + " is missing"
	case len(lines) > 1:
		return "header " + name + " is there more than once"
	}
	value := lines[0]
	if decode {
		var ok bool
		if value, ok = mirror.Decode(lines[0]); !ok {
			return "header " + name + " cannot be read"
		}
	}
	if value != text {
		return fmt.Sprintf("header %s says %.64q and the body %.64q", name, value, text)
	}
	return ""
}

// standardFault checks the headers that every request repeats its method in
// and, where member names one, what it is about.
func standardFault(h http.Header, m *jsonrpc.Message, member string) string {
	if fault := contradiction(h, headerMethod, m.Method, false); fault != "" || member == "" {
		return fault
	}
	raw, _ := jsonrpc.Get(m.Params, member)
	name, ok := jsonrpc.Text(raw)
	if !ok {
		return "params." + member + ", which header " + headerName + " repeats, is no string"
	}
	return contradiction(h, headerName, name, true)
}

// repeated gives the parameters of a tool that headers repeat. An annotation that
// breaks the rules of the revision binds nothing; clients do not show its tool.
func repeated(definition json.RawMessage) []mirror.Parameter {
	if !bytes.Contains(definition, []byte(mirror.Annotation)) {
		return nil
	}
	found, _ := mirror.Parameters(definition)
	return found
}

// paramFault checks the headers of all that a call's arguments bind.
func paramFault(h http.Header, bound []mirror.Parameter, args json.RawMessage) string {
	for _, p := range bound {
		if fault := repeatFault(p, h, args); fault != "" {
			return fault
		}
	}
	return ""
}

// repeatFault says how the header of p contradicts args: it must be there when
// the argument is, and say the same.
func repeatFault(p mirror.Parameter, h http.Header, args json.RawMessage) string {
	value, there := args, true
	for _, key := range p.Path {
		if value, there = jsonrpc.Get(value, key); !there {
			break
		}
	}
	lines := h[p.Header]
	switch {
	case !there || string(value) == "null":
		if len(lines) > 0 {
			return "header " + p.Header + " has no argument " + strings.Join(p.Path, ".") + " in the body"
		}
		return ""
	case len(value) > 0 && (value[0] == '{' || value[0] == '[') && len(lines) == 0:
		return "" // what the schema refuses has no header
	}
	return mismatch(h, p.Header, value)
}

// mismatch compares the header name with an argument that is there.
func mismatch(h http.Header, name string, value json.RawMessage) string {
	want, ok := jsonrpc.Text(value)
	if !ok {
		want = string(value)
	}
	fault := contradiction(h, name, want, true)
	if fault == "" || len(h[name]) != 1 || ok {
		return fault
	}
	header, readable := mirror.Decode(h[name][0])
	x, isX := wholeNumber(header)
	y, isY := wholeNumber(want)
	if readable && isX && isY && x == y {
		return "" // 42.0 is 42
	}
	return fault
}

// decimal is a number short enough to be worked out.
var decimal = regexp.MustCompile(`^-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,2})?$`)

// wholeNumber gives the integer that text spells, if JavaScript can hold it.
func wholeNumber(text string) (int64, bool) {
	if !decimal.MatchString(text) {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	n := r.Num().Int64()
	return n, -safeInteger <= n && n <= safeInteger
}
