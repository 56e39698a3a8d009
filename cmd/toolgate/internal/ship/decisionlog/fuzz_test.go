package decisionlog_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/policy"
)

// FuzzHide: whatever the path and the document, hiding ends in an error or in JSON
// in which the path leads to nothing, or to what was put there.
func FuzzHide(f *testing.F) {
	for _, path := range []string{"/input", "/input/a", "/input/a/0", "/input/a/1/b", "/input/~1~0/", "/input/", "/result/x", "/input/a/-1", "/input/a/00", "/input/a/+1"} {
		f.Add(path, `{"a":[1,{"b":2}],"/~":{"":3}}`)
	}
	f.Fuzz(func(t *testing.T, path, document string) {
		root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if path == "" || path[0] != '/' || root != "input" && root != "result" || !utf8.ValidString(path+document) || !json.Valid([]byte(document)) {
			return // the engine gives no such rule
		}
		for _, value := range []string{"", `"put"`} {
			e := decisionlog.Event{Input: json.RawMessage(document), Result: json.RawMessage(`{"x":1}`)}
			rule := policy.MaskRule{Path: path}
			if value != "" {
				rule.Value = json.RawMessage(value)
			}
			if e.Hide([]policy.MaskRule{rule}) != nil {
				continue
			}
			for _, raw := range []json.RawMessage{e.Input, e.Result} {
				if raw != nil && !json.Valid(raw) {
					t.Fatalf("%s of %s: %s", path, document, raw)
				}
			}
			if done := slices.Contains(e.Erased, path) || slices.Contains(e.Masked, path); done && !inList(path) {
				if got := at(t, e, path); got != value {
					t.Fatalf("%s of %s leads to %s", path, document, got)
				}
			}
		}
	})
}

// inList reports whether path may lead to an element: what follows a removed one
// takes its index.
func inList(path string) bool {
	last := path[strings.LastIndexByte(path, '/')+1:]
	return last != "" && strings.Trim(last, "0123456789+") == ""
}

// at gives what path leads to in an event, "" for nothing.
func at(t *testing.T, e decisionlog.Event, path string) string {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var node any
	if err := json.Unmarshal(text, &node); err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch v := node.(type) {
		case map[string]any:
			child, ok := v[part]
			if !ok {
				return ""
			}
			node = child
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(v) {
				return ""
			}
			node = v[i]
		default:
			return ""
		}
	}
	found, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	return string(found)
}
