package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML reads f into nodes, nil when it is not TOML. The library's decoder says
// whether it is; its syntax tree has the order and the positions.
func (l *loader) parseTOML(f *file) *node {
	var whole map[string]any
	if err := toml.Unmarshal(f.data, &whole); err != nil {
		at := f.at(0)
		if where, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column := where.Position()
			at = f.at(offsetOf(f.data, line, column))
		}
		l.fault(at, "is not TOML", "look for a missing quote, bracket or =, or a key that is written twice")
		return nil
	}
	t := tomlTree{file: f, loader: l}
	t.parser.Reset(f.data)
	root := &node{file: f, kind: kindObject}
	table := root
	for t.parser.NextExpression() {
		switch e := t.parser.Expression(); e.Kind {
		case unstable.Table:
			table = t.table(root, t.keys(e), false)
		case unstable.ArrayTable:
			table = t.table(root, t.keys(e), true)
		case unstable.KeyValue:
			t.set(table, e)
		}
	}
	return root
}

// tomlTree makes nodes of the syntax tree of one file.
type tomlTree struct {
	file   *file
	loader *loader
	parser unstable.Parser
}

// keys returns a dotted key, as members without values.
func (t *tomlTree) keys(e *unstable.Node) (keys []*node) {
	for it := e.Key(); it.Next(); {
		k := it.Node()
		keys = append(keys, &node{file: t.file, key: string(k.Data), keyAt: int(k.Raw.Offset), offset: int(k.Raw.Offset)})
	}
	return keys
}

// table returns the object at a key below n, and makes what is missing. An element of a
// list is a new one at the end of the key, and the last one on the way.
func (t *tomlTree) table(n *node, keys []*node, element bool) *node {
	for i, k := range keys {
		next := n.get(k.key)
		if next == nil {
			k.path, k.kind = join(n.path, k.key), kindObject
			if element && i == len(keys)-1 {
				k.kind = kindArray
			}
			n.members = append(n.members, k)
			next = k
		}
		if next.kind == kindArray && (element && i == len(keys)-1 || len(next.items) == 0) {
			next.items = append(next.items, &node{file: t.file, offset: k.offset, kind: kindObject, path: fmt.Sprintf("%s[%d]", next.path, len(next.items))})
		}
		if next.kind == kindArray {
			next = next.items[len(next.items)-1]
		}
		n = next
	}
	return n
}

// set adds key = value to an object.
func (t *tomlTree) set(n *node, e *unstable.Node) {
	keys := t.keys(e)
	last := keys[len(keys)-1]
	n = t.table(n, keys[:len(keys)-1], false)
	value := t.value(e.Value(), join(n.path, last.key), last.offset)
	value.key, value.keyAt = last.key, last.keyAt
	n.members = append(n.members, value)
}

// value returns a value; at is its offset where the tree has none.
func (t *tomlTree) value(v *unstable.Node, path string, at int) *node {
	if v.Raw.Length > 0 {
		at = int(v.Raw.Offset)
	}
	n := &node{file: t.file, offset: at, path: path, kind: kindString, text: string(v.Data)}
	switch v.Kind {
	case unstable.Array:
		n.kind = kindArray
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.Comment {
				n.items = append(n.items, t.value(it.Node(), fmt.Sprintf("%s[%d]", path, len(n.items)), at))
			}
		}
	case unstable.InlineTable:
		n.kind = kindObject
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				t.set(n, it.Node())
			}
		}
	case unstable.Bool:
		n.kind = kind(n.text[0])
	case unstable.Integer:
		i, err := strconv.ParseInt(n.text, 0, 64)
		t.loader.number(n, strconv.FormatInt(i, 10), err == nil)
	case unstable.Float:
		f, err := strconv.ParseFloat(strings.ReplaceAll(n.text, "_", ""), 64)
		t.loader.number(n, decimal(f), err == nil && finite(f))
	}
	return n
}

// number makes n a number of JSON.
func (l *loader) number(n *node, text string, fine bool) {
	if !fine {
		l.fault(n, "is a number that JSON does not have", "")
		text = "0"
	}
	n.kind, n.text = kindNumber, text
}

func finite(f float64) bool { return !math.IsInf(f, 0) && !math.IsNaN(f) }

func decimal(f float64) string {
	if !finite(f) {
		return "0"
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}
