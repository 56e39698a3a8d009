package decisionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/policy"
)

// errShape is a mask that leads through something that has no members: what it
// was written to hide may be there instead.
var errShape = errors.New("masking event: a path leads through what is neither an object nor a list by that index")

// gone stands in the place of a removed value until all rules are applied, so
// that the indices of a list mean what they meant when the rules were made.
type gone struct{}

// hide applies rules to the input and the result of e, and to who asked, who
// stands in the input. What a path does not lead to is hidden already. After an
// error e must not be shipped.
func (e *Event) hide(rules []policy.MaskRule) error {
	document := map[string]any{}
	for name, raw := range map[string]json.RawMessage{"input": e.Input, "result": e.Result} {
		if len(raw) == 0 {
			continue
		}
		v, err := decode(raw)
		if err != nil {
			return fmt.Errorf("masking event: %w", err)
		}
		document[name] = v
	}
	for _, r := range rules {
		if err := e.apply(document, r); err != nil {
			return err
		}
	}
	e.RequestedBy = subject(document)
	for name, to := range map[string]*json.RawMessage{"input": &e.Input, "result": &e.Result} {
		*to = nil
		v, there := swept(document)[name]
		if !there {
			continue
		}
		var err error
		if *to, err = encode(v); err != nil {
			return fmt.Errorf("masking event: %w", err)
		}
	}
	return nil
}

func (e *Event) apply(document map[string]any, r policy.MaskRule) error {
	var value any = gone{}
	if r.Value != nil {
		var err error
		if value, err = decode(r.Value); err != nil {
			return fmt.Errorf("masking event: %w", err)
		}
	}
	done, err := replace(document, steps(r.Path), value)
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

// steps are the parts of a pointer (RFC 6901) that begins with a slash.
func steps(path string) []string {
	parts := strings.Split(path[1:], "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts
}

// replace puts value at path below node, and reports whether it did. What was
// removed stays so. Objects that are not there are made for a value, as OPA does.
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

// swept is node without what was removed.
func swept[T any](node T) T {
	switch v := any(node).(type) {
	case map[string]any:
		for name, child := range v {
			if child == (gone{}) {
				delete(v, name)
				continue
			}
			v[name] = swept(child)
		}
	case []any:
		kept := v[:0]
		for _, child := range v {
			if child != (gone{}) {
				kept = append(kept, swept(child))
			}
		}
		return any(kept).(T)
	}
	return node
}

// subject is who asked, as far as the document still has it.
func subject(document map[string]any) string {
	input, _ := document["input"].(map[string]any)
	principal, _ := input["principal"].(map[string]any)
	s, _ := principal["subject"].(string)
	return s
}

// decode reads one JSON value, numbers exact.
func decode(raw json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return v, d.Decode(&v)
}
