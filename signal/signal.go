package signal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

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
	// ErrInvalidView is returned when bytes are not a compact view of a Result,
	// or point at something that the tool result does not hold.
	ErrInvalidView = errors.New("invalid result view")
	// ErrInvalidRequest is returned for a JobRequest that is malformed; the
	// message names the member.
	ErrInvalidRequest = errors.New("invalid job request")
	// ErrInvalidResponse is returned when a JSON text is not a valid
	// SuccessResponse or ProblemDetails.
	ErrInvalidResponse = errors.New("invalid response")
	// ErrInvalidNotification is returned when a JSONRPCNotification, or its
	// JSON text, is no notification.
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

// Signal is the atomic unit of data. It never changes after creation: a value
// may be copied, shared and read from several goroutines. The zero Signal is
// not valid. See Create for the only way to make one.
type Signal struct{ form signalForm }

// ID is "sig_" and a ULID: unique, sortable by time.
func (s Signal) ID() string { return s.form.ID }

// Kind says what the signal carries.
func (s Signal) Kind() Kind { return s.form.Kind }

// Body returns a fresh copy of the payload; numbers are json.Number, exact.
func (s Signal) Body() map[string]any {
	m, err := decodeObject(s.form.Body.object())
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
	copied := make(map[string]string, len(s.form.Tags))
	for _, t := range s.form.Tags {
		copied[t.key] = t.value
	}
	return copied
}

// Tag returns one tag, "" when it is absent.
func (s Signal) Tag(key string) string { return s.form.Tags.value(key) }

// Equal reports whether both signals have the same JSON form.
func (s Signal) Equal(other Signal) bool {
	return bytes.Equal(encode(&s.form), encode(&other.form))
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
	return create(kind, body{raw: raw}, origin, traceID, tags, parentID)
}

func create(kind Kind, b body, origin ModuleRef, traceID string, given map[string]string, parentID string) (Signal, error) {
	if err := origin.Validate(); err != nil {
		return Signal{}, err
	}
	merged, err := mergeTags(origin, given)
	if err != nil {
		return Signal{}, err
	}
	return stamp(kind, b, origin, traceID, merged, parentID, Now()), nil
}

// stamp trusts its arguments: create and FromToolResult have checked them.
func stamp(kind Kind, b body, origin ModuleRef, traceID string, merged tags, parentID string, now time.Time) Signal {
	f := signalForm{
		ID: NewID("sig_"), Kind: kind, Body: b, Origin: origin, TraceID: traceID,
		Tags: merged, CreatedAt: now.UTC().Round(0),
	}
	if parentID != "" {
		f.ParentID = &parentID
	}
	return Signal{f}
}

// Option adds to a signal what its factory has no argument for.
type Option func(*lineage)

type lineage struct {
	tags   map[string]string
	parent string
	size   *int
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
	return create(Text, textBody(jsonrpc.Quote(text)), origin, traceID, tags, lineageOf(options).parent)
}

// CreateData makes a DATA signal with body {"data": data, "schema": schema},
// and "count" when data is a list. The schema is a type hint for readers.
// Refuses as Create does.
func CreateData(data any, schema string, origin ModuleRef, traceID string, tags map[string]string, options ...Option) (Signal, error) {
	raw, err := encodeValue(data)
	if err != nil {
		return Signal{}, err
	}
	return create(Data, dataBody(raw, schema), origin, traceID, tags, lineageOf(options).parent)
}

// CreateFile makes a FILE signal: a reference, never the bytes. An empty path
// is null, a file without a place in a file system. Refuses as Create does.
func CreateFile(fileID, fileType, path string, origin ModuleRef, traceID string, options ...Option) (Signal, error) {
	l := lineageOf(options)
	f := fileBody{ID: fileID, Type: fileType, Size: l.size}
	if path != "" {
		f.Path = &path
	}
	return create(File, f.body(), origin, traceID, l.tags, l.parent)
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
	l := lineageOf(options)
	return create(Data, dataBody(encode(err.form(0)), SchemaError), origin, traceID, l.tags, l.parent)
}

// ErrorOf gives the error that an error signal carries, and whether s is one.
func ErrorOf(s Signal) (*KernelError, bool) {
	if s.form.Kind != Data || s.form.Body.text("schema") != SchemaError {
		return nil, false
	}
	raw, _ := s.form.Body.member("data")
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

// tags are sorted by key.
type tags []tag

type tag struct{ key, value string }

// value returns the value of key, "" when it is absent.
func (ts tags) value(key string) string {
	for _, t := range ts {
		if t.key == key {
			return t.value
		}
	}
	return ""
}

// MarshalJSONTo writes an object.
func (ts tags) MarshalJSONTo(e *jsontext.Encoder) error {
	_ = e.WriteToken(jsontext.BeginObject) // what fails here fails at the end too
	for _, t := range ts {
		_ = e.WriteToken(jsontext.String(t.key))
		_ = e.WriteToken(jsontext.String(t.value))
	}
	return e.WriteToken(jsontext.EndObject)
}

// UnmarshalJSONFrom reads an object of strings.
func (ts *tags) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var m map[string]string
	err := json.UnmarshalDecode(d, &m)
	*ts = sortTags(m)
	return err
}

// tagRule is what a standard tag may say. A tag without a rule is free.
type tagRule struct {
	want string
	ok   func(value string) bool
}

var tagRules = map[string]tagRule{
	TagUrgency:    {"low, normal, high or critical", among("low", "normal", "high", "critical")},
	TagDomain:     {"a word", func(v string) bool { return v != "" }},
	TagComplexity: {"trivial, simple, moderate or complex", among("trivial", "simple", "moderate", "complex")},
	TagConfidence: {"a decimal from 0.0 to 1.0", ratio.MatchString},
	TagGrounding:  {"a decimal from 0.0 to 1.0", ratio.MatchString},
	TagSourceType: {"user, tool, agent or system", among("user", "tool", "agent", "system")},
}

func among(words ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(words, v) }
}

// ratio matches plain decimals only: readers in other languages disagree on
// exponents, signs and bare points.
var ratio = regexp.MustCompile(`^(0(\.[0-9]+)?|1(\.0+)?)$`)

func mergeTags(origin ModuleRef, given map[string]string) (tags, error) {
	merged := map[string]string{TagTier: strconv.Itoa(origin.Tier), TagModule: origin.Module, TagSourceType: "system"}
	maps.Copy(merged, given)
	sorted := sortTags(merged)
	return sorted, sorted.check()
}

func sortTags(m map[string]string) tags {
	sorted := make(tags, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		sorted = append(sorted, tag{k, m[k]})
	}
	return sorted
}

func (ts tags) check() error {
	for _, t := range ts {
		if t.key == "" || !utf8.ValidString(t.key) {
			return fmt.Errorf("%w: key %q is empty or no UTF-8", ErrInvalidTag, t.key)
		}
		if rule, ok := tagRules[t.key]; ok && !rule.ok(t.value) {
			return fmt.Errorf("%w: %s %q is not %s", ErrInvalidTag, t.key, t.value, rule.want)
		}
	}
	return nil
}
