package registry

import (
	"encoding/json"
	"errors"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/text"
)

// ErrUnknownTool is returned by LoadToolIO for a name that serves nothing.
var ErrUnknownTool = errors.New("unknown tool")

// anyObject is the schema of what a tool does not describe.
var anyObject = json.RawMessage(`{"type":"object"}`)

// ToolIO is the I/O schema of one tool (seed 004): what may stand for input
// and output, both objects, when tool is called. It is immutable.
type ToolIO struct {
	Tool   string          `json:"tool"`   // the identifier that it was asked for by
	Input  json.RawMessage `json:"input"`  // JSON Schema of the arguments
	Output json.RawMessage `json:"output"` // JSON Schema of structuredContent; any object when the tool declares none

	input, output *schema.Schema // output is nil when the tool declares none, or none that can be used
	unusable      error          // why the tool's outputSchema cannot be used, nil otherwise
}

// SchemaRegistry loads the I/O schemas of tools, each definition once. It is
// safe for concurrent use.
type SchemaRegistry struct {
	known *lru.Cache[string, *ToolIO] // :: fingerprint ⇒ schemas
}

// maxToolIO bounds the cache; more tools than this only lose the saving.
const maxToolIO = 4096

// NewSchemaRegistry returns an empty SchemaRegistry.
func NewSchemaRegistry() *SchemaRegistry {
	known, _ := lru.New[string, *ToolIO](maxToolIO) // fails for no positive size
	return &SchemaRegistry{known: known}
}

// LoadToolIO gives the I/O schema of t under the name toolID (seed 004,
// SchemaRegistry.load_tool_io), cached by t's fingerprint. The error says what
// is wrong with the definition's inputSchema; such a tool does not serve. An
// outputSchema that cannot be used counts as none.
func (r *SchemaRegistry) LoadToolIO(toolID string, t *Tool) (*ToolIO, error) {
	cached, ok := r.known.Get(t.Fingerprint)
	if !ok {
		var err error
		if cached, err = compileToolIO(t.Definition); err != nil {
			return nil, err
		}
		r.known.Add(t.Fingerprint, cached)
	}
	out := *cached
	out.Tool = toolID
	return &out, nil
}

// compileToolIO reads inputSchema, which has to be there and be for an object, and
// outputSchema, which may be absent.
func compileToolIO(definition json.RawMessage) (*ToolIO, error) {
	io := &ToolIO{Output: anyObject}
	var ok bool
	if io.Input, ok = jsonrpc.Get(definition, "inputSchema"); !ok || len(io.Input) == 0 || io.Input[0] != '{' {
		return nil, errors.New("it has no inputSchema that is an object")
	}
	if kind, ok := jsonrpc.Get(io.Input, "type"); ok && string(kind) != `"object"` {
		return nil, fmt.Errorf("its inputSchema is for %s, and arguments are an object", text.Clip(string(kind), shownBytes, "..."))
	}
	var err error
	if io.input, err = schema.Compile(io.Input); err != nil {
		return nil, fmt.Errorf("its inputSchema is refused: %w", err)
	}
	raw, ok := jsonrpc.Get(definition, "outputSchema")
	if !ok {
		return io, nil
	}
	if io.output, err = schema.Compile(raw); err != nil {
		return &ToolIO{Input: io.Input, input: io.input, Output: anyObject, unusable: err}, nil //nolint:nilerr // the tool is served without it
	}
	io.Output = raw
	return io, nil
}

// LoadToolIO gives the I/O schema of the tool that is exposed as toolID, or
// ErrUnknownTool when none serves under that name.
func (r *Registry) LoadToolIO(toolID string) (*ToolIO, error) {
	t, ok := r.Catalogue().Lookup("", toolID)
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownTool, toolID)
	}
	return r.schemas.LoadToolIO(toolID, t)
}
