package wire_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// spec is the table of the design, section 5, typed again: code, HTTP, kernel
// code, category, then gateway, canonical, kernel and mcp.
const spec = `
PARSE_ERROR          | 400 | T0_ENVELOPE_PARSE             | input      | -32700 | -32700 | -32700 | -32700
INVALID_ENVELOPE     | 400 | T0_ENVELOPE_INVALID           | input      | -32600 | -32600 | -32602 | -32600
METHOD_NOT_FOUND     | 404 | T0_ENVELOPE_METHOD            | input      | -32601 | -32601 | -32601 | -32601
TOOL_NOT_FOUND       | 404 | T4_TOOL_NOT_FOUND             | input      | -32601 | -32001 | -32602 | -32602
NOT_FOUND            | 404 | T4_SUBJECT_NOT_FOUND          | input      | -32602 | -32602 | -32602 | -32602
INVALID_TOOL_INPUT   | 422 | T0_VALIDATION_SCHEMA_MISMATCH | input      | -32600 | -32602 | -32602 | result
POLICY_DENIED        | 403 | T5_IDENTITY_VIOLATION         | policy     | -32600 | -32600 | -32600 | result
APPROVAL_DENIED      | 403 | T5_APPROVAL_DENIED            | policy     | -32600 | -32600 | -32600 | result
APPROVAL_EXPIRED     | 403 | T5_APPROVAL_EXPIRED           | policy     | -32600 | -32600 | -32600 | result
APPROVAL_PENDING     | 202 | T5_APPROVAL_PENDING           | policy     | -32600 | -32600 | -32600 | result
CONNECTION_REQUIRED  | 403 | T5_CONNECTION_REQUIRED        | policy     | -32600 | -32600 | -32600 | -32042
STOPPED              | 403 | T5_STOPPED                    | policy     | -32600 | -32600 | -32600 | result
RATE_LIMITED         | 429 | T4_RATE_LIMIT_EXCEEDED        | resource   | -32001 | -32001 | -32603 | -32001
OVERLOADED           | 429 | T4_GATE_OVERLOADED            | resource   | -32001 | -32001 | -32603 | -32001
TOOL_QUARANTINED     | 403 | T4_TOOL_QUARANTINED           | policy     | -32600 | -32600 | -32600 | -32602
OUTPUT_INVALID       | 502 | T4_TOOL_OUTPUT_INVALID        | external   | -32000 | -32603 | -32003 | -32603
AUDIT_UNAVAILABLE    | 500 | T0_AUDIT_UNAVAILABLE          | processing | -32603 | -32603 | -32603 | -32603
STORE_UNAVAILABLE    | 503 | T0_STORE_UNAVAILABLE          | processing | -32603 | -32603 | -32603 | -32603
TOO_LARGE            | 413 | T0_ENVELOPE_TOO_LARGE         | input      | -32600 | -32600 | -32602 | -32600
CANCELLED            | 499 | T4_CALL_CANCELLED             | processing | none   | none   | none   | none
UNAUTHENTICATED      | 401 | T0_IDENTITY_UNAUTHENTICATED   | policy     | -32600 | -32600 | -32600 | -32600
SESSION_LOST         | 404 | T0_SESSION_LOST               | input      | -32600 | -32600 | -32600 | -32600
HEADER_MISMATCH      | 400 | T0_HEADER_MISMATCH            | input      | -32020 | -32020 | -32020 | -32020
INVALID_PARAMS       | 400 | T0_ENVELOPE_PARAMS            | input      | -32602 | -32602 | -32602 | -32602
UNSUPPORTED_VERSION  | 400 | T0_ENVELOPE_VERSION           | input      | -32022 | -32022 | -32022 | -32022
TOOL_FAILED          | 502 | T4_TOOL_EXECUTION_FAILED      | external   | -32000 | -32603 | -32003 | upstream
TOOL_TIMEOUT         | 502 | T4_TOOL_TIMEOUT               | external   | -32000 | -32603 | -32003 | -32603
UPSTREAM_UNAVAILABLE | 502 | T4_UPSTREAM_UNAVAILABLE       | external   | -32000 | -32603 | -32003 | -32603
INTERNAL_ERROR       | 500 | T0_INTERNAL                   | processing | -32603 | -32603 | -32603 | -32603
`

func TestTableIsTheDesigns(t *testing.T) {
	var got strings.Builder
	for _, r := range wire.Rows() {
		got.WriteString("\n" + strings.Join(cells(r), "|"))
	}
	want := regexp.MustCompile(` *\| *`).ReplaceAllString(spec, "|")
	if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got.String())); diff != "" {
		t.Error(diff)
	}
}

func cells(r wire.Row) []string {
	out := []string{string(r.Code), strconv.Itoa(r.HTTP), r.Kernel, string(r.Category)}
	for _, d := range dialects {
		switch {
		case r.Form == wire.AsNothing:
			out = append(out, "none")
		case d == wire.MCP && r.Form == wire.AsResult:
			out = append(out, "result")
		case d == wire.MCP && r.Form == wire.AsUpstream:
			out = append(out, "upstream")
		default:
			out = append(out, strconv.Itoa(codeOf(r, d)))
		}
	}
	return out
}

// codeOf returns the JSON-RPC code with which a request about no tool is refused.
func codeOf(r wire.Row, d wire.Dialect) int {
	reply, err := wire.Answer(d, wire.Failure{Kernel: &signal.KernelError{Code: r.Kernel}, Plain: true, Elicitations: json.RawMessage(`[{}]`)})
	code, _ := jsonrpc.Get(reply.Error, "code")
	n, _ := strconv.Atoi(string(code))
	if err != nil {
		return 0
	}
	return n
}

var dialects = []wire.Dialect{wire.Gateway, wire.Canonical, wire.Kernel, wire.MCP}

// The four messages that the seeds fix, to the letter.
func TestFixedMessages(t *testing.T) {
	fixed := map[wire.Code]string{
		wire.InvalidEnvelope: "Invalid MCP envelope", wire.InvalidToolInput: "Invalid tool input",
		wire.ToolNotFound: "Unknown tool", wire.InternalError: "Internal error",
	}
	for _, r := range wire.Rows() {
		want, exact := fixed[r.Code]
		if exact && r.Message != want || exact != r.Exact {
			t.Errorf("%s: message %q, exact %v", r.Code, r.Message, r.Exact)
		}
	}
}

func TestNoRowSpeaksOfTimeouts(t *testing.T) {
	// TypeScript clients use -32001 for their own timeout: the words must not
	// feed that mistake.
	for _, code := range []wire.Code{wire.RateLimited, wire.Overloaded} {
		r, err := wire.Lookup(code)
		if err != nil || regexp.MustCompile(`(?i)time`).MatchString(r.Message) {
			t.Errorf("%s: %q, %v", code, r.Message, err)
		}
	}
}

// Every code constant of package signal has a row, and every row's kernel code
// is such a constant, with the traits that signal gives it.
func TestRowsAreSignalsCodes(t *testing.T) {
	constants := codeConstants(t)
	for code := range constants {
		if _, err := wire.ByKernel(code); err != nil {
			t.Error(err)
		}
	}
	source := signal.ModuleRef{Tier: 0, Module: "m", Function: "f"}
	seen := map[string]bool{}
	for _, r := range wire.Rows() {
		if !constants[r.Kernel] || seen[r.Kernel] || seen[string(r.Code)] {
			t.Errorf("%s: kernel code %s is no constant, or there twice", r.Code, r.Kernel)
		}
		seen[r.Kernel], seen[string(r.Code)] = true, true
		e, err := signal.ErrorFor(r.Kernel, "m", source, nil, nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if e.Category != r.Category || e.Severity != r.Severity {
			t.Errorf("%s: signal says %s %s, the row %s %s", r.Code, e.Category, e.Severity, r.Category, r.Severity)
		}
	}
}

// TestRowsAreTheCodes: every canonical code constant has exactly one row, in
// the order of the table.
func TestRowsAreTheCodes(t *testing.T) {
	constants := constantsOf(t, "table.go", func(spec *ast.ValueSpec) bool {
		name, ok := spec.Type.(*ast.Ident)
		return ok && name.Name == "Code"
	})
	var rows []string
	for _, r := range wire.Rows() {
		rows = append(rows, string(r.Code))
	}
	if diff := cmp.Diff(constants, rows); diff != "" {
		t.Errorf("(-constants +rows):\n%s", diff)
	}
}

// TestCanonicalErrorMapping: the four baseline codes of seed 004 as dialect
// canonical answers them, to the letter: HTTP, JSON-RPC code, message.
func TestCanonicalErrorMapping(t *testing.T) {
	for _, tt := range []struct {
		code    wire.Code
		http    int
		rpc     int
		message string
	}{
		{"INVALID_ENVELOPE", 400, -32600, "Invalid MCP envelope"},
		{"INVALID_TOOL_INPUT", 422, -32602, "Invalid tool input"},
		{"TOOL_NOT_FOUND", 404, -32001, "Unknown tool"},
		{"INTERNAL_ERROR", 500, -32603, "Internal error"},
	} {
		r, err := wire.Lookup(tt.code)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := wire.Answer(wire.Canonical, failure(t, r))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Code    int
			Message string
			Data    struct{ Code wire.Code }
		}
		if err := json.Unmarshal(reply.Error, &got); err != nil {
			t.Fatal(err)
		}
		if reply.HTTP != tt.http || got.Code != tt.rpc || got.Message != tt.message || got.Data.Code != tt.code {
			t.Errorf("%s: HTTP %d, %+v; want %+v", tt.code, reply.HTTP, got, tt)
		}
	}
}

func codeConstants(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, code := range constantsOf(t, "../../signal/codes.go", func(spec *ast.ValueSpec) bool {
		return strings.HasPrefix(spec.Names[0].Name, "Code")
	}) {
		out[code] = true
	}
	return out
}

// constantsOf gives the text constants of a file that wanted accepts.
func constantsOf(t *testing.T, path string, wanted func(*ast.ValueSpec) bool) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) == 0 || !wanted(spec) {
			return true
		}
		code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, code)
		return true
	})
	if len(out) == 0 {
		t.Fatal("no code constants found")
	}
	return out
}

func TestLookupsHaveNoFallback(t *testing.T) {
	for _, r := range wire.Rows() {
		a, errA := wire.Lookup(r.Code)
		b, errB := wire.ByKernel(r.Kernel)
		if errA != nil || errB != nil || a != r || b != r {
			t.Errorf("%s: %v %v", r.Code, errA, errB)
		}
	}
	for _, code := range []string{"", "internal_error", "INTERNAL", "T0_INTERNAL"} {
		if r, err := wire.Lookup(wire.Code(code)); !errors.Is(err, wire.ErrUnknownCode) || r != (wire.Row{}) {
			t.Errorf("Lookup(%q): %v, %v", code, r, err)
		}
	}
	for _, code := range []string{"", "t0_internal", "INTERNAL_ERROR", "T4_TOOL_FAILED"} {
		if r, err := wire.ByKernel(code); !errors.Is(err, wire.ErrUnknownCode) || r != (wire.Row{}) {
			t.Errorf("ByKernel(%q): %v, %v", code, r, err)
		}
	}
	rows := wire.Rows()
	rows[0].HTTP = 1
	if wire.Rows()[0].HTTP == 1 {
		t.Error("Rows gives the table itself")
	}
}
