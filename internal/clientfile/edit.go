package clientfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"
)

// ErrForm is returned for a file whose form does not let one entry be changed alone.
var ErrForm = errors.New("the file cannot be edited without touching something else")

// Edit sets or removes one entry.
type Edit struct {
	Container []string        // keys that lead to the entries; at least one
	Key       string          // the member that names an entry of a list; "" = the entries are members of an object
	Name      string          // of the entry
	Value     json.RawMessage // of the entry, in JSON whatever the format; nil = remove it
}

// mark is the byte order mark that editors on Windows write.
var mark = []byte("\ufeff")

// Apply returns data with the edits made, in a format: "json" (comments and trailing
// commas are accepted), "toml" or "yaml". Comments, order and the form of everything
// else stay. The result is parsed again, and the error is ErrForm when anything but
// the entries differs. An edit that changes nothing leaves data as it is.
func Apply(format string, data []byte, edits ...Edit) ([]byte, error) {
	data, marked := bytes.CutPrefix(data, mark)
	for _, e := range edits {
		var err error
		if data, err = e.apply(format, data); err != nil {
			return nil, err
		}
	}
	if marked {
		data = slices.Concat(mark, data)
	}
	return data, nil
}

func (e Edit) apply(format string, data []byte) ([]byte, error) {
	want, err := readTree(format, data)
	if err != nil {
		return nil, err
	}
	changed, err := e.change(want)
	if err != nil || !changed {
		return data, err
	}
	write := map[string]func(Edit, []byte) ([]byte, error){"json": editJSON, "toml": editTOML, "yaml": editYAML}[format]
	after, err := write(e, data)
	if err != nil {
		return nil, err
	}
	got, err := readTree(format, after)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForm, err)
	}
	dropEmpty(want, e.Container)
	dropEmpty(got, e.Container)
	if !reflect.DeepEqual(want, got) {
		return nil, ErrForm
	}
	return after, nil
}

// readTree parses a file of a format into what JSON can say.
func readTree(format string, data []byte) (map[string]any, error) {
	var tree any = map[string]any{}
	var err error
	switch format {
	case "json":
		var plain []byte
		if plain, err = hujson.Standardize(slices.Clone(orEmpty(data))); err == nil {
			return decodeJSON(plain)
		}
	case "toml":
		err = toml.Unmarshal(data, &tree)
	case "yaml":
		err = yaml.Unmarshal(data, &tree)
	default:
		return nil, fmt.Errorf("unknown format %q", format)
	}
	var text []byte
	if err == nil {
		text, err = json.Marshal(tree)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", format, err)
	}
	return decodeJSON(text)
}

// orEmpty returns an empty object in the place of a blank file.
func orEmpty(data []byte) []byte {
	if len(bytes.TrimSpace(data)) == 0 {
		return []byte("{}\n")
	}
	return data
}

func decodeJSON(text []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("reading json: %w", err)
	}
	if tree == nil {
		return map[string]any{}, nil
	}
	object, ok := tree.(map[string]any)
	if !ok {
		return nil, errors.New("the file is not one object")
	}
	return object, nil
}

// change makes the edit in a parsed file.
func (e Edit) change(root map[string]any) (changed bool, err error) {
	last := len(e.Container) - 1
	for _, key := range e.Container[:last] {
		next, ok := root[key].(map[string]any)
		switch {
		case root[key] != nil && !ok:
			return false, fmt.Errorf("%w: %q is not an object", ErrForm, key)
		case !ok && e.Value == nil:
			return false, nil
		case !ok:
			next = map[string]any{}
			root[key] = next
		}
		root = next
	}
	var value any
	if e.Value != nil {
		dec := json.NewDecoder(bytes.NewReader(e.Value))
		dec.UseNumber()
		if err := dec.Decode(&value); err != nil {
			return false, fmt.Errorf("reading the entry: %w", err)
		}
	}
	if e.Key != "" {
		return e.changeList(root, e.Container[last], value)
	}
	return e.changeObject(root, e.Container[last], value)
}

func (e Edit) changeObject(parent map[string]any, key string, value any) (changed bool, err error) {
	entries, ok := parent[key].(map[string]any)
	if parent[key] != nil && !ok {
		return false, fmt.Errorf("%w: %q is not an object", ErrForm, key)
	}
	was, present := entries[e.Name]
	switch {
	case e.Value == nil:
		delete(entries, e.Name)
		return present, nil
	case reflect.DeepEqual(was, value):
		return false, nil
	case entries == nil:
		entries = map[string]any{}
		parent[key] = entries
	}
	entries[e.Name] = value
	return true, nil
}

func (e Edit) changeList(parent map[string]any, key string, value any) (changed bool, err error) {
	entries, ok := parent[key].([]any)
	if parent[key] != nil && !ok {
		return false, fmt.Errorf("%w: %q is not a list", ErrForm, key)
	}
	i := slices.IndexFunc(entries, func(entry any) bool {
		object, ok := entry.(map[string]any)
		return ok && object[e.Key] == e.Name
	})
	switch {
	case e.Value == nil && i < 0:
		return false, nil
	case e.Value == nil:
		parent[key] = slices.Delete(entries, i, i+1)
	case i < 0:
		parent[key] = append(entries, value)
	case reflect.DeepEqual(entries[i], value):
		return false, nil
	default:
		entries[i] = value
	}
	return true, nil
}

// dropEmpty removes a container without entries: formats differ in how they write one.
func dropEmpty(root map[string]any, container []string) {
	key := container[0]
	if next, ok := root[key].(map[string]any); ok && len(container) > 1 {
		dropEmpty(next, container[1:])
	}
	switch v := root[key].(type) {
	case nil:
		delete(root, key)
	case map[string]any:
		if len(v) == 0 {
			delete(root, key)
		}
	case []any:
		if len(v) == 0 {
			delete(root, key)
		}
	}
}

// splice returns data with the bytes from one offset to another replaced.
func splice(data []byte, from, to int, text string) []byte {
	return slices.Concat(data[:from], []byte(text), data[to:])
}

// lineEnd returns how the lines of data end.
func lineEnd(data []byte) string {
	if bytes.Contains(data, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// lineStart returns where the line of an offset begins.
func lineStart(data []byte, at int) int { return bytes.LastIndexByte(data[:at], '\n') + 1 }
