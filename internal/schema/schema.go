// Package schema validates JSON against JSON Schemas that strangers wrote. It
// puts guards around github.com/santhosh-tekuri/jsonschema: nothing outside
// the schema is ever loaded, schemas that could loop or explode are refused
// when they are compiled, and what one validation may cost is bounded before
// it starts.
//
// Dialects: `$schema` decides among drafts 4, 6, 7, 2019-09 and 2020-12;
// without it 2020-12 holds; any other refuses the schema. `format` is asserted
// as each dialect says: checked in drafts 4, 6 and 7, an annotation without
// effect in 2019-09 and 2020-12. Content keywords are never asserted.
//
// Patterns run on Go's linear-time engine. One that it cannot express (look
// around, back references) runs on a backtracking engine under a time limit;
// Schema.Backtracking lists those.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// ErrTooCostly is in the chain of Validate's error when schema and instance
// together would take more work than one call is worth.
var ErrTooCostly = errors.New("validating would take too much work")

// maxInstance bounds what Validate decodes, in bytes. Doors and upstreams have
// tighter limits of their own.
const maxInstance = 64 << 20

const (
	// budget is how many visits of a subschema one validation may take on top
	// of perValue for each value of the instance; a visit takes 0.1 to 0.5 µs.
	budget   = 250_000
	perValue = 20
)

// Schema is a compiled schema. It is immutable and safe for concurrent use.
type Schema struct {
	compiled *jsonschema.Schema
	graph    *graph
	patterns []string
}

// Refused is why a schema was not compiled. Reason may quote the schema.
type Refused struct{ Reason string }

// Error says why in one line.
func (r *Refused) Error() string { return "schema refused: " + r.Reason }

func refused(format string, args ...any) *Refused {
	return &Refused{fmt.Sprintf(format, args...)}
}

// Compile compiles raw, a JSON object or boolean. The error is always a
// *Refused: the schema is not strict JSON, is larger than the guards allow,
// refers to anything outside itself but the metaschemas of the drafts, names
// an unknown dialect, refers to itself without looking deeper into the
// instance, expands beyond bounds, or is no valid schema. Whoever gets it must
// not let the tool be called.
func Compile(raw json.RawMessage) (*Schema, error) {
	s, err := compile(raw)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func compile(raw json.RawMessage) (s *Schema, fault *Refused) {
	defer func() {
		if r := recover(); r != nil {
			s, fault = nil, refused("compiling it failed: %s", clip(fmt.Sprint(r), maxReason))
		}
	}()
	doc, fault := inspect(raw)
	if fault != nil {
		return nil, fault
	}
	engine := &engine{known: map[string]jsonschema.Regexp{}}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nothing{})
	c.UseRegexpEngine(engine.compile)
	if err := c.AddResource(location, doc); err != nil {
		return nil, refused("%s", reason(err, doc))
	}
	compiled, err := c.Compile(location)
	if err != nil {
		return nil, refused("%s", reason(err, doc))
	}
	g, fault := newGraph(compiled)
	if fault != nil {
		return nil, fault
	}
	for _, n := range g.nodes {
		n.secret = n.sch.WriteOnly || text(subschema(doc, n.sch.Location)["format"]) == "password"
	}
	return &Schema{compiled: compiled, graph: g, patterns: engine.seal()}, nil
}

// Backtracking lists the patterns that the linear-time engine cannot express,
// in the order in which they were met. A match of one is stopped after a few
// milliseconds and then counts as a fault.
func (s *Schema) Backtracking() []string { return append([]string(nil), s.patterns...) }

// Validate holds instance to the schema. No faults and no error means valid;
// faults are sorted and at most 20. An error means that the validator itself
// failed or would have taken too much work (ErrTooCostly), or that instance is
// not strict JSON (*jsonrpc.Fault): callers must refuse the call then.
func (s *Schema) Validate(instance json.RawMessage) (faults []Fault, err error) {
	v, err := jsonrpc.Value(instance, jsonrpc.Limits{Bytes: maxInstance})
	if err != nil {
		return nil, fmt.Errorf("reading the value to validate: %w", err)
	}
	return s.ValidateValue(v)
}

// ValidateValue is Validate for a value that package jsonrpc has decoded.
func (s *Schema) ValidateValue(v any) (faults []Fault, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case slowMatch:
			faults, err = []Fault{r.fault()}, nil
		default:
			faults, err = nil, fmt.Errorf("validating against the schema: %s", clip(fmt.Sprint(r), maxReason))
		}
	}()
	// Without recursion the expanded schema bounds the visits of each value, which
	// decides nearly every call; else the visits are counted.
	size := measure(v)
	rough := s.graph.expanded * size
	if s.graph.unique {
		rough *= 1 + size/256
	}
	if s.graph.recursive || rough > budget {
		m := meter{left: budget + perValue*size}
		if m.visit(v, s.graph.nodes[0]); m.left < 0 {
			return nil, ErrTooCostly
		}
	}
	err = s.compiled.Validate(v)
	if err == nil {
		return nil, nil
	}
	var failed *jsonschema.ValidationError
	if !errors.As(err, &failed) {
		return nil, fmt.Errorf("validating against the schema: %w", err)
	}
	return newReport(s.graph, v).read(failed)
}

// measure counts the values and 32-byte pieces of strings and names.
func measure(v any) float64 {
	switch v := v.(type) {
	case map[string]any:
		n := 1.0
		for key, item := range v {
			n += float64(len(key))/32 + measure(item)
		}
		return n
	case []any:
		n := 1.0
		for _, item := range v {
			n += measure(item)
		}
		return n
	case string:
		return 1 + float64(len(v))/32
	}
	return 1
}
