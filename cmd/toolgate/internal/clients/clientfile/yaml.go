package clientfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// editYAML makes an edit in a mapping or a list in block style.
func editYAML(e Edit, data []byte) ([]byte, error) {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	blank := errors.Is(err, io.EOF)
	if !blank && err == nil && !errors.Is(dec.Decode(&more), io.EOF) {
		err = errors.New("it has several documents")
	}
	var all []*yaml.Node // keys and values, alternating
	switch {
	case blank:
	case err != nil:
		return nil, fmt.Errorf("reading yaml: %w", err)
	case doc.Content[0].Kind != yaml.MappingNode || doc.Content[0].Style&yaml.FlowStyle != 0:
		return nil, fmt.Errorf("%w: it is not a mapping in block style", ErrForm)
	default:
		all = doc.Content[0].Content
	}
	if len(e.Container) != 1 {
		return nil, fmt.Errorf("%w: the entries are not at the top of the file", ErrForm)
	}
	t := linesOf(data)
	name, i := e.Container[0], 0
	for i < len(all) && all[i].Value != name {
		i += 2
	}
	if i == len(all) {
		entry, err := e.yamlText(2)
		t.replace(len(t.lines), len(t.lines), name+":\n"+entry)
		return t.bytes(), err
	}
	in, at, end := all[i+1], all[i].Line-1, len(t.lines)
	if i+2 < len(all) {
		end = all[i+2].Line - 1
	}
	switch end = t.trim(at, end); {
	case len(in.Content) > 0 && in.Style&yaml.FlowStyle != 0:
		err = fmt.Errorf("%w: %q is in braces or brackets: write one entry to a line", ErrForm, name)
	case len(in.Content) > 0:
		err = t.entryYAML(e, in, at, end)
	default:
		line := strings.TrimRight(t.lines[at], " \t\r\n")
		line = strings.TrimSuffix(strings.TrimSuffix(line, " {}"), " []")
		if !strings.HasSuffix(line, ":") {
			return nil, fmt.Errorf("%w: something follows %q on its line", ErrForm, name)
		}
		var entry string
		entry, err = e.yamlText(2)
		t.replace(at, at+1, line+"\n"+entry)
	}
	return t.bytes(), err
}

// entryYAML replaces, removes or adds an entry of a container whose key is on line at, and
// whose lines end before end.
func (t *text) entryYAML(e Edit, in *yaml.Node, at, end int) error {
	step := 2
	if in.Kind == yaml.SequenceNode {
		step = 1
	}
	from, to := end, end // of the entry
	for i := 0; i < len(in.Content); i += step {
		n := in.Content[i]
		if from < end {
			to = t.trim(from, n.Line-1)
			break
		}
		name := n
		if e.Key != "" {
			name = &yaml.Node{}
			for k := 0; k+1 < len(n.Content); k += 2 {
				if n.Content[k].Value == e.Key {
					name = n.Content[k+1]
				}
			}
		}
		if name.Value == e.Name {
			from = n.Line - 1
		}
	}
	if e.Value != nil {
		entry, err := e.yamlText(in.Column - 1)
		t.replace(from, to, entry)
		return err
	}
	t.replace(from, to, "")
	if len(in.Content) == step {
		line := strings.TrimRight(t.lines[at], " \t\r\n")
		t.replace(at, at+1, line+map[bool]string{true: " []\n", false: " {}\n"}[e.Key != ""])
	}
	return nil
}

// yamlText writes the entry in block style.
func (e Edit) yamlText(indent int) (string, error) {
	var value yaml.Node
	if err := yaml.Unmarshal(e.Value, &value); err != nil {
		return "", fmt.Errorf("reading the entry: %w", err)
	}
	block(&value)
	entry := &yaml.Node{Kind: yaml.SequenceNode, Content: value.Content}
	if e.Key == "" {
		entry = &yaml.Node{Kind: yaml.MappingNode, Content: append([]*yaml.Node{{Kind: yaml.ScalarNode, Value: e.Name, Tag: "!!str"}}, value.Content...)}
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(entry); err != nil {
		return "", fmt.Errorf("writing the entry: %w", err)
	}
	var text strings.Builder
	for line := range strings.Lines(out.String()) {
		text.WriteString(strings.Repeat(" ", indent) + line)
	}
	return text.String(), nil
}

// block takes the style of JSON from a value, that of strings excepted where it is needed.
func block(n *yaml.Node) {
	if len(n.Content) > 0 || n.Tag == "!!str" {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}
