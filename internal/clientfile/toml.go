package clientfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// editTOML removes the tables and the keys of the entry, and adds its new form as one
// table at the end.
func editTOML(e Edit, data []byte) ([]byte, error) {
	if e.Key != "" {
		return nil, fmt.Errorf("%w: lists of TOML are not edited", ErrForm)
	}
	path := append(slices.Clone(e.Container), e.Name)
	data, err := removeTables(data, path)
	if err != nil || e.Value == nil {
		return data, err
	}
	text, err := tomlTable(path, e.Value)
	if err != nil {
		return nil, err
	}
	newline := lineEnd(data)
	switch {
	case len(data) == 0:
	case bytes.HasSuffix(data, []byte("\n")):
		text = "\n" + text
	default: // the file keeps its last line without an end
		text = "\n\n" + strings.TrimSuffix(text, "\n")
	}
	return append(slices.Clone(data), strings.ReplaceAll(text, "\n", newline)...), nil
}

// expression is a table header, or a key with its value.
type expression struct {
	line int // offset of its first line
	ours bool
}

// removeTables takes out everything at a path or below it. Comments above stay.
func removeTables(data []byte, path []string) ([]byte, error) {
	var all []expression
	var table []string
	p := unstable.Parser{}
	p.Reset(data)
	for p.NextExpression() {
		x := p.Expression()
		var keys []string
		at := -1
		for it := x.Key(); it.Next(); {
			if at < 0 {
				at = int(it.Node().Raw.Offset)
			}
			keys = append(keys, string(it.Node().Data))
		}
		switch x.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = keys
		default:
			keys = slices.Concat(table, keys)
		}
		ours := len(keys) >= len(path) && slices.Equal(keys[:len(path)], path)
		all = append(all, expression{line: lineStart(data, max(at, 0)), ours: ours})
	}
	if err := p.Error(); err != nil {
		return nil, fmt.Errorf("reading toml: %w", err)
	}
	for i := len(all) - 1; i >= 0; i-- {
		end := i + 1
		for ; i > 0 && all[i].ours && all[i-1].ours; i-- {
			continue
		}
		if all[i].ours {
			data = removeLines(data, all[i].line, lineOf(all, end, len(data)))
		}
	}
	return data, nil
}

// lineOf returns the line of the expression after an entry, or the end of the file.
func lineOf(all []expression, i, end int) int {
	if i < len(all) {
		return all[i].line
	}
	return end
}

// removeLines takes out lines, but for blank lines and comments at their end, and one
// blank line above.
func removeLines(data []byte, from, to int) []byte {
	to = from + trimNotes(data[from:to])
	atEnd := to == len(data) && !bytes.HasSuffix(data, []byte("\n"))
	for _, blank := range []string{"\r\n\r\n", "\n\n"} {
		if bytes.HasSuffix(data[:from], []byte(blank)) {
			from -= len(blank) / 2
			break
		}
	}
	if atEnd {
		from = len(bytes.TrimSuffix(bytes.TrimSuffix(data[:from], []byte("\n")), []byte("\r")))
	}
	return splice(data, from, to, "")
}

// trimNotes returns the length of text without the blank lines and comments at its end.
func trimNotes(text []byte) int {
	end := len(text)
	for end > 0 {
		start := lineStart(text, end-1)
		line := bytes.TrimSpace(text[start:end])
		if len(line) > 0 && line[0] != '#' {
			break
		}
		end = start
	}
	return end
}

// tomlTable writes an object as a table, tables below it inline.
func tomlTable(path []string, value json.RawMessage) (string, error) {
	var entry map[string]any
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	if err := dec.Decode(&entry); err != nil {
		return "", fmt.Errorf("reading the entry: %w", err)
	}
	quoted := make([]string, len(path))
	for i, key := range path {
		quoted[i] = tomlKey(key)
	}
	text := "[" + strings.Join(quoted, ".") + "]\n"
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		text += tomlKey(key) + " = " + tomlValue(entry[key]) + "\n"
	}
	return text, nil
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return string(quote(key))
}

func tomlValue(v any) string {
	switch v := v.(type) {
	case string:
		return string(quote(v))
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
