package signal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// maxErrorMessage bounds, in bytes, the message of the KernelError made from a
// tool's error text; the whole text stays in the signal's body.
const maxErrorMessage = 1024

// A toolResult is an MCP tool result taken apart, values as they are spelled. A
// member that is absent or null is nil.
type toolResult struct {
	blocks     []block
	content    json.RawMessage // where content is no array
	structured json.RawMessage
	isError    bool
}

// A block is one content block: its bytes and the members that matter, nil where
// one is absent.
type block struct {
	raw     json.RawMessage
	members [len(blockMembers)]json.RawMessage
}

var blockMembers = [...]string{"type", "text", "data", "mimeType", "uri", "resource", "blob"}

// The indexes into members.
const (
	blockType = iota
	blockText
	blockData
	blockMIME
	blockURI
	blockResource
	blockBlob
)

// payload is what one signal carries and where in the result it stands.
type payload struct {
	kind Kind
	ref  string // JSON Pointer
	body body
}

// FromToolResult splits an MCP tool result into Signals (seed 002,
// tool_result_to_signal): text is TEXT, text that is a JSON object or array
// and structuredContent are DATA of schema "json", images, audio, resources
// and links are FILE, any other content is DATA of schema
// "mcp.content.<type>". A FILE's file_id is "sha256:<hex>" of inline bytes, or
// the uri of a link. With isError it is one error signal (see ErrorOf) that
// wraps the error text. All share from's trace, parent and
// decision, the tag tool and the source_type "tool".
//
// The second value has one JSON Pointer into result for each signal. What is
// no tool result at all gives ErrInvalidToolResult; a bad origin
// ErrInvalidOrigin. The result is copied: the caller may reuse its bytes.
func FromToolResult(result json.RawMessage, from Lineage) ([]Signal, []string, error) {
	if err := from.Origin.Validate(); err != nil {
		return nil, nil, err
	}
	payloads, err := split(result, from.Origin, from.Tool)
	if err != nil {
		return nil, nil, err
	}
	if len(payloads) == 0 {
		return nil, nil, nil
	}
	shared := make(tags, 0, 5) // sorted by key
	if from.DecisionID != "" {
		shared = append(shared, tag{TagDecision, from.DecisionID})
	}
	shared = append(shared, tag{TagModule, from.Origin.Module}, tag{TagSourceType, "tool"}, tag{TagTier, strconv.Itoa(from.Origin.Tier)}, tag{TagTool, from.Tool})
	now := Now()
	signals := make([]Signal, len(payloads))
	refs := make([]string, len(payloads))
	for i := range payloads {
		signals[i] = stamp(payloads[i].kind, payloads[i].body, from.Origin, from.TraceID, shared, from.ParentID, now)
		refs[i] = payloads[i].ref
	}
	return signals, refs, nil
}

// Lineage is where the Signals of a tool result come from.
type Lineage struct {
	Origin     ModuleRef // who made them
	Tool       string    // the tool as agents call it
	TraceID    string
	ParentID   string // id of the call's own signal, "" when it has none
	DecisionID string // of the decision that let the call pass, "" when there is none
}

// split is the part that depends on the result alone, so that Expand finds
// the same payloads again.
func split(result []byte, origin ModuleRef, tool string) ([]payload, error) {
	r, err := parseToolResult(result)
	if err != nil {
		return nil, err
	}
	if r.isError {
		return []payload{r.failure(origin, tool)}, nil
	}
	out := make([]payload, 0, len(r.blocks)+1)
	for i := range r.blocks {
		p, err := r.blocks[i].payload()
		if err != nil {
			return nil, fmt.Errorf("%w: content %d: %w", ErrInvalidToolResult, i, err)
		}
		p.ref = "/content/" + strconv.Itoa(i)
		out = append(out, p)
	}
	for _, rest := range [...]struct {
		ref, schema string
		raw         json.RawMessage
	}{
		{"/content", "mcp.content.unknown", r.content},
		{"/structuredContent", "json", r.structured},
	} {
		if rest.raw == nil {
			continue
		}
		p, err := dataPayload(rest.raw, rest.schema)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalidToolResult, rest.ref, err)
		}
		p.ref = rest.ref
		out = append(out, p)
	}
	return out, nil
}

// parseToolResult takes a copy of result apart.
func parseToolResult(result []byte) (r toolResult, err error) {
	var seen [3]bool // content, structuredContent, isError
	whole := jsonrpc.Read(bytes.Clone(result), func(p *jsonrpc.Reader) {
		if p.Kind() != '{' {
			return
		}
		p.Each(func(name []byte) bool {
			known := slices.Index([]string{"content", "structuredContent", "isError"}, string(name))
			switch {
			case known == 0 && p.Kind() == '[':
				p.Each(func([]byte) bool {
					b, ok := readBlock(p)
					r.blocks = append(r.blocks, b)
					return ok
				})
			case known == 0:
				r.content = notNull(p.Value())
			case known == 1:
				r.structured = notNull(p.Value())
			case known == 2:
				r.isError = string(p.Value()) == "true"
			default:
				return p.Value() != nil
			}
			repeated := seen[known]
			seen[known] = true
			return !repeated
		})
	})
	if !whole {
		return r, fmt.Errorf("%w: no JSON object, or one with a known member twice", ErrInvalidToolResult)
	}
	return r, nil
}

func notNull(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// readBlock reads one content block. It reports false for one with a known member
// twice.
func readBlock(p *jsonrpc.Reader) (b block, ok bool) {
	if p.Kind() != '{' {
		b.raw = p.Value()
		return b, b.raw != nil
	}
	b.raw = p.Each(func(name []byte) bool {
		value := p.Value()
		known := slices.Index(blockMembers[:], string(name))
		if known < 0 {
			return true
		}
		repeated := b.members[known] != nil
		b.members[known] = value
		return !repeated
	})
	return b, b.raw != nil
}

// payload maps one block. A block that lacks what its type requires is kept
// whole as DATA: the tool has run, and its answer is not to be lost.
func (b *block) payload() (payload, error) {
	kind, _ := jsonrpc.Text(b.members[blockType])
	switch kind {
	case "text":
		if isText(b.members[blockText]) {
			return textPayload(b.members[blockText]), nil
		}
	case "json":
		if value, ok := b.jsonValue(); ok {
			return dataPayload(value, "json")
		}
	default:
		if p, ok := b.file(kind); ok {
			return p, nil
		}
	}
	if kind == "" {
		kind = "unknown"
	}
	return dataPayload(b.raw, "mcp.content."+kind)
}

// dataPayload overwrites raw.
func dataPayload(raw []byte, schema string) (payload, error) {
	value, err := strictValue(raw)
	if err != nil {
		return payload{}, err
	}
	return payload{kind: Data, body: dataBody(value, schema)}, nil
}

// jsonValue is the value of a block of type json, seed 002's JSONContent; MCP
// itself has no such type.
func (b *block) jsonValue() (json.RawMessage, bool) {
	if b.members[blockData] != nil {
		return b.members[blockData], true
	}
	return jsonrpc.Get(b.raw, "json")
}

func isText(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// textPayload returns DATA for text that is a JSON object or array with one
// reading, TEXT for any other.
func textPayload(lexeme json.RawMessage) payload {
	start := bytes.TrimLeft(lexeme[1:], " ")
	if strings.IndexByte(`{[\`, start[0]) >= 0 { // only then is the text decoded
		text, _ := jsonrpc.Text(lexeme)
		if c := strings.TrimLeft(text, " \t\r\n"); c != "" && (c[0] == '{' || c[0] == '[') {
			if p, err := dataPayload([]byte(text), "json"); err == nil {
				return p
			}
		}
	}
	return payload{kind: Text, body: textBody(lexeme)}
}

// failure wraps a result with isError: one error signal with all its texts.
func (r *toolResult) failure(origin ModuleRef, tool string) payload {
	var texts []string
	for i := range r.blocks {
		if text, _ := jsonrpc.Text(r.blocks[i].members[blockText]); text != "" {
			texts = append(texts, text)
		}
	}
	text := strings.Join(texts, "\n")
	e := &KernelError{
		Code: CodeToolFailed, Category: External, Severity: Transient, Message: cut(text, maxErrorMessage),
		Source: origin, Detail: map[string]any{"tool": tool},
	}
	if text == "" {
		e.Message = "the tool reported an error without text"
	}
	b := dataBody(encode(e.form(0)), SchemaError)
	if e.Message != text && text != "" {
		b.tail = strings.TrimSuffix(b.tail, "}") + `,"text":` + quote(text) + "}"
	}
	return payload{kind: Data, ref: r.failureRef(), body: b}
}

func (r *toolResult) failureRef() string {
	switch len(r.blocks) {
	case 0:
		return "/isError"
	case 1:
		return "/content/0"
	}
	return "/content"
}

// cut shortens text to at most limit bytes, at the start of a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}
