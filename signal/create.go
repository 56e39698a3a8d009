package signal

import (
	"maps"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

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
		return nil, false
	}
	return &e, true
}
