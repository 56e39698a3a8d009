package tree_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/toolgate/toolgate/internal/tree"
)

// What is read of TOML and YAML is what their libraries decode.
func FuzzTree(f *testing.F) {
	f.Add("a.b = 1\n[[l]]\nx = [1_0, 0x1, 1e3]\n[l.c]\ny = {z = [[], [{}]]}\n[[l]]\n[[l.d]]\n'e.f' = true\n", true)
	f.Add("a: &x [1, 0x10, 1.5, ~, yes, true, '1']\nb: *x\nc: |\n  text\n", false)
	f.Fuzz(func(t *testing.T, text string, isTOML bool) {
		name, decode := "f.yaml", yaml.Unmarshal
		if isTOML {
			name, decode = "f.toml", toml.Unmarshal
		}
		var r tree.Report
		root := r.ParseObject(&tree.File{Name: name, Data: []byte(text)}, "")
		if root == nil || len(r.Faults) > 0 {
			return
		}
		root.Literal()
		var read, whole map[string]any
		if err := json.Unmarshal(root.JSON(true), &read); err != nil {
			t.Fatalf("%s is no JSON: %v", root.JSON(true), err)
		}
		if err := decode([]byte(text), &whole); err != nil {
			return // keys that are not strings
		}
		if _, err := json.Marshal(whole); err != nil {
			return // the same, further in
		}
		if diff := cmp.Diff(outline(whole), outline(read)); diff != "" {
			t.Errorf("(-library +tree):\n%s", diff)
		}
	})
}

// outline keeps strings, booleans and the shape of a value. Numbers are compared as such,
// and times as texts of any form.
func outline(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, member := range v {
			out[key] = outline(member)
		}
		return out
	case []any:
		out := []any{}
		for _, element := range v {
			out = append(out, outline(element))
		}
		return out
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case nil, bool, float64:
		return v
	case string:
		if _, err := time.Parse("2006", v[:min(4, len(v))]); err == nil {
			return "time"
		}
		return v
	}
	return "time"
}
