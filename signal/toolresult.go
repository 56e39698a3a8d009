package signal

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
)

// maxErrorMessage bounds, in bytes, the message of the KernelError made from a
// tool's error text; the whole text stays in the signal's body.
const maxErrorMessage = 1024

// A toolResult is an MCP tool result taken apart. Values are slices of it; one that
// is absent or null is nil.
type toolResult struct {
	blocks     []json.RawMessage // as Unpack gives them
	content    json.RawMessage   // where content is no array
	structured json.RawMessage
	isError    bool
}

// A block is one content block and the values of blockMembers.
type block []json.RawMessage

// count returns how many blocks r has.
func (r *toolResult) count() int { return len(r.blocks) / blockSize }

// block returns the block with index i.
func (r *toolResult) block(i int) block { return r.blocks[i*blockSize:][:blockSize] }

// blockMembers are the members of a content block that matter, and of the resource
// that is embedded in one.
var blockMembers = []string{"type", "text", "data", "mimeType", "uri", "resource", "blob", "path", "json"}

// The indexes into a block.
const (
	blockRaw = iota
	blockType
	blockText
	blockData
	blockMIME
	blockURI
	blockResource
	blockBlob
	blockPath
	blockJSON
	blockSize
)

// payload is what one signal carries and where in the result it stands.
type payload struct {
	kind Kind
	body jsontext.Value
	text json.RawMessage // in place of a body, see Signal
	ref  string          // JSON Pointer
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
// ErrInvalidOrigin. The result is copied: the caller may reuse its bytes, unless from
// says that it was accepted.
func FromToolResult(result json.RawMessage, from Lineage) ([]Signal, []string, error) {
	if err := from.Origin.Validate(); err != nil {
		return nil, nil, err
	}
	r, err := parseToolResult(result, from.Accepted)
	if err != nil {
		return nil, nil, err
	}
	var few [4]payload
	payloads := few[:0]
	if r.isError {
		payloads = append(payloads, r.failure(from))
	} else {
		for i := range r.count() {
			p, err := r.block(i).payload()
			if err != nil {
				return nil, nil, fmt.Errorf("%w: content %d: %w", ErrInvalidToolResult, i, err)
			}
			if p.ref = "/content/0"; i > 0 { // most results have one block
				p.ref = "/content/" + strconv.Itoa(i)
			}
			payloads = append(payloads, p)
		}
		for _, rest := range [...]struct {
			ref, schema string
			raw         json.RawMessage
		}{{"/content", "mcp.content.unknown", r.content}, {"/structuredContent", "json", r.structured}} {
			if rest.raw == nil {
				continue
			}
			p, err := dataPayload(rest.raw, rest.schema)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: %s: %w", ErrInvalidToolResult, rest.ref, err)
			}
			p.ref = rest.ref
			payloads = append(payloads, p)
		}
	}
	if len(payloads) == 0 {
		return nil, nil, nil
	}
	made := &madeSignals{parent: from.ParentID}
	b := append(made.tags[:0], '{') // in the order of their names
	if from.DecisionID != "" {
		b = append(appendText(b, `"decision_id":`, from.DecisionID), ',')
	}
	b = appendText(b, `"module":`, from.Origin.Module)
	b = append(strconv.AppendInt(append(b, `,"source_type":"tool","tier":"`...), int64(from.Origin.Tier), 10), '"')
	tags := jsontext.Value(append(appendText(b, `,"tool":`, from.Tool), '}'))
	now, signals, refs, parent := Now(), made.signals[:], made.refs[:], &made.parent
	if len(payloads) > 1 {
		signals, refs = make([]Signal, len(payloads)), make([]string, len(payloads))
	}
	if from.ParentID == "" {
		parent = nil
	}
	for i, p := range payloads {
		signals[i], refs[i] = stamp(p.kind, p.body, from.Origin, from.TraceID, tags, parent, now), p.ref
		if signals[i].text = p.text; !from.Accepted {
			signals[i].text = bytes.Clone(p.text)
		}
	}
	return signals, refs, nil
}

// madeSignals is what FromToolResult makes of the usual result, which is one Signal, in one
// piece of memory.
type madeSignals struct {
	signals [1]Signal
	refs    [1]string
	parent  string    // of all signals
	tags    [160]byte // room for those of all signals
}

// Lineage is where the Signals of a tool result come from.
type Lineage struct {
	Origin     ModuleRef // who made them
	Tool       string    // the tool as agents call it
	TraceID    string
	ParentID   string // id of the call's own signal, "" when it has none
	DecisionID string // of the decision that let the call pass, "" when there is none
	// Accepted says that a strict pass has accepted the result, and that its bytes never
	// change: they are neither checked nor copied again.
	Accepted bool
}

// parseToolResult takes result apart, which a strict pass may have accepted.
func parseToolResult(result []byte, accepted bool) (r toolResult, err error) {
	members, elements, ok := jsonrpc.Unpack(result, accepted, blockMembers, "content", "structuredContent", "isError")
	if !ok {
		return r, fmt.Errorf("%w: no JSON object, or one with a known member twice", ErrInvalidToolResult)
	}
	for i, value := range members {
		if string(value) == "null" {
			members[i] = nil
		}
	}
	r.content, r.structured, r.isError = members[0], members[1], string(members[2]) == "true"
	if jsontext.Value(r.content).Kind() != '[' {
		return r, nil
	}
	r.content, r.blocks = nil, elements
	return r, nil
}

// payload maps one block. Text that is a JSON object or array with one reading is
// DATA. A block that lacks what its type requires is kept whole as DATA: the tool has
// run, and its answer is not to be lost.
func (b block) payload() (payload, error) {
	kind := "text"
	if spelled := b[blockType]; string(spelled) != `"text"` {
		kind, _ = jsonrpc.Text(spelled)
	}
	switch lexeme := b[blockText]; {
	case kind == "text" && jsontext.Value(lexeme).Kind() == '"':
		start := bytes.TrimLeft(lexeme[1:], " ")
		if strings.IndexByte(`{[\`, start[0]) >= 0 { // only then is the text decoded
			text, _ := jsonrpc.Text(lexeme)
			if c := jsontext.Value(text).Kind(); c == '{' || c == '[' {
				if p, err := dataPayload([]byte(text), "json"); err == nil {
					return p, nil
				}
			}
		}
		return payload{kind: Text, text: lexeme}, nil
	case kind == "json": // seed 002's JSONContent; MCP itself has no such type
		for _, value := range []json.RawMessage{b[blockData], b[blockJSON]} {
			if value != nil {
				return dataPayload(value, "json")
			}
		}
	case kind == "":
		kind = "unknown"
	default:
		if p, ok := b.file(kind); ok {
			return p, nil
		}
	}
	return dataPayload(b[blockRaw], "mcp.content."+kind)
}

// dataPayload returns the DATA of one JSON value, which must have one reading.
func dataPayload(raw []byte, schema string) (payload, error) {
	value, err := strictValue(bytes.Clone(raw))
	if err != nil {
		return payload{}, err
	}
	return payload{kind: Data, body: dataBody(value, schema, nil)}, nil
}

// failure wraps a result with isError: one error signal with all its texts.
func (r *toolResult) failure(from Lineage) payload {
	var texts []string
	for i := range r.count() {
		if text, _ := jsonrpc.Text(r.block(i)[blockText]); text != "" {
			texts = append(texts, text)
		}
	}
	said := strings.Join(texts, "\n")
	e := &KernelError{
		Code: CodeToolFailed, Category: External, Severity: Transient, Message: text.Clip(said, maxErrorMessage, ""),
		Source: from.Origin, Detail: map[string]any{"tool": from.Tool},
	}
	if said == "" {
		e.Message = "the tool reported an error without text"
	}
	var whole []byte
	if len(e.Message) < len(said) {
		whole = fmt.Appendf(nil, `,"text":%s`, jsonrpc.Quote(said))
	}
	p := payload{kind: Data, body: dataBody(encode(e.form(0)), SchemaError, whole), ref: "/content"}
	switch r.count() {
	case 0:
		p.ref = "/isError"
	case 1:
		p.ref = "/content/0"
	}
	return p
}

// inline is what a content block holds itself, not by reference.
type inline struct {
	data  []byte
	media string
	uri   string // of an embedded resource
}

// inline finds the bytes of an image, an audio, an embedded resource or a
// file, seed 002's FileContent.
func (b block) inline(kind string) (in inline, ok bool) {
	holder, member := b, blockData
	switch kind {
	case "image", "audio", "file":
	case "resource":
		members, _, ok := jsonrpc.Unpack(b[blockResource], true, nil, blockMembers...)
		if !ok {
			return in, false
		}
		holder = append(block{b[blockResource]}, members...)
		in.uri, _ = jsonrpc.Text(holder[blockURI])
		if member = blockBlob; jsontext.Value(holder[blockText]).Kind() == '"' {
			member, in.media = blockText, "text/plain"
		}
	default:
		return in, false
	}
	in.media = holder.mediaOr(cmp.Or(in.media, anyBytes))
	text, ok := jsonrpc.Text(holder[member])
	if in.data = []byte(text); ok && member != blockText {
		var err error
		in.data, err = base64.StdEncoding.DecodeString(text)
		ok = err == nil
	}
	return in, ok
}

const anyBytes = "application/octet-stream"

func (b block) mediaOr(fallback string) string {
	media, _ := jsonrpc.Text(b[blockMIME])
	return cmp.Or(media, fallback)
}

// file maps a block of content that is a file: what it holds by its SHA-256,
// what it points at by uri or path.
func (b block) file(kind string) (payload, bool) {
	var f fileBody
	if in, ok := b.inline(kind); ok {
		sum, size := sha256.Sum256(in.data), len(in.data)
		f = fileBody{ID: "sha256:" + hex.EncodeToString(sum[:]), Type: in.media, URI: in.uri, Size: &size}
		return payload{kind: File, body: encode(f)}, true
	}
	if kind != "resource_link" && (kind != "file" || b[blockData] != nil) {
		return payload{}, false
	}
	f.Type = b.mediaOr(anyBytes)
	if f.ID, _ = jsonrpc.Text(b[blockURI]); f.ID == "" && kind == "file" {
		f.ID, _ = jsonrpc.Text(b[blockPath])
		f.Path = &f.ID
	}
	return payload{kind: File, body: encode(f)}, f.ID != ""
}

// InlineFile gives the bytes behind a FILE signal: result is the MCP tool
// result that FromToolResult has split, ref what it gave for the signal. The
// media type is the signal's file_type. ok is false where the result does not
// hold the bytes itself, as with links, and where ref leads to no file.
func InlineFile(result json.RawMessage, ref string) (data []byte, mediaType string, ok bool) {
	r, err := parseToolResult(result, false)
	if err != nil || r.isError {
		return nil, "", false
	}
	for i := range r.count() {
		b := r.block(i)
		if ref == "/content/"+strconv.Itoa(i) {
			kind, _ := jsonrpc.Text(b[blockType])
			if in, ok := b.inline(kind); ok {
				return in.data, in.media, true
			}
		}
	}
	return nil, "", false
}
