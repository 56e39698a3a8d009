package clientfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlFile is a file of YAML with one mapping, and its lines.
type yamlFile struct {
	data []byte
	root *yaml.Node // nil = the file has no value
}

// editYAML makes an edit in a mapping or a list in block style.
func editYAML(e Edit, data []byte) ([]byte, error) {
	f, err := parseYAML(data)
	if err != nil {
		return nil, err
	}
	if len(e.Container) != 1 {
		return nil, fmt.Errorf("%w: the entries are not at the top of the file", ErrForm)
	}
	key, in, end := f.container(e.Container[0])
	switch {
	case key == nil:
		return f.addContainer(e)
	case in.Kind == yaml.ScalarNode && in.Tag == "!!null", len(in.Content) == 0:
		return f.fill(e, key)
	case in.Style&yaml.FlowStyle != 0:
		return nil, fmt.Errorf("%w: %q is in braces or brackets: write one entry to a line", ErrForm, key.Value)
	}
	starts, at := e.yamlEntries(in)
	if at < 0 {
		text, err := e.yamlText(in.Column - 1)
		return f.insertAt(end, text, err)
	}
	from, to := f.line(starts[at]), end
	if at+1 < len(starts) {
		to = f.line(starts[at+1])
	}
	to = from + trimNotes(data[from:to])
	if e.Value != nil {
		text, err := e.yamlText(in.Column - 1)
		return splice(data, from, to, f.lines(text)), err
	}
	data = splice(data, from, to, "")
	if len(starts) == 1 {
		at := f.lineLast(key.Line)
		data = splice(data, at, at, map[bool]string{true: " []", false: " {}"}[e.Key != ""])
	}
	return data, nil
}

func parseYAML(data []byte) (*yamlFile, error) {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return &yamlFile{data: data}, nil
	}
	if err == nil && !errors.Is(dec.Decode(&more), io.EOF) {
		err = errors.New("it has several documents")
	}
	if err != nil {
		return nil, fmt.Errorf("reading yaml: %w", err)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode || root.Style&yaml.FlowStyle != 0 {
		return nil, fmt.Errorf("%w: it is not a mapping in block style", ErrForm)
	}
	return &yamlFile{data: data, root: root}, nil
}

// container returns a key of the file, its value, and the offset behind its last line.
func (f *yamlFile) container(name string) (key, value *yaml.Node, end int) {
	if f.root == nil {
		return nil, nil, 0
	}
	all := f.root.Content
	for i := 0; i < len(all); i += 2 {
		if all[i].Value != name {
			continue
		}
		end = len(f.data)
		if i+2 < len(all) {
			end = f.line(all[i+2].Line)
		}
		from := f.line(all[i].Line)
		return all[i], all[i+1], from + trimNotes(f.data[from:end])
	}
	return nil, nil, 0
}

// yamlEntries returns the first lines of the entries, and which of them is the edit's.
func (e Edit) yamlEntries(in *yaml.Node) (lines []int, at int) {
	at = -1
	step := 2
	if in.Kind == yaml.SequenceNode {
		step = 1
	}
	for i := 0; i < len(in.Content); i += step {
		n := in.Content[i]
		name := n.Value
		if e.Key != "" {
			name = ""
			for j := 0; j+1 < len(n.Content); j += 2 {
				if n.Content[j].Value == e.Key {
					name = n.Content[j+1].Value
				}
			}
		}
		if name == e.Name {
			at = len(lines)
		}
		lines = append(lines, n.Line)
	}
	return lines, at
}

// yamlText writes the entry in block style.
func (e Edit) yamlText(indent int) (string, error) {
	var value yaml.Node
	if err := yaml.Unmarshal(e.Value, &value); err != nil {
		return "", fmt.Errorf("reading the entry: %w", err)
	}
	entry := value.Content[0]
	block(entry)
	if e.Key != "" {
		entry = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{entry}}
	} else {
		entry = &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: e.Name, Tag: "!!str"}, entry}}
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(entry); err != nil {
		return "", fmt.Errorf("writing the entry: %w", err)
	}
	margin := strings.Repeat(" ", indent)
	var text strings.Builder
	for line := range strings.Lines(out.String()) {
		text.WriteString(margin + line)
	}
	return text.String(), nil
}

// block takes the style of JSON from a value, that of strings excepted where it is needed.
func block(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode && len(n.Content) > 0 {
		n.Style = 0
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// addContainer writes the container and the entry at the end of the file.
func (f *yamlFile) addContainer(e Edit) ([]byte, error) {
	text, err := e.yamlText(2)
	return f.insertAt(len(f.data), e.Container[0]+":\n"+text, err)
}

// fill writes the first entry of a container.
func (f *yamlFile) fill(e Edit, key *yaml.Node) ([]byte, error) {
	text, err := e.yamlText(2)
	if err != nil {
		return nil, err
	}
	from, to := f.line(key.Line), f.lineLast(key.Line)
	line := string(f.data[from:to])
	for _, empty := range []string{" {}", " []"} {
		line = strings.TrimSuffix(line, empty)
	}
	if !strings.HasSuffix(line, ":") {
		return nil, fmt.Errorf("%w: something follows %q on its line", ErrForm, key.Value)
	}
	text = f.lines(line + "\n" + strings.TrimSuffix(text, "\n"))
	return splice(f.data, from, to, text), nil
}

// insertAt writes lines at the beginning of a line, or at the end of the file.
func (f *yamlFile) insertAt(at int, text string, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if at > 0 && f.data[at-1] != '\n' {
		text = "\n" + strings.TrimSuffix(text, "\n")
	}
	return splice(f.data, at, at, f.lines(text)), nil
}

// lines gives a text the line ends of the file.
func (f *yamlFile) lines(text string) string {
	return strings.ReplaceAll(text, "\n", lineEnd(f.data))
}

// line returns the offset of a line, which is counted from 1.
func (f *yamlFile) line(n int) (at int) {
	for range n - 1 {
		at += bytes.IndexByte(f.data[at:], '\n') + 1
	}
	return at
}

// lineLast returns the offset of the end of a line, without blanks.
func (f *yamlFile) lineLast(n int) int {
	from := f.line(n)
	line, _, _ := bytes.Cut(f.data[from:], []byte("\n"))
	return from + len(slices.Clip(bytes.TrimRight(line, " \t\r")))
}
