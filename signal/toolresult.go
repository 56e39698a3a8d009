package signal

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxErrorMessage bounds, in bytes, the message of the KernelError made from a
// tool's error text; the whole text stays in the signal's body.
const maxErrorMessage = 1024

// toolResult is an MCP tool result taken apart, values still as JSON text.
type toolResult struct {
	blocks     []block
	content    string // set when content is no array
	structured string // "" when absent or null
	isError    bool
}

// block is one content block; a member that is absent is "".
type block struct {
	raw                                               string
	kind, text, data, mime, uri, resource, inlineBlob string
}

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
	tags := make([]tag, 0, 5) // sorted by key, as a Signal keeps them
	if from.DecisionID != "" {
		tags = append(tags, tag{TagDecision, from.DecisionID})
	}
	tags = append(tags, tag{TagModule, from.Origin.Module}, tag{TagSourceType, "tool"}, tag{TagTier, strconv.Itoa(from.Origin.Tier)}, tag{TagTool, from.Tool})
	now := Now()
	signals := make([]Signal, len(payloads))
	refs := make([]string, len(payloads))
	for i := range payloads {
		signals[i] = stamp(payloads[i].kind, payloads[i].body, from.Origin, from.TraceID, tags, from.ParentID, now)
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
	for _, rest := range [...]struct{ ref, raw, schema string }{
		{"/content", r.content, "mcp.content.unknown"},
		{"/structuredContent", r.structured, "json"},
	} {
		if rest.raw == "" {
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

// parseToolResult takes a result apart. Members that are null are absent.
func parseToolResult(result []byte) (toolResult, error) {
	var r toolResult
	p := newScanner(result)
	if !utf8.Valid(result) || p.d.PeekKind() != '{' {
		return r, fmt.Errorf("%w: no object of UTF-8 text", ErrInvalidToolResult)
	}
	seen, twice := make([]string, 0, 3), ""
	p.each(func(name string) {
		switch name {
		case "content":
			if p.d.PeekKind() != '[' {
				r.content = strings.TrimPrefix(p.value(), "null")
				break
			}
			p.each(func(string) { r.blocks = append(r.blocks, readBlock(p)) })
		case "structuredContent":
			r.structured = strings.TrimPrefix(p.value(), "null")
		case "isError":
			r.isError = p.value() == "true"
		default:
			p.value()
			return
		}
		if slices.Contains(seen, name) {
			twice = name
		}
		seen = append(seen, name)
	})
	switch {
	case p.bad || strings.TrimLeft(p.s[p.d.InputOffset():], " \t\r\n") != "":
		return r, fmt.Errorf("%w: malformed JSON near byte %d", ErrInvalidToolResult, p.d.InputOffset())
	case twice != "":
		return r, fmt.Errorf("%w: member %q twice", ErrInvalidToolResult, twice)
	}
	return r, nil
}

// readBlock reads one content block. A known member that is there twice is a
// fault.
func readBlock(p *scanner) (b block) {
	if p.d.PeekKind() != '{' {
		return block{raw: p.value()}
	}
	b.raw = p.each(func(name string) {
		value := p.value()
		var field *string
		switch name {
		case "type":
			field = &b.kind
		case "text":
			field = &b.text
		case "data":
			field = &b.data
		case "blob":
			field = &b.inlineBlob
		case "mimeType":
			field = &b.mime
		case "uri":
			field = &b.uri
		case "resource":
			field = &b.resource
		default:
			return
		}
		p.bad = p.bad || *field != ""
		*field = value
	})
	return b
}

// payload maps one block. A block that lacks what its type requires is kept
// whole as DATA: the tool has run, and its answer is not to be lost.
func (b *block) payload() (payload, error) {
	kind, _ := unquote(b.kind)
	switch kind {
	case "text":
		if strings.HasPrefix(b.text, `"`) {
			return textPayload(b.text), nil
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

func dataPayload(raw, schema string) (payload, error) {
	value, err := strictValue([]byte(wellFormed(raw)))
	return payload{kind: Data, body: dataBody(value, schema)}, err
}

// jsonValue is the value of a block of type json, seed 002's JSONContent; MCP
// itself has no such type.
func (b *block) jsonValue() (string, bool) {
	if b.data != "" {
		return b.data, true
	}
	return member(b.raw, "json")
}

// textPayload gives DATA for text that is a JSON object or array with one
// reading, TEXT for any other.
func textPayload(lexeme string) payload {
	start := strings.TrimLeft(lexeme[1:], " ")
	if strings.IndexByte(`{[\`, start[0]) >= 0 { // only then is the text decoded
		text, _ := unquote(lexeme)
		if c := strings.TrimLeft(text, " \t\r\n"); c != "" && (c[0] == '{' || c[0] == '[') {
			if value, err := strictValue([]byte(text)); err == nil {
				return payload{kind: Data, body: dataBody(value, "json")}
			}
		}
	}
	return payload{kind: Text, body: body{form: formText, raw: wellFormed(lexeme)}}
}

// failure wraps a result with isError: one error signal with all its texts.
func (r *toolResult) failure(origin ModuleRef, tool string) payload {
	var texts []string
	for i := range r.blocks {
		if text, ok := unquote(r.blocks[i].text); ok && text != "" {
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
	b := dataBody(string(appendError(nil, e, 0)), SchemaError)
	if e.Message != text && text != "" {
		b = objectBody(string(b.appendExtra(nil, `,"text":`+quote(text))))
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
