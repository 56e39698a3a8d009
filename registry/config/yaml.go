package config

import (
	"fmt"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// maxYAMLNodes bounds what aliases can multiply.
const maxYAMLNodes = 100_000

var yamlLine = regexp.MustCompile(`line (\d+)`)

// parseYAML reads the first document of f into nodes, nil when it is not YAML.
func (l *loader) parseYAML(f *file) *node {
	var doc yaml.Node
	if err := yaml.Unmarshal(f.data, &doc); err != nil {
		at := f.at(0)
		// Only the line is taken: the rest of the message may quote the file.
		if found := yamlLine.FindStringSubmatch(err.Error()); found != nil {
			line, _ := strconv.Atoi(found[1]) // digits, and few enough
			at = f.at(offsetOf(f.data, line, 1))
		}
		l.fault(at, "is not YAML", "look at the indentation, and for a missing colon or quote")
		return nil
	}
	if len(doc.Content) == 0 {
		l.fault(f.at(0), "is empty", "")
		return nil
	}
	t := yamlTree{file: f, loader: l, lines: lineStarts(f.data)}
	return t.value(doc.Content[0], "", 0)
}

// yamlTree makes nodes of one document.
type yamlTree struct {
	file   *file
	loader *loader
	lines  []int // offset of each line
	count  int   // of the nodes made
}

func lineStarts(data []byte) []int {
	starts := []int{0}
	for i, b := range data {
		if b == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

func (t *yamlTree) offset(v *yaml.Node) int {
	line := min(max(v.Line, 1), len(t.lines))
	return min(t.lines[line-1]+max(v.Column, 1)-1, len(t.file.data))
}

func (t *yamlTree) value(v *yaml.Node, path string, depth int) *node {
	n := &node{file: t.file, offset: t.offset(v), path: path, kind: 'n', text: "null"}
	if t.count++; t.count > maxYAMLNodes || depth > maxDepth {
		if t.count <= maxYAMLNodes+1 {
			t.loader.fault(n, fmt.Sprintf("is nested deeper than %d levels, or has too many values", maxDepth), "")
		}
		return n
	}
	switch v.Kind {
	case yaml.AliasNode:
		return t.value(v.Alias, path, depth+1)
	case yaml.SequenceNode:
		n.kind = kindArray
		for i, e := range v.Content {
			n.items = append(n.items, t.value(e, fmt.Sprintf("%s[%d]", path, i), depth+1))
		}
	case yaml.MappingNode:
		n.kind = kindObject
		for i := 0; i+1 < len(v.Content); i += 2 {
			t.member(n, v.Content[i], v.Content[i+1], depth)
		}
	case yaml.ScalarNode:
		t.scalar(n, v)
	}
	return n
}

func (t *yamlTree) member(n *node, k, v *yaml.Node, depth int) {
	at := &node{file: t.file, offset: t.offset(k), path: join(n.path, k.Value)}
	if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge" {
		t.loader.fault(at, "is a key that JSON does not have", "write the members out")
		return
	}
	m := t.value(v, at.path, depth+1)
	m.key, m.keyAt = k.Value, at.offset
	n.members = append(n.members, m)
}

func (t *yamlTree) scalar(n *node, v *yaml.Node) {
	n.kind, n.text = kindString, v.Value
	switch v.ShortTag() {
	case "!!null":
		n.kind, n.text = 'n', "null"
	case "!!bool":
		var b bool
		if err := v.Decode(&b); err == nil {
			n.text = strconv.FormatBool(b)
			n.kind = kind(n.text[0])
		}
	case "!!int":
		var i int64
		err := v.Decode(&i)
		t.loader.number(n, strconv.FormatInt(i, 10), err == nil)
	case "!!float":
		var f float64
		err := v.Decode(&f)
		t.loader.number(n, decimal(f), err == nil && finite(f))
	}
}
