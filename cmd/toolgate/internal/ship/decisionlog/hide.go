package decisionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/policy"
)

// errShape reports a mask whose path leads through a value that has no members: what
// the mask was written to hide may be elsewhere.
var errShape = errors.New("a path leads through what is neither an object nor a list by that index")

// gone replaces a removed value until all rules are applied, so that the indices of a
// list stay as they were when the rules were made.
type gone struct{}

// maskedParts are the parts of an Event that a mask may change.
type maskedParts struct {
	Input  json.RawMessage `json:"input,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// hide applies rules to the input and the result of e, and to RequestedBy, which is
// in the input. A path that leads to nothing is already hidden. After an error e must
// not be shipped.
func (e *Event) hide(rules []policy.MaskRule) error {
	parts := maskedParts{e.Input, e.Result}
	document := map[string]any{}
	text, err := encode(parts)
	if err == nil {
		err = decode(text, &document)
	}
	for _, r := range rules {
		if err == nil {
			err = e.apply(document, r)
		}
	}
	if err == nil {
		text, err = encode(sweep(document))
	}
	parts = maskedParts{}
	if err == nil {
		err = json.Unmarshal(text, &parts)
	}
	if err != nil {
		return fmt.Errorf("masking event: %w", err)
	}
	input, _ := document["input"].(map[string]any)
	principal, _ := input["principal"].(map[string]any)
	e.RequestedBy, _ = principal["subject"].(string) // "" when it was removed
	e.Input, e.Result = parts.Input, parts.Result
	return nil
}

func (e *Event) apply(document map[string]any, r policy.MaskRule) error {
	var value any = gone{}
	if r.Value != nil {
		if err := decode(r.Value, &value); err != nil {
			return err
		}
	}
	done, err := replace(document, slices.Collect(jsontext.Pointer(r.Path).Tokens()), value)
	switch {
	case err != nil || !done:
		return err
	case r.Value == nil:
		e.Erased = append(e.Erased, r.Path)
	default:
		e.Masked = append(e.Masked, r.Path)
	}
	return nil
}

// replace sets value at path below node, and reports whether it did. A removed value
// stays removed. Missing objects on the path are created for a value, as OPA does.
func replace(node any, path []string, value any) (bool, error) {
	switch v := node.(type) {
	case map[string]any:
		return replaceMember(v, path, value)
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 {
			return false, errShape
		}
		if i >= len(v) || v[i] == (gone{}) {
			return false, nil
		}
		if len(path) == 1 {
			v[i] = value
			return true, nil
		}
		return replace(v[i], path[1:], value)
	}
	return false, errShape
}

func replaceMember(object map[string]any, path []string, value any) (bool, error) {
	child, there := object[path[0]]
	remove := value == gone{}
	switch {
	case child == gone{} || !there && remove:
		return false, nil
	case len(path) == 1:
		object[path[0]] = value
		return true, nil
	case !there:
		child = map[string]any{}
		object[path[0]] = child
	}
	return replace(child, path[1:], value)
}

// sweep removes the removed values from node and returns it.
func sweep(node any) any {
	isGone := func(child any) bool { return child == gone{} }
	switch v := node.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, child any) bool { return isGone(child) })
		for name, child := range v {
			v[name] = sweep(child)
		}
	case []any:
		v = slices.DeleteFunc(v, isGone)
		for i, child := range v {
			v[i] = sweep(child)
		}
		return v
	}
	return node
}

// decode decodes one JSON value; numbers stay exact.
func decode(raw json.RawMessage, to any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(to)
}
