package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// MaxBytes is the size of the largest schema that compiles.
const MaxBytes = 64 << 10

// The other guards. Real tool schemas stay far below all of them.
const (
	// maxNesting counts JSON levels. A definition arrives inside a message,
	// which may have 64; a level of properties takes two, so 32 would refuse
	// real tools at a depth of about fifteen.
	maxNesting = 64
	// maxObjects counts the JSON objects of a schema; each may be a subschema.
	maxObjects = 2000
	// maxIDs counts embedded resources: the compiler compares each with each.
	maxIDs = 64
	// maxRefs counts references.
	maxRefs = 1000
	// maxOddRefs counts distinct references that go elsewhere than to a
	// definition: where no keyword leads, each costs the compiler a pass over
	// all that it knows.
	maxOddRefs = 100
	// maxReason cuts messages, in bytes.
	maxReason = 300

	// location is the address of a schema without an id. It must have a path,
	// or relative references would resolve to the schema itself.
	location = "https://schema.toolgate.invalid/root"
)

// nothing is the loader: a schema of an untrusted server must not make this
// process read files or open connections. The metaschemas are built into the
// library and do not pass here.
type nothing struct{}

// errOutside is returned for every address.
var errOutside = errors.New("references outside the schema are not followed")

// Load refuses.
func (nothing) Load(string) (any, error) { return nil, errOutside }

// inspect decodes the schema and applies the guards that need no compiler.
func inspect(raw json.RawMessage) (any, *Refused) {
	doc, err := jsonrpc.Value(raw, jsonrpc.Limits{Bytes: MaxBytes, Depth: maxNesting})
	if err != nil {
		return nil, refused("%v", err)
	}
	switch doc := doc.(type) {
	case bool:
		return doc, nil
	case map[string]any:
		c := census{odd: map[string]bool{}}
		c.count(doc)
		return doc, c.judge()
	}
	return nil, refused("a schema must be an object or a boolean")
}

// census counts what makes compiling expensive.
type census struct {
	objects, ids, refs int
	odd                map[string]bool
}

func (c *census) count(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			c.count(item)
		}
	case map[string]any:
		c.objects++
		for key, item := range v {
			switch key {
			case "$id", "id":
				c.ids++
			case "$ref", "$dynamicRef", "$recursiveRef":
				c.refs++
				if to, ok := item.(string); ok && !plainRef(to) {
					c.odd[to] = true
				}
			}
			c.count(item)
		}
	}
}

// plainRef reports a reference to the whole, an anchor or a definition.
func plainRef(to string) bool {
	_, fragment, _ := strings.Cut(to, "#")
	for _, place := range []string{"/$defs/", "/definitions/"} {
		if name, ok := strings.CutPrefix(fragment, place); ok {
			return !strings.Contains(name, "/")
		}
	}
	return !strings.Contains(fragment, "/")
}

func (c *census) judge() *Refused {
	switch {
	case c.objects > maxObjects:
		return refused("more than %d subschemas", maxObjects)
	case c.ids > maxIDs:
		return refused("more than %d ids", maxIDs)
	case c.refs > maxRefs:
		return refused("more than %d references", maxRefs)
	case len(c.odd) > maxOddRefs:
		return refused("more than %d references to other places than definitions", maxOddRefs)
	}
	return nil
}

// reason turns a compiler's error into one short line.
func reason(err error, doc any) string {
	var load *jsonschema.LoadURLError
	if errors.As(err, &load) {
		return fmt.Sprintf("it refers to %s: %v", clip(load.URL, 100), load.Err)
	}
	var bad *jsonschema.SchemaValidationError
	var cause *jsonschema.ValidationError
	if errors.As(err, &bad) && errors.As(bad.Err, &cause) {
		faults, err := newReport(nil, doc).read(cause)
		if err == nil && len(faults) > 0 {
			return clip("not a valid schema: "+faults[0].String(), maxReason)
		}
	}
	return clip(strings.Join(strings.Fields(err.Error()), " "), maxReason)
}

// clip cuts s to at most n bytes, between runes.
func clip(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:n-3], "") + "..."
}
