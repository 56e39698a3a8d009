package schema

import (
	"maps"
	"slices"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxExpanded counts the subschemas after every reference has been
	// written out.
	maxExpanded = 10_000
	// maxInPlace is the longest chain of subschemas that look at one and the
	// same value; each link costs the validator a walk back over the others.
	maxInPlace = 64
)

// graph is which subschema leads to which. An edge in place stays at the same
// value of the instance; an edge down goes to a member or an element.
type graph struct {
	nodes     []*node
	byAddress map[string]*node
	expanded  float64 // weight of the schema with all references written out
	recursive bool    // some edge down leads back
	unique    bool    // uniqueItems is used
	closures  func() [][]times
}

// node is one subschema.
type node struct {
	id      int
	sch     *jsonschema.Schema
	inPlace []*node
	down    down
	weight  float64 // of one visit; a plain subschema has 1
	perByte float64 // of one visit, for each 32 bytes of a string
	depth   int     // longest chain in place from here
	written float64 // weight of all that is applied in place from here
	state   state
}

// down holds the edges to other values.
type down struct {
	props    map[string]*node
	patterns []*node // matched by name
	members  []*node // any member
	prefix   []*node // element by index
	items    []*node // any element
	names    []*node // the names themselves
}

type state uint8

const (
	unseen state = iota
	open
	done
)

// newGraph follows the compiled schema from its root.
func newGraph(root *jsonschema.Schema) (*graph, *Refused) {
	g := &graph{byAddress: map[string]*node{}}
	seen := map[*jsonschema.Schema]*node{}
	g.add(root, seen)
	for i := 0; i < len(g.nodes); i++ { // grows while it is walked
		if len(g.nodes) > maxObjects {
			return nil, refused("more than %d subschemas", maxObjects)
		}
		g.connect(g.nodes[i], seen)
	}
	g.connectDynamic(seen)
	for _, n := range g.nodes {
		if fault := n.checkInPlace(); fault != nil {
			return nil, fault
		}
	}
	if g.expanded = g.expand(); g.expanded > maxExpanded {
		return nil, refused("more than %d subschemas once its references are expanded", maxExpanded)
	}
	g.closures = sync.OnceValue(g.close)
	return g, nil
}

// add gives the node of a subschema, making it when it is new.
func (g *graph) add(sch *jsonschema.Schema, seen map[*jsonschema.Schema]*node) *node {
	if n, ok := seen[sch]; ok {
		return n
	}
	n := &node{id: len(g.nodes), sch: sch}
	seen[sch] = n
	g.nodes = append(g.nodes, n)
	g.byAddress[sch.Location] = n
	return n
}

// connect adds the edges that the subschema itself spells out.
func (g *graph) connect(n *node, seen map[*jsonschema.Schema]*node) {
	to := func(list *[]*node, schemas ...*jsonschema.Schema) {
		for _, s := range schemas {
			if s != nil {
				*list = append(*list, g.add(s, seen))
			}
		}
	}
	s := n.sch
	to(&n.inPlace, s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else)
	to(&n.inPlace, s.AllOf...)
	to(&n.inPlace, s.AnyOf...)
	to(&n.inPlace, s.OneOf...)
	if s.DynamicRef != nil {
		to(&n.inPlace, s.DynamicRef.Ref)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Dependencies)) {
		to(&n.inPlace, asSchema(s.Dependencies[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(s.DependentSchemas)) {
		to(&n.inPlace, s.DependentSchemas[key])
	}
	n.down.props = map[string]*node{}
	for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
		n.down.props[key] = g.add(s.Properties[key], seen)
	}
	for _, sch := range s.PatternProperties {
		to(&n.down.patterns, sch)
	}
	to(&n.down.members, asSchema(s.AdditionalProperties), s.UnevaluatedProperties)
	to(&n.down.names, s.PropertyNames)
	to(&n.down.prefix, s.PrefixItems...)
	if list, ok := s.Items.([]*jsonschema.Schema); ok {
		to(&n.down.prefix, list...)
	}
	to(&n.down.items, asSchema(s.Items), asSchema(s.AdditionalItems), s.Items2020, s.Contains, s.UnevaluatedItems)
	n.weigh()
	g.unique = g.unique || s.UniqueItems
}

// weigh estimates one visit by what the validator loops over.
func (n *node) weigh() {
	s := n.sch
	n.weight = 1 + float64(len(s.Required))/16
	if s.Enum != nil {
		n.weight += float64(len(s.Enum.Values)) / 4
	}
	if s.Pattern != nil {
		n.perByte = effort(s.Pattern)
		n.weight += n.perByte
	}
	for re := range s.PatternProperties {
		n.weight += effort(re)
	}
}

// connectDynamic adds the edges that depend on where a validation came from:
// to everything that could be meant.
func (g *graph) connectDynamic(seen map[*jsonschema.Schema]*node) {
	anchors, recursive, targets := map[string][]*node{}, []*node{}, []*node{}
	for _, n := range g.nodes {
		if n.sch.DynamicAnchor != "" {
			anchors[n.sch.DynamicAnchor] = append(anchors[n.sch.DynamicAnchor], n)
		}
		if n.sch.RecursiveAnchor {
			recursive = append(recursive, n)
		}
		if n.sch.Ref != nil {
			targets = append(targets, seen[n.sch.Ref])
		}
	}
	if !g.nodes[0].sch.RecursiveAnchor {
		// A resource that is entered by a reference may be entered in its
		// middle, and the validator then resolves to that place.
		recursive = append(recursive, targets...)
	}
	for _, n := range g.nodes {
		if d := n.sch.DynamicRef; d != nil && d.Anchor != "" && d.Ref.DynamicAnchor == d.Anchor {
			n.meet(anchors[d.Anchor])
		}
		if r := n.sch.RecursiveRef; r != nil && r.RecursiveAnchor {
			n.meet(recursive)
		}
	}
}

// meet adds those of nodes in place that are not there yet.
func (n *node) meet(nodes []*node) {
	for _, to := range nodes {
		if !slices.Contains(n.inPlace, to) {
			n.inPlace = append(n.inPlace, to)
		}
	}
}

// checkInPlace refuses a chain in place that leads back to its start: the
// validator would never get deeper into the instance, and below `not` it takes
// such a loop for a pass. It also refuses chains that are long or that branch
// out too far.
func (n *node) checkInPlace() *Refused {
	switch n.state {
	case open:
		return refused("%s refers to itself without looking deeper into the value", pointerOf(n.sch.Location))
	case done:
		return nil
	}
	n.state, n.written = open, n.weight
	for _, next := range n.inPlace {
		if fault := next.checkInPlace(); fault != nil {
			return fault
		}
		n.depth = max(n.depth, next.depth+1)
		n.written += next.written
	}
	switch {
	case n.depth > maxInPlace:
		return refused("more than %d subschemas in a chain look at the same value", maxInPlace)
	case n.written > maxExpanded:
		return refused("more than %d subschemas look at the same value", maxExpanded)
	}
	n.state = done
	return nil
}

// each visits every edge.
func (n *node) each(visit func(*node)) {
	for _, list := range [][]*node{n.inPlace, n.down.patterns, n.down.members, n.down.prefix, n.down.items, n.down.names} {
		for _, next := range list {
			visit(next)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(n.down.props)) {
		visit(n.down.props[key])
	}
}

// asSchema gives v when it is a subschema, else nil.
func asSchema(v any) *jsonschema.Schema {
	s, _ := v.(*jsonschema.Schema)
	return s
}
