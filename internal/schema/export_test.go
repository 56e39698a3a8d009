package schema

import (
	"bytes"
	"encoding/json"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// MaxKept is how many subschemas have a place in memory.
var MaxKept = len(kept.places)

// Kept reports whether the compiled form of s is in memory.
func (s *Schema) Kept() bool { return s.form.Load().Value() != nil }

// Accepts reports whether instance is accepted where it stands, without the library.
func (s *Schema) Accepts(instance json.RawMessage) bool {
	f := s.load()
	return len(instance) <= f.inPlace && f.graph.nodes[0].accepts(instance)
}

// Library is ValidateAccepted with nothing accepted where it stands.
func (s *Schema) Library(instance json.RawMessage) ([]Fault, error) {
	f, plain := s.load(), new(Schema)
	plain.keep(&form{compiled: f.compiled, graph: f.graph})
	return plain.ValidateAccepted(instance)
}

// Certainly reports whether o accepts instance without its compiled form.
func (o *Own) Certainly(instance json.RawMessage) bool {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(instance))
	return err == nil && o.certainly(v)
}
