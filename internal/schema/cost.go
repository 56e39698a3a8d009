package schema

const (
	// budget is how many visits of a subschema one validation may take on top
	// of perValue for each value of the instance; a visit takes 0.1 to 0.5 µs.
	budget   = 250_000
	perValue = 20
)

// times is how often a node is visited when another is.
type times struct {
	n *node
	c float64
}

// close lists for each node everything that it leads to in place, itself
// first.
func (g *graph) close() [][]times {
	out := make([][]times, len(g.nodes))
	var fill func(n *node) []times
	fill = func(n *node) []times {
		if out[n.id] != nil {
			return out[n.id]
		}
		at := map[*node]int{n: 0}
		list := []times{{n, 1}}
		for _, next := range n.inPlace {
			for _, t := range fill(next) {
				i, ok := at[t.n]
				if !ok {
					i = len(list)
					at[t.n] = i
					list = append(list, times{n: t.n})
				}
				list[i].c += t.c
			}
		}
		out[n.id] = list
		return list
	}
	for _, n := range g.nodes {
		fill(n)
	}
	return out
}

// affordable reports whether validating v stays within the budget. Without
// recursion the expanded schema bounds the visits of each value, which decides
// nearly every call; else the visits are counted out. A schema that reaches
// itself along two ways (think of expression trees) doubles its work with each
// level of the instance, which no check of the schema alone can bound.
func (g *graph) affordable(v any) bool {
	size := measure(v)
	rough := g.expanded * size
	if g.unique {
		rough *= 1 + size/256
	}
	if !g.recursive && rough <= budget {
		return true
	}
	m := meter{g: g, left: budget + perValue*size}
	m.visit(v, map[*node]float64{g.nodes[0]: 1})
	return m.left >= 0
}

// measure counts the values and 32-byte pieces of strings and names.
func measure(v any) float64 {
	switch v := v.(type) {
	case map[string]any:
		n := 1.0
		for key, item := range v {
			n += float64(len(key))/32 + measure(item)
		}
		return n
	case []any:
		n := 1.0
		for _, item := range v {
			n += measure(item)
		}
		return n
	case string:
		return 1 + float64(len(v))/32
	}
	return 1
}

// meter counts the visits of one validation: how often each subschema is
// applied to a value follows from how often those above were applied to its
// parent, so the count takes time in proportion to distinct pairs only.
type meter struct {
	g    *graph
	left float64
}

// visit spends for v and what is below it, given how often which subschemas
// are applied to v.
func (m *meter) visit(v any, applied map[*node]float64) {
	all := make(map[*node]float64, len(applied))
	for n, c := range applied {
		for _, t := range m.g.closures()[n.id] {
			all[t.n] += c * t.c
			m.left--
		}
	}
	for n, c := range all {
		m.left -= c * n.price(v)
	}
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			m.below(item, all, func(n *node, add func(...*node)) {
				if p, ok := n.down.props[key]; ok {
					add(p)
				}
				add(n.down.patterns...)
				add(n.down.members...)
			})
			m.below(key, all, func(n *node, add func(...*node)) { add(n.down.names...) })
		}
	case []any:
		for i, item := range v {
			m.below(item, all, func(n *node, add func(...*node)) {
				if i < len(n.down.prefix) {
					add(n.down.prefix[i])
				}
				add(n.down.items...)
			})
		}
	}
}

// below visits one member or element with what edges say applies to it.
func (m *meter) below(item any, all map[*node]float64, edges func(*node, func(...*node))) {
	if m.left < 0 {
		return
	}
	applied := map[*node]float64{}
	for n, c := range all {
		edges(n, func(to ...*node) {
			for _, t := range to {
				applied[t] += c
			}
		})
	}
	if len(applied) > 0 {
		m.visit(item, applied)
	}
}

// price is the weight of one visit to v.
func (n *node) price(v any) float64 {
	switch v := v.(type) {
	case string:
		return n.weight + n.perByte*float64(len(v))/32
	case []any:
		if n.sch.UniqueItems {
			return n.weight + float64(len(v))*float64(len(v))/256
		}
	case map[string]any:
		return n.weight * float64(1+len(v)*len(n.down.patterns))
	}
	return n.weight
}
