package schema

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolgate/toolgate/internal/jsonrpc"
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
}

// node is one subschema.
type node struct {
	sch     *jsonschema.Schema
	secret  bool // see Mask
	place   place
	inPlace []*node
	down    down
	weight  float64 // of one visit; a plain subschema has 1
	perByte float64 // of one visit, for each 32 bytes of a string
	depth   int     // longest chain in place from here
	written float64 // weight of all that is applied in place from here
	state   state   // of checkInPlace
	total   float64 // weight of all that is reached from here, at most 2*maxExpanded
	summed  state   // of expand
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
	if g.expanded = g.expand(g.nodes[0]); g.expanded > maxExpanded && !g.recursive {
		return nil, refused("more than %d subschemas once its references are expanded", maxExpanded)
	}
	return g, nil
}

// add gives the node of a subschema, making it when it is new.
func (g *graph) add(sch *jsonschema.Schema, seen map[*jsonschema.Schema]*node) *node {
	if n, ok := seen[sch]; ok {
		return n
	}
	n := &node{sch: sch}
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

// expand returns the weight of n with every reference written out. A reference that
// leads back to a subschema it is reached from makes the schema recursive; how often
// it is followed depends on the instance, which the meter counts.
func (g *graph) expand(n *node) float64 {
	switch n.summed {
	case open:
		g.recursive = true
		return 0
	case done:
		return n.total
	}
	n.summed, n.total = open, n.weight
	n.each(func(to *node) { n.total = min(n.total+g.expand(to), 2*maxExpanded) })
	n.summed = done
	return n.total
}

// each visits every edge.
func (n *node) each(visit func(*node)) {
	for _, list := range [][]*node{n.inPlace, n.down.patterns, n.down.members, n.down.prefix, n.down.items, n.down.names} {
		for _, next := range list {
			visit(next)
		}
	}
	for _, next := range n.down.props {
		visit(next)
	}
}

// asSchema gives v when it is a subschema, else nil.
func asSchema(v any) *jsonschema.Schema {
	s, _ := v.(*jsonschema.Schema)
	return s
}

// A meter counts the visits that one validation would make. A schema that reaches
// itself along two ways (think of expression trees) doubles its work with each level
// of the instance, which no check of the schema alone can bound.
type meter struct{ left float64 }

// visit spends for one visit of n to v and for what follows from it, until nothing is
// left. It takes some 20 ns where the validator takes a visit.
func (m *meter) visit(v any, n *node) {
	m.left -= n.price(v)
	m.visitAll(v, n.inPlace)
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			if m.left < 0 {
				return
			}
			if next, ok := n.down.props[key]; ok {
				m.visitAll(item, []*node{next})
			}
			m.visitAll(item, n.down.patterns)
			m.visitAll(item, n.down.members)
			m.visitAll(key, n.down.names)
		}
	case []any:
		for i, item := range v {
			if m.left < 0 {
				return
			}
			if i < len(n.down.prefix) {
				m.visitAll(item, n.down.prefix[i:i+1])
			}
			m.visitAll(item, n.down.items)
		}
	}
}

func (m *meter) visitAll(v any, nodes []*node) {
	for _, n := range nodes {
		if m.left >= 0 {
			m.visit(v, n)
		}
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

// place is what a subschema needs to judge JSON where it stands.
type place struct {
	usable                    bool   // accepts knows all its keywords
	kinds                     string // of the accepted types, "" for all: those of jsontext, and i for integers
	least, above, most, below float64
	allOf, anyOf              []*node
}

var kindsOf = map[string]string{"null": "n", "boolean": "tf", "integer": "i", "number": "0i", "string": `"`, "array": "[", "object": "{"}

// keywords are the fields of the library's schemas that accepts judges, and those that
// no instance is held to.
var keywords = strings.Fields(`Bool Ref Types Enum Const AllOf AnyOf MaxProperties MinProperties Required Properties AdditionalProperties MinItems MaxItems Items Items2020
	MinLength MaxLength Pattern Maximum Minimum ExclusiveMaximum ExclusiveMinimum
	DraftVersion Location ID Anchor RecursiveAnchor DynamicAnchor Title Description Default Comment ReadOnly WriteOnly Examples Deprecated`)

// prepare readies n, whose edges are known, for accepts. Of a subschema that is usable
// the edges in place are $ref and allOf, then anyOf.
func (n *node) prepare() {
	s, p := n.sch, &n.place
	_, isLinear := s.Pattern.(*linear)
	_, list := s.Items.([]*jsonschema.Schema)
	p.usable = !list && (isLinear || s.Pattern == nil)
	for field, value := range reflect.ValueOf(*s).Fields() {
		p.usable = p.usable && (!field.IsExported() || value.IsZero() || slices.Contains(keywords, field.Name))
	}
	p.least, p.above, p.most, p.below = bound(s.Minimum, -1), bound(s.ExclusiveMinimum, -1), bound(s.Maximum, 1), bound(s.ExclusiveMaximum, 1)
	if s.Types != nil {
		for _, name := range s.Types.ToStrings() {
			p.kinds += kindsOf[name]
		}
	}
	if split := len(n.inPlace) - len(s.AnyOf); p.usable {
		p.allOf, p.anyOf = n.inPlace[:split], n.inPlace[split:]
	}
}

// bound returns the float64 that a bound is: infinity of that sign without a bound, and
// NaN, which no number is within, for a bound that is not exactly a float64.
func bound(at *big.Rat, sign int) float64 {
	if at == nil {
		return math.Inf(sign)
	}
	if f, exact := at.Float64(); exact {
		return f
	}
	return math.NaN()
}

// accepts reports whether raw, which a strict pass has accepted, certainly fits the
// subschema. False says nothing: the keyword, or the spelling of the value, is one that
// only the library judges.
func (n *node) accepts(raw json.RawMessage) bool {
	s, p, kind := n.sch, &n.place, jsontext.Value(raw).Kind()
	if s.Bool != nil {
		return *s.Bool
	}
	if kind == '0' && !bytes.ContainsAny(raw, ".eE") {
		kind = 'i'
	}
	closed := s.Enum != nil || s.Const != nil
	switch {
	case !p.usable || p.kinds != "" && strings.IndexByte(p.kinds, byte(kind)) < 0 || closed && kind != '"':
		return false
	case kind == '{' && !n.acceptsParts(raw, s.MinProperties, s.MaxProperties), kind == '[' && !n.acceptsParts(raw, s.MinItems, s.MaxItems):
		return false
	case kind == '"' && (closed || s.MinLength != nil || s.MaxLength != nil || s.Pattern != nil) && !n.acceptsText(raw):
		return false
	case (kind == '0' || kind == 'i') && !p.within(raw, kind == 'i' && len(raw) <= 15):
		return false
	}
	fits := func(to *node) bool { return to.accepts(raw) }
	return !slices.ContainsFunc(p.allOf, func(to *node) bool { return !to.accepts(raw) }) && (len(p.anyOf) == 0 || slices.ContainsFunc(p.anyOf, fits))
}

// within holds a number to the bounds. A number that is not exactly a float64 may be on
// either side of a bound that it rounds to.
func (p *place) within(raw json.RawMessage, exact bool) bool {
	v, err := strconv.ParseFloat(string(raw), 64)
	return err == nil && (v > p.least || exact && v == p.least) && v > p.above && (v < p.most || exact && v == p.most) && v < p.below
}

// acceptsText holds a string to enum, const, the bounds of its length, and pattern.
func (n *node) acceptsText(raw json.RawMessage) bool {
	s, text := n.sch, raw[1:len(raw)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		plain, _ := jsonrpc.Text(raw)
		text = []byte(plain)
	}
	same := func(v any) bool { want, ok := v.(string); return ok && want == string(text) }
	length := utf8.RuneCount(text)
	pattern, _ := s.Pattern.(*linear)
	return (s.Enum == nil || slices.ContainsFunc(s.Enum.Values, same)) && (s.Const == nil || same(*s.Const)) &&
		(s.MinLength == nil || length >= *s.MinLength) && (s.MaxLength == nil || length <= *s.MaxLength) &&
		(pattern == nil || pattern.Match(text)) // an estimate within the budget is within maxMatch
}

// acceptsParts holds the members of an object, or the elements of an array, to their
// subschemas and their number.
func (n *node) acceptsParts(raw json.RawMessage, least, most *int) bool {
	s, named, size, missing := n.sch, raw[0] == '{', 0, len(n.sch.Required)
	fits := jsonrpc.Each(raw, func(name []byte, value json.RawMessage) bool {
		size++
		others := n.down.items
		if named {
			for _, r := range s.Required {
				if r == string(name) {
					missing--
				}
			}
			if next, ok := n.down.props[string(name)]; ok {
				return next.accepts(value)
			}
			others = n.down.members
		}
		return (!named || s.AdditionalProperties != false) && (others == nil || others[0].accepts(value))
	})
	return fits && (!named || missing == 0) && (least == nil || size >= *least) && (most == nil || size <= *most)
}
