package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// shape is what the reference says of a JSON Schema.
type shape struct {
	Type, Format, Description          string
	Default                            any
	Enum, Required                     []string
	Minimum, Maximum, ExclusiveMinimum json.Number
	Properties                         map[string]*shape
	AdditionalProperties               json.RawMessage // false, or the schema of members with any name
	AllOf                              []struct {
		If struct {
			Properties struct {
				Provider struct {
					Const string
					Enum  []string
				}
			}
		}
		Then struct{ Required []string }
	}
}

// rows returns a row for each member below s.
func (s *shape) rows(path string) (rows []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if m := s.Properties[name]; name != "$schema" {
			at := path + name
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", at, s.absent(name, m), m.values(), m.Description))
			rows = append(rows, m.rows(at+".")...)
		}
	}
	var any shape
	if json.Unmarshal(s.AdditionalProperties, &any) == nil && len(any.Properties) > 0 {
		rows = append(rows, any.rows(path+"NAME.")...)
	}
	return rows
}

// absent is what the reference says of a member that is not there.
func (s *shape) absent(name string, m *shape) string {
	if slices.Contains(s.Required, name) {
		return "required"
	}
	if m.Default != nil {
		text, _ := json.Marshal(m.Default)
		return "`" + string(text) + "`"
	}
	for _, c := range s.AllOf {
		if slices.Contains(c.Then.Required, name) {
			return "required with " + ticked(slices.Sorted(slices.Values(append(c.If.Properties.Provider.Enum, strings.Fields(c.If.Properties.Provider.Const)...))))
		}
	}
	return "none"
}

var ranges = map[string]string{"duration-timeout": "`100ms` to `10m`", "duration-1s": "from `1s`", "base-url": "http or https", "node-url": "http or https"}

func (s *shape) values() string {
	switch {
	case s.Enum != nil:
		return ticked(s.Enum)
	case s.Format != "":
		return ranges[s.Format]
	case s.Maximum != "":
		return fmt.Sprintf("%s to %s", s.Minimum, s.Maximum)
	case s.Minimum != "":
		return "from " + s.Minimum.String()
	case s.ExclusiveMinimum != "":
		return "above " + s.ExclusiveMinimum.String()
	case s.Type == "":
		return "text"
	}
	return map[string]string{"string": "text", "array": "list", "boolean": "`true`, `false`"}[s.Type] + map[bool]string{true: "object"}[s.Type == "object"]
}

func ticked(all []string) string { return "`" + strings.Join(all, "`, `") + "`" }

// TestTheReferenceHasTheBackends: the table in docs/reference.md is what the schema says.
// With -update it is written.
func TestTheReferenceHasTheBackends(t *testing.T) {
	text, err := schemas.Files.ReadFile("backends.json")
	if err != nil {
		t.Fatal(err)
	}
	var s shape
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	rows := s.rows("")
	if len(rows) < 30 {
		t.Fatalf("%d rows", len(rows))
	}
	file := filepath.Join(corpus.Checkout(t), "docs", "reference.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const head = "| key | default | values | meaning |\n|---|---|---|---|\n"
	before, rest, found := bytes.Cut(page, []byte(head))
	_, after, _ := bytes.Cut(rest, []byte("\n\n"))
	want := slices.Concat(before, []byte(head+strings.Join(rows, "\n")+"\n\n"), after)
	switch {
	case !found:
		t.Errorf("docs/reference.md has no table with the head\n%s", head)
	case *update:
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
	case !bytes.Equal(page, want):
		t.Error("the table of backends in docs/reference.md is not what the schema says: go test ./registry/config -run Reference -update")
	}
}
