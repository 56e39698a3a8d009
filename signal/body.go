package signal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// body holds a payload as JSON and builds maps only when somebody asks. The
// strings are immutable, so a Signal that holds them is.
type body struct {
	form   form
	raw    string // formObject: the whole object; else the one value that matters
	schema string // formData: the schema; formCall: the tool
}

type form uint8

const (
	formObject form = iota // raw is the body
	formText               // {"text": raw}, raw a JSON string
	formData               // {"data": raw, "schema": schema, "count"?}
	formCall               // see callBody
)

func dataBody(value, schema string) body { return body{form: formData, raw: value, schema: schema} }
func (b body) append(dst []byte) []byte  { return b.appendExtra(dst, "") }
func (b body) object() string            { return string(b.append(nil)) }
func objectBody(object string) body      { return body{raw: object} }

// callBody keeps the bytes of args for SignalToToolCall; its JSON form is
// {"data": {tool, args}, "schema": "ToolCallRequest", "tool": tool, "args":
// args} without white space.
func callBody(tool, args string) body { return body{form: formCall, raw: args, schema: tool} }

func (b body) member(key string) (string, bool) {
	switch {
	case b.form == formText && key == "text", b.form == formData && key == "data", b.form == formCall && key == "args":
		return b.raw, true
	case b.form == formData && key == "schema", b.form == formCall && key == "tool":
		return quote(b.schema), true
	}
	return member(b.object(), key)
}

// text gives a string member decoded, "" when it is absent or no string.
func (b body) text(key string) string {
	raw, _ := b.member(key)
	s, _ := unquote(raw)
	return s
}

// appendExtra appends the body, with extra (`,"key":value`) before its end.
func (b body) appendExtra(dst []byte, extra string) []byte {
	switch b.form {
	case formText:
		dst = append(append(dst, `{"text":`...), b.raw...)
	case formData:
		dst = append(append(dst, `{"data":`...), b.raw...)
		dst = appendQuote(append(dst, `,"schema":`...), b.schema)
		if n := countElements(b.raw); n >= 0 {
			dst = strconv.AppendInt(append(dst, `,"count":`...), int64(n), 10)
		}
	case formCall:
		dst = b.appendCall(dst)
	default:
		return append(dst, b.raw...)
	}
	return append(append(dst, extra...), '}')
}

func (b body) appendCall(dst []byte) []byte {
	// Whoever made the body has found args to be strict JSON.
	args, _ := strictValue([]byte(b.raw))
	call := append(appendQuote([]byte(`"tool":`), b.schema), `,"args":`...)
	call = append(call, args...)
	dst = append(append(dst, `{"data":{`...), call...)
	dst = append(dst, `},"schema":"ToolCallRequest",`...)
	return append(dst, call...)
}

func (b body) decode() map[string]any {
	m := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(b.append(nil)))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		return map[string]any{}
	}
	return m
}

func encodeBody(m map[string]any) (body, error) {
	if m == nil {
		m = map[string]any{}
	}
	raw, err := encodeValue(m)
	return objectBody(raw), err
}

// encodeValue gives v as JSON on one line, without HTML escapes and with one
// reading only: what encoding/json passes through unread (json.RawMessage) may
// hold duplicate names.
func encodeValue(v any) (string, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidBody, err)
	}
	raw, err := strictValue(buf.Bytes())
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidBody, err)
	}
	return raw, nil
}

// strictValue gives one JSON value without white space, or the reason why it
// is not one, has two readings or is not UTF-8. It overwrites data.
func strictValue(data []byte) (string, error) {
	v := jsontext.Value(data)
	if err := v.Compact(jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false)); err != nil {
		return "", err
	}
	return string(v), nil
}

// fileBody builds the FILE conventions; uri and size are left out when "" and
// negative.
func fileBody(id, fileType, path, uri string, size int) body {
	dst := appendQuote([]byte(`{"file_id":`), id)
	dst = appendQuote(append(dst, `,"file_type":`...), fileType)
	dst = append(dst, `,"path":`...)
	if path == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendQuote(dst, path)
	}
	if uri != "" {
		dst = appendQuote(append(dst, `,"uri":`...), uri)
	}
	if size >= 0 {
		dst = strconv.AppendInt(append(dst, `,"size":`...), int64(size), 10)
	}
	return objectBody(string(append(dst, '}')))
}

// appendQuote appends s as a JSON string; bytes that are not UTF-8 become
// U+FFFD.
func appendQuote(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error reports what it has replaced
	return dst
}

func quote(s string) string { return string(appendQuote(nil, s)) }

// unquote decodes a JSON string that the scanner has passed; lone surrogates
// become U+FFFD.
func unquote(lexeme string) (string, bool) {
	if len(lexeme) < 2 || lexeme[0] != '"' {
		return "", false
	}
	if inner := lexeme[1 : len(lexeme)-1]; strings.IndexByte(inner, '\\') < 0 {
		return inner, true
	}
	s, err := jsontext.AppendUnquote(nil, wellFormed(lexeme))
	return string(s), err == nil
}
