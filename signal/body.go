package signal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// A body is a payload as JSON: head, raw and tail joined are the object, and raw
// is the value of the last member that head names. Maps are built only when
// somebody asks. Nobody writes to raw after the body is made, so a Signal never
// changes.
type body struct {
	head string // "" where raw is the whole object
	raw  []byte
	tail string
}

// textBody returns {"text": lexeme}; lexeme is a JSON string.
func textBody(lexeme []byte) body { return body{`{"text":`, lexeme, "}"} }

// dataBody returns {"data": value, "schema": schema}, with "count" for a list.
func dataBody(value []byte, schema string) body {
	tail := `,"schema":` + quote(schema)
	if value[0] == '[' {
		n := 0
		for range jsonrpc.Elements(value) {
			n++
		}
		tail += fmt.Sprintf(`,"count":%d`, n)
	}
	return body{`{"data":`, value, tail + "}"}
}

// callBody keeps the bytes of args for SignalToToolCall; its JSON form is
// {"data": {tool, args}, "schema": "ToolCallRequest", "tool": tool, "args":
// args}.
func callBody(tool string, args []byte) body {
	tool = quote(tool)
	return body{fmt.Sprintf(`{"data":{"tool":%s,"args":%s},"schema":"ToolCallRequest","tool":%s,"args":`, tool, args, tool), args, "}"}
}

// fileBody holds the conventions of FILE. A nil path is null.
type fileBody struct {
	ID   string  `json:"file_id"`
	Type string  `json:"file_type"`
	Path *string `json:"path"`
	URI  string  `json:"uri,omitzero"`
	Size *int    `json:"size,omitzero"` // bytes
}

func (f fileBody) body() body { return body{raw: encode(f)} }

func (b body) object() []byte { return slices.Concat([]byte(b.head), b.raw, []byte(b.tail)) }

// member returns a member as it is spelled. It reads raw only where raw is the
// whole object.
func (b body) member(key string) (json.RawMessage, bool) {
	switch {
	case b.head == "":
		return jsonrpc.Get(b.raw, key)
	case strings.HasSuffix(b.head, `"`+key+`":`):
		return b.raw, true
	}
	return jsonrpc.Get([]byte(b.head+"null"+b.tail), key)
}

// text returns a string member decoded, "" when it is absent or no string.
func (b body) text(key string) string {
	raw, _ := b.member(key)
	s, _ := jsonrpc.Text(raw)
	return s
}

// MarshalJSONTo writes the object on one line, without white space.
func (b body) MarshalJSONTo(e *jsontext.Encoder) error { return e.WriteValue(b.object()) }

// UnmarshalJSONFrom reads an object; the decoder has only one reading of it.
func (b *body) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	raw, err := d.ReadValue()
	if err == nil && raw.Kind() != '{' {
		err = ErrInvalidBody
	}
	if err != nil {
		return err
	}
	b.raw, err = strictValue(bytes.Clone(raw))
	return err
}

// decodeObject returns object as a map, numbers as json.Number.
func decodeObject(object []byte) (m map[string]any, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	dec.UseNumber()
	return m, dec.Decode(&m)
}

// encodeValue returns v as JSON on one line, without HTML escapes and with one
// reading only: encoding/json passes json.RawMessage through unread, and that
// may hold duplicate names.
func encodeValue(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidBody, err)
	}
	raw, err := strictValue(buf.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidBody, err)
	}
	return raw, nil
}

// strictValue returns one JSON value without white space, or the reason why it
// is not one, has two readings or is not UTF-8. It overwrites data.
func strictValue(data []byte) ([]byte, error) {
	v := jsontext.Value(data)
	err := v.Compact(jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false))
	return v, err
}

func quote(s string) string { return string(jsonrpc.Quote(s)) }
