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
	Container []string        // keys that lead to the entries; none = the entry is a member of the file (in JSON only)
	Key       string          // the member that names an entry of a list; "" = the entries are members of an object
	Name      string          // of the entry
	Value     json.RawMessage // of the entry, in JSON whatever the format; nil = remove it
	Keep      bool            // Value is only for a file without the entry
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
	before, err := readTree(format, data)
	if err != nil {
		return nil, err
	}
	var value any
	if e.Value != nil {
		if value, err = decodeJSON(e.Value); err != nil {
			return nil, err
		}
	}
	was, err := e.take(before)
	if err != nil || reflect.DeepEqual(was, value) || e.Keep && was != nil && value != nil {
		return data, err
	}
	write := map[string]func(Edit, []byte) ([]byte, error){"json": editJSON, "toml": editTOML, "yaml": editYAML}[format]
	data, err = write(e, data)
	if err != nil {
		return nil, err
	}
	after, err := readTree(format, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForm, err)
	}
	if is, err := e.take(after); err != nil || !reflect.DeepEqual(is, value) || !reflect.DeepEqual(before, after) {
		return nil, ErrForm
	}
	return data, nil
}

// take removes the entry from a parsed file, and returns it; nil = there is none. It also
// removes containers that have no entry then, for formats differ in how they write them.
func (e Edit) take(root map[string]any) (entry any, err error) {
	if len(e.Container) == 0 {
		entry = root[e.Name]
		delete(root, e.Name)
		return entry, nil
	}
	key := e.Container[0]
	defer func() {
		if empty(root[key]) {
			delete(root, key)
		}
	}()
	switch in := root[key].(type) {
	case nil:
		return nil, nil
	case map[string]any:
		if len(e.Container) > 1 {
			e.Container = e.Container[1:]
			return e.take(in)
		}
		if e.Key == "" {
			entry = in[e.Name]
			delete(in, e.Name)
			return entry, nil
		}
	case []any:
		if len(e.Container) > 1 || e.Key == "" {
			break
		}
		i := slices.IndexFunc(in, func(element any) bool {
			object, ok := element.(map[string]any)
			return ok && object[e.Key] == e.Name
		})
		if i >= 0 {
			entry = in[i]
			root[key] = slices.Delete(in, i, i+1)
		}
		return entry, nil
	}
	return nil, fmt.Errorf("%w: %q holds something else", ErrForm, key)
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// readTree parses a file of a format into what JSON can say.
func readTree(format string, data []byte) (map[string]any, error) {
	var tree any
	var err error
	switch format {
	case "json":
		data, err = hujson.Standardize(slices.Clone(orEmpty(data)))
	case "toml":
		err = toml.Unmarshal(data, &tree)
	case "yaml":
		err = yaml.Unmarshal(data, &tree)
	default:
		return nil, fmt.Errorf("unknown format %q", format)
	}
	if err == nil && format != "json" {
		data, err = json.Marshal(tree)
	}
	if err == nil {
		tree, err = decodeJSON(data)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", format, err)
	}
	root, ok := tree.(map[string]any)
	switch {
	case tree == nil:
		return map[string]any{}, nil
	case !ok:
		return nil, errors.New("the file is not one object")
	}
	return root, nil
}

// decodeJSON reads a value, with numbers as they are written.
func decodeJSON(text []byte) (value any, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err = dec.Decode(&value)
	return value, err
}

// orEmpty returns an empty object in the place of a blank file.
func orEmpty(data []byte) []byte {
	if len(bytes.TrimSpace(data)) == 0 {
		return []byte("{}\n")
	}
	return data
}
