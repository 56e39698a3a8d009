package schema

// maxMasked bounds the visits of one Mask.
const maxMasked = 100_000

// Secret reports whether any subschema is secret; see Mask. It costs nothing.
func (s *Schema) Secret() bool { return s.secret }

// Mask replaces by with every value of v to which a secret subschema applies, whatever
// branch of the schema the instance takes, and returns how many there were. A subschema
// is secret when it is writeOnly (JSON Schema validation, section 9.4) or has the format
// password (OpenAPI 3): the value is for the tool, and nobody reads it back. v is a value
// that package jsonrpc has decoded; its objects and arrays are changed. Beyond a bound of
// work, and where a pattern takes too long, every value is replaced.
func (s *Schema) Mask(v, with any) (masked any, count int) {
	m := masker{left: maxMasked, with: with}
	defer func() {
		if r := recover(); r != nil {
			masked, count = with, m.count+1
		}
	}()
	f := s.load()
	m.byAddress = f.graph.byAddress
	return m.mask(v, f.graph.nodes[0]), m.count
}

type masker struct {
	left, count int
	with        any
	byAddress   map[string]*node
}

func (m *masker) mask(v any, n *node) any {
	if m.left--; m.left < 0 || n.secret {
		m.count++
		return m.with
	}
	v = m.maskAll(v, n.inPlace)
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = m.member(n, name, v[name])
		}
	case []any:
		for i, item := range v {
			if i < len(n.down.prefix) {
				item = m.mask(item, n.down.prefix[i])
			}
			v[i] = m.maskAll(item, n.down.items)
		}
	}
	return v
}

// member masks one member of an object to which n applies.
func (m *masker) member(n *node, name string, v any) any {
	declared := false
	if next := n.down.props[name]; next != nil {
		v, declared = m.mask(v, next), true
	}
	for pattern, sch := range n.sch.PatternProperties {
		if pattern.MatchString(name) {
			v, declared = m.mask(v, m.byAddress[sch.Location]), true
		}
	}
	if declared {
		return v
	}
	return m.maskAll(v, n.down.members)
}

func (m *masker) maskAll(v any, nodes []*node) any {
	for _, n := range nodes {
		v = m.mask(v, n)
	}
	return v
}
