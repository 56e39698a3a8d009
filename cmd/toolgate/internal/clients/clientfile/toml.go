package clientfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/tailscale/hujson"
)

// editTOML removes the tables and the keys of the entry, and adds its new form as one
// table at the end.
func editTOML(e Edit, data []byte) ([]byte, error) {
	if e.Key != "" || len(e.Container) == 0 {
		return nil, fmt.Errorf("%w: in TOML only tables are edited", ErrForm)
	}
	path := append(slices.Clone(e.Container), e.Name)
	t := linesOf(data)
	if err := t.removeTables(data, path); err != nil || e.Value == nil {
		return t.bytes(), err
	}
	var entry map[string]any
	dec := json.NewDecoder(bytes.NewReader(e.Value))
	dec.UseNumber()
	if err := dec.Decode(&entry); err != nil {
		return nil, fmt.Errorf("reading the entry: %w", err)
	}
	for i, key := range path {
		path[i] = tomlKey(key)
	}
	table := "[" + strings.Join(path, ".") + "]\n" // those below it inline
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		table += tomlKey(key) + " = " + tomlValue(entry[key]) + "\n"
	}
	if len(t.lines) > 0 {
		table = "\n" + table
	}
	t.replace(len(t.lines), len(t.lines), table)
	return t.bytes(), nil
}

// removeTables takes out everything at a path or below it, and one blank line above.
// Comments above stay.
func (t *text) removeTables(data []byte, path []string) error {
	var starts []int // of the parts of the file that are at the path, and in between those that are not
	var table []string
	p := unstable.Parser{}
	p.Reset(data)
	for p.NextExpression() {
		x := p.Expression()
		keys, at := slices.Clone(table), 0
		if x.Kind != unstable.KeyValue {
			keys = nil
		}
		for it := x.Key(); it.Next(); {
			at = cmp.Or(at, int(it.Node().Raw.Offset))
			keys = append(keys, string(it.Node().Data))
		}
		if x.Kind != unstable.KeyValue {
			table = keys
		}
		if ours := len(keys) >= len(path) && slices.Equal(keys[:len(path)], path); ours == (len(starts)%2 == 0) {
			starts = append(starts, bytes.Count(data[:at], []byte("\n")))
		}
	}
	if err := p.Error(); err != nil {
		return fmt.Errorf("reading toml: %w", err)
	}
	if len(starts)%2 == 1 {
		starts = append(starts, len(t.lines))
	}
	for i := len(starts) - 2; i >= 0; i -= 2 {
		from, to := starts[i], t.trim(starts[i], starts[i+1])
		if from > 1 && strings.Trim(t.lines[from-1], "\r\n") == "" {
			from--
		}
		t.replace(from, to, "")
	}
	return nil
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return string(hujson.String(key))
}

func tomlValue(v any) string {
	switch v := v.(type) {
	case string:
		return string(hujson.String(v))
	case []any:
		parts := make([]string, len(v))
		for i, element := range v {
			parts[i] = tomlValue(element)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, tomlKey(key)+" = "+tomlValue(v[key]))
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	return fmt.Sprint(v)
}
