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
	t := yamlTree{starts: []int{0}}
	for i, b := range f.data {
		if b == '\n' {
			t.starts = append(t.starts, i+1)
		}
	}
	return t.value(doc.Content[0], 0)
}

// yamlTree makes nodes of one document.
type yamlTree struct {
	starts []int // offsets of the lines
	count  int   // of the nodes made
}

func (t *yamlTree) offset(v *yaml.Node) int {
	return t.starts[min(max(v.Line, 1), len(t.starts))-1] + max(v.Column, 1) - 1
}

func (t *yamlTree) value(v *yaml.Node, depth int) *node {
	n := &node{offset: t.offset(v), kind: 'n', text: "null"}
	if t.count++; t.count > maxYAMLNodes || depth > maxDepth {
		if t.count <= maxYAMLNodes+1 {
			n.flaw = fmt.Sprintf("is nested deeper than %d levels, or has too many values", maxDepth)
		}
		return n
	}
	switch v.Kind {
	case yaml.AliasNode:
		return t.value(v.Alias, depth+1)
	case yaml.SequenceNode:
		n.kind = kindArray
		for _, e := range v.Content {
			n.items = append(n.items, t.value(e, depth+1))
		}
	case yaml.MappingNode:
		n.kind = kindObject
		for i := 0; i+1 < len(v.Content); i += 2 {
			key := v.Content[i]
			m := t.value(v.Content[i+1], depth+1)
			n.addMember(key.Value, t.offset(key), m)
			if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
				m.flaw, m.offset = "is a key that JSON does not have\nwrite the members out", m.keyAt
			}
		}
	case yaml.ScalarNode:
		switch n.kind, n.text = kindString, v.Value; v.ShortTag() {
		case "!!null", "!!bool", "!!int", "!!float":
			var value any
			err := v.Decode(&value)
			n.scalar(value, err)
		}
	}
	return n
}
