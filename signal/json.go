package signal

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Each type has one struct for its JSON form, for writing and for reading. Reading
// is strict: unknown, duplicate and differently cased members, trailing bytes and
// whatever the validators refuse.

// asItIs writes strings that are not UTF-8 with U+FFFD and raw values as they are.
var asItIs = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true), jsontext.PreserveRawStrings(true))

// encode returns the JSON form of a struct of this package, which has no value
// that JSON cannot hold.
func encode(form any) []byte {
	raw, _ := json.Marshal(form, asItIs)
	return raw
}

// MarshalJSON returns {id, kind, body, origin, trace_id, tags, created_at,
// parent_id}; an absent parent is null. It never fails.
func (s Signal) MarshalJSON() ([]byte, error) { return encode(&s.form), nil }

// MarshalJSON returns {code, category, severity, message, source,
// retry_eligible, detail, cause}. It never fails: a detail that JSON cannot
// hold is replaced by {"unencodable": reason}.
func (e *KernelError) MarshalJSON() ([]byte, error) { return encode(e.form(0)), nil }

// DetailJSON returns the detail as a JSON object, {} when there is none. It
// never fails: see MarshalJSON.
func (e *KernelError) DetailJSON() stdjson.RawMessage {
	if len(e.Detail) == 0 {
		return stdjson.RawMessage("{}")
	}
	raw, err := encodeValue(e.Detail)
	if err != nil {
		return stdjson.RawMessage(`{"unencodable":` + quote(err.Error()) + `}`)
	}
	return raw
}

type moduleForm struct {
	Tier     *int   `json:"tier"`
	Module   string `json:"module"`
	Function string `json:"function"`
}

func (f *moduleForm) ref() (ModuleRef, error) {
	if f.Tier == nil {
		return ModuleRef{}, errors.New("no tier")
	}
	r := ModuleRef{*f.Tier, f.Module, f.Function}
	return r, r.Validate()
}

// UnmarshalJSON reads a module reference; it returns ErrInvalidOrigin for one
// that Validate refuses or that names no tier.
func (r *ModuleRef) UnmarshalJSON(data []byte) error {
	return read(data, r, ErrInvalidOrigin, (*moduleForm).ref)
}

// strictly refuses unknown members, and null for what has no null: json/v2
// would read it as the zero value.
var strictly = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(json.UnmarshalFromFunc(refuseNull)))

func refuseNull(d *jsontext.Decoder, into any) error {
	if d.PeekKind() == 'n' {
		switch into.(type) {
		case **string, **KernelError, **errorForm: // nil is a value
		default:
			return errors.New("null is no value")
		}
	}
	return errors.ErrUnsupported // continue in the usual way
}

// read decodes data strictly as a form F and sets *into to what convert makes of
// it. Any error wraps wrong, and then *into is as it was.
func read[F, T any](data []byte, into *T, wrong error, convert func(*F) (T, error), options ...json.Options) error {
	var form F
	err := json.Unmarshal(data, &form, append([]json.Options{strictly}, options...)...)
	var out T
	if err == nil {
		out, err = convert(&form)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", wrong, err)
	}
	*into = out
	return nil
}

// A signalForm is a Signal as JSON has it; a compact view has Ref in place of
// Body.
type signalForm struct {
	ID        string    `json:"id"`
	Kind      Kind      `json:"kind"`
	Ref       *string   `json:"ref,omitzero"`
	Body      body      `json:"body,omitzero"`
	Origin    ModuleRef `json:"origin"`
	TraceID   string    `json:"trace_id"`
	Tags      tags      `json:"tags"`
	CreatedAt time.Time `json:"created_at"`
	ParentID  *string   `json:"parent_id"` // nil for none
}

// signal checks what was read.
func (f *signalForm) signal() (Signal, error) {
	if f.Ref != nil {
		return Signal{}, ErrInvalidBody
	}
	f.CreatedAt = f.CreatedAt.UTC()
	s := Signal{*f}
	return s, s.check()
}

// UnmarshalJSON reads a Signal strictly; what ValidateSignal refuses is
// ErrInvalidSignal, as is anything that MarshalJSON would not have written
// but for order and white space.
func (s *Signal) UnmarshalJSON(data []byte) error {
	return read(data, s, ErrInvalidSignal, (*signalForm).signal)
}

type errorForm struct {
	Code          string         `json:"code"`
	Category      Category       `json:"category"`
	Severity      Severity       `json:"severity"`
	Message       string         `json:"message"`
	Source        ModuleRef      `json:"source"`
	RetryEligible *bool          `json:"retry_eligible"`
	Detail        jsontext.Value `json:"detail"`
	Cause         *errorForm     `json:"cause"`
}

// form returns the form of e, nil beyond maxCauses.
func (e *KernelError) form(depth int) *errorForm {
	if e == nil || depth > maxCauses {
		return nil
	}
	return &errorForm{
		e.Code, e.Category, e.Severity, e.Message, e.Source, &e.RetryEligible, jsontext.Value(e.DetailJSON()), e.Cause.form(depth + 1),
	}
}

// UnmarshalJSON reads a KernelError strictly; what Validate refuses is
// ErrInvalidError. Numbers in the detail are json.Number.
func (e *KernelError) UnmarshalJSON(data []byte) error {
	return read(data, e, ErrInvalidError, func(f *errorForm) (KernelError, error) { return f.kernel(0) })
}

func (f *errorForm) kernel(depth int) (e KernelError, err error) {
	switch {
	case depth > maxCauses:
		return e, errors.New("too many causes")
	case f.RetryEligible == nil:
		return e, errors.New("no retry_eligible")
	case len(f.Detail) > 0 && f.Detail.Kind() != '{':
		return e, errors.New("detail is no object")
	}
	e = KernelError{
		Code: f.Code, Category: f.Category, Severity: f.Severity, Message: f.Message,
		Source: f.Source, RetryEligible: *f.RetryEligible,
	}
	if len(f.Detail) > len("{}") {
		if e.Detail, err = decodeObject(f.Detail); err != nil {
			return e, err
		}
	}
	if f.Cause != nil {
		cause, err := f.Cause.kernel(depth + 1)
		if err != nil {
			return e, err
		}
		e.Cause = &cause
	}
	return e, e.validate()
}

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
func (b body) member(key string) (stdjson.RawMessage, bool) {
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
	dec := stdjson.NewDecoder(bytes.NewReader(object))
	dec.UseNumber()
	return m, dec.Decode(&m)
}

// encodeValue returns v as JSON on one line, without HTML escapes and with one
// reading only: encoding/json passes json.RawMessage through unread, and that
// may hold duplicate names.
func encodeValue(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := stdjson.NewEncoder(&buf)
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
