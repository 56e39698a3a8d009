package report_test

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
)

type tool struct {
	Name   string          `json:"name"`
	Server string          `json:"server"`
	About  string          `json:"about"`
	Most   json.RawMessage `json:"most"`
}

var tools = []tool{{"search", "web", "finds <pages>", json.RawMessage("1.50")}, {"x\x1b[2J", "b", "no", json.RawMessage("10000000000000000000001")}}

// toolsText is written as the compiled reports of commands are.
func toolsText(all []tool, form report.Form) string {
	text := "TOOL\tABOUT"
	if form.Wide() {
		text += "\tSERVER"
	}
	for _, t := range all {
		text += "\n" + report.OneLine(t.Name) + "\t" + form.Cut(report.OneLine(t.About), 8)
		if form.Wide() {
			text += "\t" + t.Server
		}
	}
	return text + "\n"
}

func TestForms(t *testing.T) {
	for form, want := range map[report.Form]string{
		report.Table: "TOOL        ABOUT\nsearch      finds <…\nx\\u001b[2J  no\n",
		report.Wide:  "TOOL        ABOUT          SERVER\nsearch      finds <pages>  web\nx\\u001b[2J  no             b\n",
		report.JSON: `[
  {
    "name": "search",
    "server": "web",
    "about": "finds <pages>",
    "most": 1.50
  },
  {
    "name": "x\u001b[2J",
    "server": "b",
    "about": "no",
    "most": 10000000000000000000001
  }
]
`,
		report.YAML: `- name: search
  server: web
  about: finds <pages>
  most: 1.50
- name: "x\e[2J"
  server: b
  about: "no"
  most: 10000000000000000000001
`,
	} {
		var out bytes.Buffer
		p := &report.Printer{Out: &out, Form: form}
		if err := p.Print(report.Of(tools, toolsText)); err != nil || !p.Printed() {
			t.Errorf("%s: %v", form, err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", form, diff)
		}
	}
}

func TestNext(t *testing.T) {
	for form, want := range map[report.Form]string{
		report.JSON: "{\"a\":1}\n{\"a\":1}\n",
		report.YAML: "---\na: 1\n---\na: 1\n",
	} {
		var out bytes.Buffer
		p := &report.Printer{Out: &out, Form: form}
		for range 2 {
			if err := p.Next(report.Document(json.RawMessage(`{"a": 1}`))); err != nil {
				t.Errorf("%s: %v", form, err)
			}
		}
		if out.String() != want {
			t.Errorf("%s: %q, want %q", form, out.String(), want)
		}
	}
}

// A writer that fails is an error, and so is a value that cannot be encoded, of which
// nothing is printed.
func TestPrintFails(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	if err := (&report.Printer{Out: w, Form: report.JSON}).Print(report.Document(1)); err == nil {
		t.Error("a closed pipe is no error")
	}
	p := &report.Printer{Out: io.Discard, Form: report.YAML}
	if err := p.Print(report.Document(func() {})); err == nil || p.Printed() {
		t.Errorf("a function is printed: %v", err)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\nand more": "plain\ttext\nand more",
		"line\r\nends":          "line\nends",
		"\x1b[31mred\x07":       `\u001b[31mred\u0007`,
		"\u009b31m":             `\u009b31m`,
		"over\rwritten":         `over\u000dwritten`,
		"❤️ é":                  "❤️ é",
	} {
		if got := report.Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
	if got := report.OneLine("a\tb\nc\x1b"); got != `a b c\u001b` {
		t.Errorf("oneLine: %q", got)
	}
}

// FuzzToYAML holds that YAML says what the JSON said: the same keys in the same order,
// the same strings, and every number digit for digit.
func FuzzToYAML(f *testing.F) {
	for _, seed := range []string{
		`{"a":{"c":[1,2.50,-0,1e400],"b":null},"yes":"no","":"","on":true}`, `["1","1:20","2026-01-01","~","null",".inf","0x1f","#","- a","a: b","1e400"]`,
		`"two\nlines\n"`, `{"two\nlines":"\ttab","` + strings.Repeat("k", 200) + `":"\u0000\u001b\u009b\ufeff\ud83d\ude00"}`, `[[],{},[{}],"  x  \n y \n\n"]`, `{"<<":{"a":1},"=":"="}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, document string) {
		if !json.Valid([]byte(document)) {
			return
		}
		text, err := report.ToYAML(document)
		if err != nil {
			t.Fatalf("%q: %v", document, err)
		}
		var root yaml.Node
		if err := yaml.Unmarshal([]byte(text), &root); err != nil {
			t.Fatalf("%q as %q: %v", document, text, err)
		}
		dec := json.NewDecoder(strings.NewReader(document))
		dec.UseNumber()
		if got, want := ofYAML(root.Content[0]), ofJSON(dec); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q as %q: %#v, want %#v", document, text, got, want)
		}
	})
}

// ofJSON returns the next value as a list of what it has, in order.
func ofJSON(dec *json.Decoder) any {
	token, _ := dec.Token()
	open, ok := token.(json.Delim)
	if !ok {
		return token
	}
	list := []any{open.String()}
	for dec.More() {
		list = append(list, ofJSON(dec))
	}
	_, _ = dec.Token()
	return list
}

// ofYAML returns a node in the same form.
func ofYAML(n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode, yaml.SequenceNode:
		list := []any{map[yaml.Kind]string{yaml.MappingNode: "{", yaml.SequenceNode: "["}[n.Kind]}
		for _, c := range n.Content {
			list = append(list, ofYAML(c))
		}
		return list
	}
	number := n.Style == 0 && json.Valid([]byte(n.Value)) // also one beyond what Go's numbers hold
	switch tag := n.ShortTag(); {
	case tag == "!!str" && !number:
		return n.Value
	case tag == "!!null":
		return nil
	case tag == "!!bool":
		return n.Value == "true"
	}
	return json.Number(n.Value)
}
