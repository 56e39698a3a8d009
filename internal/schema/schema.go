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
// around, back references) runs on a backtracking engine under a time limit.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"weak"

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

// Schema is a schema that compiles. It is immutable and safe for concurrent use. Its
// compiled form takes some fifteen times the memory of its text, so that only the
// latest forms are kept, and one that is needed again is made again.
type Schema struct {
	raw    json.RawMessage
	secret bool // some subschema is
	form   atomic.Pointer[weak.Pointer[form]]
}

// form is a compiled schema.
type form struct {
	compiled *jsonschema.Schema
	graph    *graph
	inPlace  int // size in bytes up to which node.accepts judges an instance: its cost cannot exceed the budget
}

// kept keeps the latest forms in memory. A form has a place for each of its
// subschemas, which take two kilobytes each, until all of them are taken by others.
var kept struct {
	places [8192]atomic.Pointer[form]
	next   atomic.Uint32
}

func (s *Schema) keep(f *form) {
	w := weak.Make(f)
	s.form.Store(&w)
	for range f.graph.nodes {
		kept.places[kept.next.Add(1)%uint32(len(kept.places))].Store(f)
	}
}

// load returns the form of s, which it makes again when it is not kept.
func (s *Schema) load() *form {
	f := s.form.Load().Value()
	if f == nil {
		var err error
		if f, err = compile(s.raw); err != nil {
			panic(err) // it compiled before
		}
		s.keep(f)
	}
	return f
}

// Refused is why a schema was not compiled. Reason may quote the schema.
type Refused struct{ Reason string }

// Error says why in one line.
func (r *Refused) Error() string { return "schema refused: " + r.Reason }

func refused(format string, args ...any) *Refused {
	return &Refused{fmt.Sprintf(format, args...)}
}

// Compile compiles raw, a JSON object or boolean, which must not change. The error is always a
// *Refused: the schema is not strict JSON, is larger than the guards allow,
// refers to anything outside itself but the metaschemas of the drafts, names
// an unknown dialect, refers to itself without looking deeper into the
// instance, expands beyond bounds, or is no valid schema. Whoever gets it must
// not let the tool be called.
func Compile(raw json.RawMessage) (*Schema, error) {
	f, err := compile(raw)
	if err != nil {
		return nil, err
	}
	s := &Schema{raw: raw, secret: slices.ContainsFunc(f.graph.nodes, func(n *node) bool { return n.secret })}
	s.keep(f)
	return s, nil
}

func compile(raw json.RawMessage) (f *form, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, refused("compiling it failed: %s", clip(fmt.Sprint(r), maxReason))
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
	engine.sealed, engine.bytes = true, 0
	f = &form{compiled: compiled, graph: g}
	if !g.recursive && !g.unique && !engine.slow { // a match that takes too long is a fault, whatever the other branches say
		f.inPlace = int(budget / g.expanded)
	}
	for _, n := range g.nodes {
		n.prepare()
		n.secret = n.sch.WriteOnly || textOf(subschema(doc, n.sch.Location)["format"]) == "password"
	}
	return f, nil
}

// Validate holds instance to the schema. No faults and no error means valid;
// faults are sorted and at most 20. An error means that the validator itself
// failed or would have taken too much work (ErrTooCostly), or that instance is
// not strict JSON (*jsonrpc.Fault): callers must refuse the call then.
func (s *Schema) Validate(instance json.RawMessage) (faults []Fault, err error) {
	instance, _, err = jsonrpc.CheckValue(instance, jsonrpc.Limits{Bytes: maxInstance, Depth: jsonrpc.MostLimits().Depth})
	if err != nil {
		return nil, fmt.Errorf("reading the value to validate: %w", err)
	}
	return s.ValidateAccepted(instance)
}

// ValidateAccepted is Validate for an instance that a strict pass has accepted. What
// certainly fits is accepted where it stands; all else the library judges.
func (s *Schema) ValidateAccepted(instance json.RawMessage) (faults []Fault, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case slowMatch:
			faults, err = []Fault{r.fault()}, nil
		default:
			faults, err = nil, fmt.Errorf("validating against the schema: %s", clip(fmt.Sprint(r), maxReason))
		}
	}()
	f := s.load()
	if len(instance) <= f.inPlace && f.graph.nodes[0].accepts(instance) {
		return nil, nil
	}
	return f.validate(jsonrpc.Accepted(instance))
}

// validate holds a value that package jsonrpc has decoded to the schema. It may panic.
func (f *form) validate(v any) ([]Fault, error) {
	// Without recursion the expanded schema bounds the visits of each value, which
	// decides nearly every call; else the visits are counted.
	size := measure(v)
	rough := f.graph.expanded * size
	if f.graph.unique {
		rough *= 1 + size/256
	}
	if f.graph.recursive || rough > budget {
		m := meter{left: budget + perValue*size}
		if m.visit(v, f.graph.nodes[0]); m.left < 0 {
			return nil, ErrTooCostly
		}
	}
	err := f.compiled.Validate(v)
	if err == nil {
		return nil, nil
	}
	var failed *jsonschema.ValidationError
	if !errors.As(err, &failed) {
		return nil, fmt.Errorf("validating against the schema: %w", err)
	}
	return newReport(f.graph, v).read(failed)
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
