package tree

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
func (r *Report) parseYAML(f *File) *Node {
	var doc yaml.Node
	if err := yaml.Unmarshal(f.Data, &doc); err != nil {
		at := f.At(0)
		// Only the line is taken: the rest of the message may quote the file.
		if found := yamlLine.FindStringSubmatch(err.Error()); found != nil {
			line, _ := strconv.Atoi(found[1]) // digits, and few enough
			at = f.At(offsetOf(f.Data, line, 1))
		}
		r.Fault(at, "is not YAML", "look at the indentation, and for a missing colon or quote")
		return nil
	}
	if len(doc.Content) == 0 {
		r.Fault(f.At(0), "is empty", "")
		return nil
	}
	t := yamlTree{starts: []int{0}}
	for i, b := range f.Data {
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

func (t *yamlTree) value(v *yaml.Node, depth int) *Node {
	n := &Node{Offset: t.offset(v), Kind: Null, Text: "null"}
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
		n.Kind = Array
		for _, e := range v.Content {
			n.Items = append(n.Items, t.value(e, depth+1))
		}
	case yaml.MappingNode:
		n.Kind = Object
		for i := 0; i+1 < len(v.Content); i += 2 {
			key := v.Content[i]
			m := t.value(v.Content[i+1], depth+1)
			n.addMember(key.Value, t.offset(key), m)
			if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
				m.flaw, m.Offset = "is a key that JSON does not have\nwrite the members out", m.KeyAt
			}
		}
	case yaml.ScalarNode:
		switch n.Kind, n.Text = String, v.Value; v.ShortTag() {
		case "!!null", "!!bool", "!!int", "!!float":
			var value any
			err := v.Decode(&value)
			n.scalar(value, err)
		}
	}
	return n
}
