package notary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// forge rewrites the one segment of a chain: change edits each line, and every hash
// is computed again, so that the chain holds.
func forge(t *testing.T, dir string, change func(number int, line string) string) {
	t.Helper()
	var last string
	edit(t, filepath.Join(dir, "000001.jsonl"), func(old [][]byte) [][]byte {
		var out [][]byte
		for i, line := range old {
			if len(line) == 0 {
				continue
			}
			was := parse(t, bytes.TrimSpace(line))
			text := change(i+1, string(bytes.TrimSpace(line)))
			if text == "" {
				continue
			}
			if last != "" {
				text = strings.Replace(text, was.Prev, last, 1)
			}
			sum := chainHash([]byte(text))
			text = text[:strings.LastIndex(text, `"hash":"`)] + `"hash":"` + sum + `"}`
			last = sum
			out = append(out, []byte(text+"\n"))
		}
		return out
	})
	head := map[string]any{}
	path := filepath.Join(dir, "HEAD")
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &head)
	}
	if err != nil {
		t.Fatal(err)
	}
	head["hash"] = last
	if data, err = json.Marshal(head); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// problems returns what verification finds in the chain "one".
func problems(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	for _, c := range verify(t, root).Chains {
		for _, p := range c.Problems {
			fmt.Fprintln(&out, p)
		}
	}
	return out.String()
}

// Records whose hashes hold are still refused when they cannot have been written so.
func TestForgedRecords(t *testing.T) {
	clean := build(t, 10, 1<<20)
	same := func(_ int, line string) string { return line }
	at := func(n int, old, changed string) func(int, string) string {
		return func(number int, line string) string {
			if number == n {
				if !strings.Contains(line, old) {
					t.Fatalf("no %s in %s", old, line)
				}
				return strings.Replace(line, old, changed, 1)
			}
			return line
		}
	}
	for name, test := range map[string]struct {
		change func(int, string) string
		head   func(h map[string]any)
		want   string // "" = no problem
	}{
		"nothing":                      {change: same},
		"a later version":              {change: at(5, `{"v":1`, `{"v":2`), want: "record 5 has the form of version 2"},
		"another chain's record":       {change: at(5, `"instance":"one"`, `"instance":"two"`), want: `record 5 belongs to chain "two"`},
		"a second opening":             {change: at(5, `"kind":"outcome"`, `"kind":"open"`), want: `record 5 is of kind "open"`},
		"no opening":                   {change: at(1, `"kind":"open"`, `"kind":"outcome"`), want: `record 1 is of kind "outcome"`},
		"records after the end":        {change: at(5, `"kind":"outcome"`, `"kind":"close"`), want: "record 6 follows the close record"},
		"HEAD names another record":    {change: same, head: func(h map[string]any) { h["hash"] = strings.Repeat("0", 64) }, want: "is not the one that HEAD names"},
		"HEAD names a record to come":  {change: same, head: func(h map[string]any) { h["seq"] = 12 }, want: "records 11 to 12 missing at the end"},
		"HEAD of another form":         {change: same, head: func(h map[string]any) { h["v"] = 2 }, want: "not the form of version"},
		"HEAD with half a hash":        {change: same, head: func(h map[string]any) { h["hash"] = "00" }, want: "not the form of version"},
		"the last record was cut off":  {change: func(n int, line string) string { return map[bool]string{true: "", false: line}[n == 10] }, want: "record 10 missing at the end"},
		"a record has no number":       {change: at(5, `"seq":5`, `"seq":0`), want: "not a record"},
		"a longer chain hash":          {change: at(5, `"prev":"`, `"prev":"00`), want: "record 5 does not chain to the record before it"},
		"a chain hash that is none":    {change: at(5, `"prev":"`, `"prev":"x`), want: "record 5 does not chain to the record before it"},
		"the number of another record": {change: at(5, `"seq":5`, `"seq":4`), want: "record 4 is out of order"},
	} {
		t.Run(name, func(t *testing.T) {
			root := copyTree(t, clean)
			dir := filepath.Join(root, "one")
			forge(t, dir, test.change)
			if test.head != nil {
				path, head := filepath.Join(dir, "HEAD"), map[string]any{}
				data, _ := os.ReadFile(path)
				_ = json.Unmarshal(data, &head)
				test.head(head)
				data, _ = json.Marshal(head)
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := problems(t, root)
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("problems %q, want %q", got, test.want)
			}
		})
	}
}
