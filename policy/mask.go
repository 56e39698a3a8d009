package policy

import "encoding/json"

// Mask says what of a decision its event in the decision log may not tell: what
// data.system.log.drop and .mask of a policy answer.
type Mask struct {
	Drop  bool // there is no event
	Rules []MaskRule
}

// MaskRule hides one value of an event.
type MaskRule struct {
	// Path points (RFC 6901) at it, from the event: its first part is input,
	// result or nd_builtin_cache.
	Path string
	// Value is put in its place; nil removes it.
	Value json.RawMessage
}
