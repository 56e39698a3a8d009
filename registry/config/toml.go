package config

import (
	"encoding/json"
	"errors"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/tailscale/hujson"
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
	var p unstable.Parser
	p.Reset(f.data)
	root := &node{kind: kindObject}
	table := root
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			table = root.table(tomlKeys(e), false)
		case unstable.ArrayTable:
			table = root.table(tomlKeys(e), true)
		case unstable.KeyValue:
			table.set(e)
		}
	}
	return root
}

// tomlKeys returns a dotted key, as members without values.
func tomlKeys(e *unstable.Node) (keys []*node) {
	for it := e.Key(); it.Next(); {
		k := it.Node()
		keys = append(keys, &node{key: string(k.Data), keyAt: int(k.Raw.Offset), offset: int(k.Raw.Offset)})
	}
	return keys
}

// table returns the object at a key below n, and makes what is missing. An element of a
// list is a new one at the end of the key, and the last one on the way.
func (n *node) table(keys []*node, element bool) *node {
	for i, k := range keys {
		last := element && i == len(keys)-1
		next := n.get(k.key)
		if next == nil {
			next, k.kind = k, kindObject
			if last {
				k.kind = kindArray
			}
			n.members = append(n.members, k)
		}
		if next.kind == kindArray {
			if last || len(next.items) == 0 {
				next.items = append(next.items, &node{offset: k.offset, kind: kindObject})
			}
			next = next.items[len(next.items)-1]
		}
		n = next
	}
	return n
}

// set adds key = value to an object.
func (n *node) set(e *unstable.Node) {
	keys := tomlKeys(e)
	last := keys[len(keys)-1]
	n.table(keys[:len(keys)-1], false).addMember(last.key, last.keyAt, tomlValue(e.Value(), last.offset))
}

// tomlValue returns a value; at is its offset where the tree has none.
func tomlValue(v *unstable.Node, at int) *node {
	if v.Raw.Length > 0 {
		at = int(v.Raw.Offset)
	}
	n := &node{offset: at, kind: kindString, text: string(v.Data)}
	switch v.Kind {
	case unstable.Array:
		n.kind = kindArray
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.Comment {
				n.items = append(n.items, tomlValue(it.Node(), at))
			}
		}
	case unstable.InlineTable:
		n.kind = kindObject
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				n.set(it.Node())
			}
		}
	case unstable.Bool, unstable.Integer, unstable.Float:
		var of map[string]any
		err := toml.Unmarshal([]byte("x="+n.text), &of)
		n.scalar(of["x"], err)
	}
	return n
}

// scalar makes n a literal of JSON.
func (n *node) scalar(value any, err error) {
	text, encoding := json.Marshal(value)
	if err != nil || encoding != nil {
		n.flaw, text = "is a number that JSON does not have", []byte("0")
	}
	n.kind, n.text = hujson.Literal(text).Kind(), string(text)
}
