package signal

import (
	"encoding/json"
	"fmt"
)

// Compact gives the view of a Result that travels beside an MCP tool result:
// {status, signals, error?, metrics, reason?}, where a signal has "ref", a
// JSON Pointer into that tool result, in place of its body. refs are those of
// FromToolResult, one per signal in order; a signal beyond them, or with the
// ref "", keeps its body. Expand is the inverse. It never fails.
func Compact(r Result, refs []string) json.RawMessage {
	return appendResult(make([]byte, 0, 512+384*len(r.Signals)), &r, refs, true)
}

// Expand gives back the Result of a compact view and the tool result it points
// into. It returns ErrInvalidView for a view that is malformed or points at
// nothing, ErrInvalidToolResult for bytes that are no tool result; the Result
// it returns passes ValidateResult.
func Expand(view, toolResult json.RawMessage) (Result, error) {
	var in resultJSON
	if err := decodeStrict(view, &in); err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrInvalidView, err)
	}
	source := source{result: toolResult}
	out, err := in.result(source.read)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrInvalidView, err)
	}
	return out, nil
}

// source finds payloads by their ref.
type source struct {
	result []byte
	from   ModuleRef // what payloads were made for
	tool   string
	parts  []payload // nil until split
}

func (src *source) read(in *signalJSON) (Signal, error) {
	if in.Ref == nil {
		return in.signal()
	}
	s := in.envelope()
	if len(in.Body) > 0 {
		return Signal{}, fmt.Errorf("%w: both body and ref", ErrInvalidBody)
	}
	if err := src.split(s.origin, s.Tag(TagTool)); err != nil {
		return Signal{}, err
	}
	for _, p := range src.parts {
		if p.ref == *in.Ref && p.kind == s.kind {
			s.body = p.body
			return s, s.check()
		}
	}
	return Signal{}, fmt.Errorf("%w: nothing of kind %s at %q", ErrInvalidBody, s.kind, *in.Ref)
}

// split takes the result apart; error signals name their origin and tool in
// the body, so those decide whether the parts at hand still fit.
func (src *source) split(origin ModuleRef, tool string) error {
	if src.parts != nil && src.from == origin && src.tool == tool {
		return nil
	}
	parts, err := split(src.result, origin, tool)
	src.parts, src.from, src.tool = parts, origin, tool
	return err
}
