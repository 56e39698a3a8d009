package signal

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// What the factories and decoders of this package refuse with; match with
// errors.Is.
var (
	// ErrInvalidKind is returned for a kind that is not one of the five.
	ErrInvalidKind = errors.New("invalid signal kind")
	// ErrInvalidBody is returned for a body that JSON cannot hold or that is no
	// object.
	ErrInvalidBody = errors.New("invalid signal body")
	// ErrInvalidTag is returned for a tag key that is empty or no UTF-8 and for
	// a standard tag with a value that its row does not have.
	ErrInvalidTag = errors.New("invalid signal tag")
	// ErrInvalidOrigin is returned for a ModuleRef outside tiers 0 to 7 or
	// without module or function.
	ErrInvalidOrigin = errors.New("invalid module reference")
	// ErrInvalidSignal is returned when a JSON text is not a valid Signal.
	ErrInvalidSignal = errors.New("invalid signal")
	// ErrInvalidResult is returned when a JSON text is not a valid Result.
	ErrInvalidResult = errors.New("invalid result")
	// ErrInvalidError is returned when a KernelError, or its JSON text, has an
	// unknown category or severity, no message or a malformed code.
	ErrInvalidError = errors.New("invalid kernel error")
	// ErrInvalidCode is returned for an error code that breaks the convention
	// T{tier}_{MODULE}_{REASON}.
	ErrInvalidCode = errors.New("invalid error code")
	// ErrInvalidToolResult is returned when bytes are not an MCP tool result.
	ErrInvalidToolResult = errors.New("invalid tool result")
	// ErrInvalidRequest is returned for a JobRequest that is malformed; the
	// message names the member.
	ErrInvalidRequest = errors.New("invalid job request")
	// ErrInvalidNotification is returned when a JSONRPCNotification is no
	// notification.
	ErrInvalidNotification = errors.New("invalid notification")
)

// Kind says what a Signal carries.
type Kind string

// The kinds, with the body keys that each requires.
const (
	Text    Kind = "text"    // text: string
	Data    Kind = "data"    // data: any, schema: string
	File    Kind = "file"    // file_id, file_type: string, path: string or null
	Command Kind = "command" // action: string, target: ModuleRef
	Stream  Kind = "stream"  // chunk: string, sequence: integer, final: boolean
)

// Valid reports whether k is one of the five kinds.
func (k Kind) Valid() bool { return slices.Contains([]Kind{Text, Data, File, Command, Stream}, k) }

// ModuleRef points at one function of the kernel.
type ModuleRef struct {
	Tier     int    `json:"tier"` // 0 to 7
	Module   string `json:"module"`
	Function string `json:"function"`
}

// Validate returns ErrInvalidOrigin with the reason when r points nowhere.
func (r ModuleRef) Validate() error {
	switch {
	case r.Tier < 0 || r.Tier > 7:
		return fmt.Errorf("%w: tier %d is not 0 to 7", ErrInvalidOrigin, r.Tier)
	case r.Module == "":
		return fmt.Errorf("%w: no module", ErrInvalidOrigin)
	case r.Function == "":
		return fmt.Errorf("%w: no function", ErrInvalidOrigin)
	}
	return nil
}

// UnmarshalJSON reads a module reference strictly. The error is ErrInvalidOrigin,
// also for one that Validate refuses or that names no tier.
func (r *ModuleRef) UnmarshalJSON(data []byte) error {
	type form ModuleRef
	return read(data, r, ErrInvalidOrigin, form{Tier: -1}, func(f *form) (ModuleRef, error) { return ModuleRef(*f), ModuleRef(*f).Validate() })
}

// Signal is the atomic unit of data. It never changes after creation: a value
// may be copied, shared and read from several goroutines. The zero Signal is
// not valid. See Create for the only way to make one.
type Signal struct {
	form signalForm // see whole
	text []byte     // the JSON string of a TEXT whose body has not been written; nil = it has
}

// whole returns the form of s with its body. The body of a TEXT from a tool is
// written only when somebody wants it: most results are given as they came.
func (s *Signal) whole() *signalForm {
	if s.text == nil {
		return &s.form
	}
	f := s.form
	f.Body = slices.Concat([]byte(`{"text":`), s.text, []byte("}"))
	return &f
}

// ID is "sig_" and a ULID: unique, sortable by time.
func (s Signal) ID() string { return s.form.ID }

// Kind says what the signal carries.
func (s Signal) Kind() Kind { return s.form.Kind }

// Body returns a fresh copy of the payload; numbers are json.Number, exact.
func (s Signal) Body() map[string]any {
	m, err := decodeObject(s.whole().Body)
	if err != nil {
		return map[string]any{}
	}
	return m
}

// Origin is who created the signal.
func (s Signal) Origin() ModuleRef { return s.form.Origin }

// TraceID correlates the signals of one pipeline.
func (s Signal) TraceID() string { return s.form.TraceID }

// CreatedAt is when the signal was made, in UTC.
func (s Signal) CreatedAt() time.Time { return s.form.CreatedAt }

// ParentID is the id of the signal or call that caused this one, or "".
func (s Signal) ParentID() string {
	if s.form.ParentID == nil {
		return ""
	}
	return *s.form.ParentID
}

// Tags returns a copy of the tags.
func (s Signal) Tags() map[string]string {
	tags, _ := decodeTags(s.form.Tags)
	return tags
}

// Tag returns one tag, "" when it is absent.
func (s Signal) Tag(key string) string {
	value, _ := jsonrpc.TextAt(stdjson.RawMessage(s.form.Tags), key)
	return value
}

// Equal reports whether both signals have the same JSON form.
func (s Signal) Equal(other Signal) bool {
	return bytes.Equal(encode(s.whole()), encode(other.whole()))
}

// Create makes a Signal: it generates the id, stamps the time and copies content
// and tags deeply. Tags are merged over the defaults tier and module of the
// origin and source_type "system"; a given tag wins over a default. An empty
// parentID means that nothing caused it.
//
// It refuses an unknown kind, a body that JSON cannot hold, a bad origin and a
// bad tag with the sentinel of each. Whether the body keeps the conventions of
// its kind is asked of ValidateSignal, at the boundaries (seed 002,
// create_signal).
func Create(kind Kind, content map[string]any, origin ModuleRef, traceID string, tags map[string]string, parentID string) (Signal, error) {
	if !kind.Valid() {
		return Signal{}, fmt.Errorf("%w: %q", ErrInvalidKind, string(kind))
	}
	if content == nil {
		content = map[string]any{}
	}
	raw, err := encodeValue(content)
	if err != nil {
		return Signal{}, err
	}
	return create(kind, raw, origin, traceID, tags, parentID)
}

func create(kind Kind, body jsontext.Value, origin ModuleRef, traceID string, given map[string]string, parentID string) (Signal, error) {
	if err := origin.Validate(); err != nil {
		return Signal{}, err
	}
	merged, err := mergeTags(origin, given)
	if err != nil {
		return Signal{}, err
	}
	var parent *string
	if parentID != "" {
		parent = &parentID
	}
	return stamp(kind, body, origin, traceID, merged, parent, Now()), nil
}

// stamp trusts its arguments: create and FromToolResult have checked them. parent is not
// written to; nil for none.
func stamp(kind Kind, body jsontext.Value, origin ModuleRef, traceID string, tags jsontext.Value, parent *string, now time.Time) Signal {
	return Signal{form: signalForm{
		ID: newID("sig_", now), Kind: kind, Body: body, Origin: origin, TraceID: traceID,
		Tags: tags, CreatedAt: now.UTC().Round(0), ParentID: parent,
	}}
}

// Option adds to a signal what its factory has no argument for.
type Option func(*lineage)

type lineage struct {
	tags   map[string]string
	parent string
	size   *int
	more   []byte // members of the body, each after a comma
}

// WithTags gives the signal tags; see Create for how they are merged.
func WithTags(tags map[string]string) Option { return func(l *lineage) { l.tags = tags } }

// WithParent names the signal or call that caused the signal.
func WithParent(id string) Option { return func(l *lineage) { l.parent = id } }

// WithSize adds the member size, in bytes, to the body of a FILE signal.
func WithSize(n int64) Option {
	size := int(n)
	return func(l *lineage) { l.size = &size }
}

// withMembers adds members, JSON with a comma before each, to the body of a DATA signal.
func withMembers(members []byte) Option { return func(l *lineage) { l.more = members } }

func lineageOf(options []Option) lineage {
	var l lineage
	for _, o := range options {
		o(&l)
	}
	return l
}

// CreateText makes a TEXT signal with body {"text": text}. Bytes that are not
// UTF-8 become U+FFFD. Refuses as Create does.
func CreateText(text string, origin ModuleRef, traceID string, tags map[string]string, options ...Option) (Signal, error) {
	return create(Text, fmt.Appendf(nil, `{"text":%s}`, jsonrpc.Quote(text)), origin, traceID, tags, lineageOf(options).parent)
}

// CreateData makes a DATA signal with body {"data": data, "schema": schema},
// and "count" when data is a list. The schema is a type hint for readers. Bytes of a
// json.RawMessage stay as they are, except for white space. Refuses as Create does.
func CreateData(data any, schema string, origin ModuleRef, traceID string, tags map[string]string, options ...Option) (Signal, error) {
	raw, err := encodeValue(data)
	if err != nil {
		return Signal{}, err
	}
	l := lineageOf(options)
	return create(Data, dataBody(raw, schema, l.more), origin, traceID, tags, l.parent)
}

// CreateFile makes a FILE signal: a reference, never the bytes. An empty path
// is null, a file without a place in a file system. Refuses as Create does.
func CreateFile(fileID, fileType, path string, origin ModuleRef, traceID string, options ...Option) (Signal, error) {
	l := lineageOf(options)
	f := fileBody{ID: fileID, Type: fileType, Size: l.size}
	if path != "" {
		f.Path = &path
	}
	return create(File, encode(f), origin, traceID, l.tags, l.parent)
}

// CreateCommand makes a COMMAND signal with body {"action", "target",
// ...payload}; action and target win over payload members of those names.
// Standard actions are activate, sleep, retry, abort and pivot. Refuses as
// Create does, and a bad target with ErrInvalidOrigin.
func CreateCommand(action string, target, origin ModuleRef, traceID string, payload map[string]any, options ...Option) (Signal, error) {
	if err := target.Validate(); err != nil {
		return Signal{}, err
	}
	members := make(map[string]any, len(payload)+2)
	maps.Copy(members, payload)
	members["action"], members["target"] = action, target
	l := lineageOf(options)
	return Create(Command, members, origin, traceID, l.tags, l.parent)
}

// SchemaError is the schema hint of a DATA signal that carries a KernelError.
const SchemaError = "KernelError"

// CreateErrorSignal wraps a KernelError as a DATA signal of schema
// "KernelError", for propagation beside other signals; ErrorOf reads it back.
// Refuses as Create does, and an invalid error with ErrInvalidError.
func CreateErrorSignal(err *KernelError, origin ModuleRef, traceID string, options ...Option) (Signal, error) {
	if fault := err.Validate(); fault != nil {
		return Signal{}, fault
	}
	return CreateData(err, SchemaError, origin, traceID, lineageOf(options).tags, options...)
}

// ErrorOf gives the error that an error signal carries, and whether s is one.
func ErrorOf(s Signal) (*KernelError, bool) {
	if s.form.Kind != Data {
		return nil, false
	}
	if schema, _ := jsonrpc.TextAt(stdjson.RawMessage(s.form.Body), "schema"); schema != SchemaError {
		return nil, false
	}
	raw, _ := jsonrpc.Get(stdjson.RawMessage(s.form.Body), "data")
	var e KernelError
	if e.UnmarshalJSON(raw) != nil {
		return nil, false //nolint:nilerr // then it is none
	}
	return &e, true
}

// The tags that are read without parsing a body: the table "Tag Conventions"
// of seed 002, and ours.
const (
	TagUrgency    = "urgency"     // low, normal, high or critical
	TagDomain     = "domain"      // finance, code, general, …: any word
	TagComplexity = "complexity"  // trivial, simple, moderate or complex
	TagConfidence = "confidence"  // a decimal from 0.0 to 1.0
	TagGrounding  = "grounding"   // a decimal from 0.0 to 1.0
	TagSourceType = "source_type" // user, tool, agent or system (the default)

	TagTier     = "tier"        // the origin's tier, a default tag
	TagModule   = "module"      // the origin's module, a default tag
	TagTool     = "tool"        // the tool a signal came from
	TagDecision = "decision_id" // the decision that let the call pass
	TagNext     = "next"        // of an error signal: retry or escalate (see Compose)
	TagJobType  = "job_type"    // of the JobRequest that a signal was made from
	TagDepth    = "depth"       // likewise
	TagMaxSteps = "max_steps"   // likewise
)

// A type whose fields are not its JSON form has a struct for that. Reading is strict: unknown, duplicate and differently cased members, trailing bytes and
// whatever the validators refuse.

// asItIs writes strings that are not UTF-8 with U+FFFD and raw values as they are.
var asItIs = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true), jsontext.PreserveRawStrings(true), json.Deterministic(true))

// encode returns the JSON form of a struct of this package, which has no value
// that JSON cannot hold.
func encode(form any) []byte {
	raw, _ := json.Marshal(form, asItIs)
	return raw
}

// MarshalJSON returns {id, kind, body, origin, trace_id, tags, created_at,
// parent_id}; an absent parent is null. It never fails.
func (s Signal) MarshalJSON() ([]byte, error) { return encode(s.whole()), nil }

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

// read decodes data strictly over form and sets *into to what convert makes of it.
// Any error wraps wrong, and then *into is as it was.
func read[F, T any](data []byte, into *T, wrong error, form F, convert func(*F) (T, error)) error {
	err := json.Unmarshal(data, &form, strictly)
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

// A signalForm is a Signal as JSON has it.
type signalForm struct {
	ID        string         `json:"id"`
	Kind      Kind           `json:"kind"`
	Body      jsontext.Value `json:"body,omitzero"`
	Origin    ModuleRef      `json:"origin"`
	TraceID   string         `json:"trace_id"`
	Tags      jsontext.Value `json:"tags"`
	CreatedAt time.Time      `json:"created_at"`
	ParentID  *string        `json:"parent_id"` // nil for none
}

// signal checks what was read.
func (f *signalForm) signal() (Signal, error) {
	tags, err := decodeTags(f.Tags)
	if err != nil {
		return Signal{}, err
	}
	f.CreatedAt, f.Tags = f.CreatedAt.UTC(), encode(tags)
	s := Signal{form: *f}
	return s, s.check()
}

// UnmarshalJSON reads a Signal strictly; what ValidateSignal refuses is
// ErrInvalidSignal, as is anything that MarshalJSON would not have written
// but for order and white space.
func (s *Signal) UnmarshalJSON(data []byte) error {
	return read(data, s, ErrInvalidSignal, signalForm{}, (*signalForm).signal)
}

// dataBody returns {"data": value, "schema": schema}, with "count" for a list, and more.
func dataBody(value []byte, schema string, more []byte) jsontext.Value {
	out := jsontext.Value(slices.Concat([]byte(`{"data":`), value, []byte(`,"schema":`), jsonrpc.Quote(schema)))
	if value[0] == '[' {
		n := 0
		for range jsonrpc.Elements(value) {
			n++
		}
		out = fmt.Appendf(out, `,"count":%d`, n)
	}
	return append(append(out, more...), '}')
}

// fileBody holds the conventions of FILE. A nil path is null.
type fileBody struct {
	ID   string  `json:"file_id"`
	Type string  `json:"file_type"`
	Path *string `json:"path"`
	URI  string  `json:"uri,omitzero"`
	Size *int    `json:"size,omitzero"` // bytes
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
