package tree

import (
	"encoding/json"
	"errors"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/tailscale/hujson"
)

// parseTOML reads f into nodes, nil when it is not TOML. The library's decoder says
// whether it is; its syntax tree has the order and the positions.
func (r *Report) parseTOML(f *File) *Node {
	var whole map[string]any
	if err := toml.Unmarshal(f.Data, &whole); err != nil {
		at := f.At(0)
		if where, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column := where.Position()
			at = f.At(offsetOf(f.Data, line, column))
		}
		r.Fault(at, "is not TOML", "look for a missing quote, bracket or =, or a key that is written twice")
		return nil
	}
	var p unstable.Parser
	p.Reset(f.Data)
	root := &Node{Kind: Object}
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
func tomlKeys(e *unstable.Node) (keys []*Node) {
	for it := e.Key(); it.Next(); {
		k := it.Node()
		keys = append(keys, &Node{Key: string(k.Data), KeyAt: int(k.Raw.Offset), Offset: int(k.Raw.Offset)})
	}
	return keys
}

// table returns the object at a key below n, and makes what is missing. An element of a
// list is a new one at the end of the key, and the last one on the way.
func (n *Node) table(keys []*Node, element bool) *Node {
	for i, k := range keys {
		last := element && i == len(keys)-1
		next := n.Get(k.Key)
		if next == nil {
			next, k.Kind = k, Object
			if last {
				k.Kind = Array
			}
			n.Members = append(n.Members, k)
		}
		if next.Kind == Array {
			if last || len(next.Items) == 0 {
				next.Items = append(next.Items, &Node{Offset: k.Offset, Kind: Object})
			}
			next = next.Items[len(next.Items)-1]
		}
		n = next
	}
	return n
}

// set adds key = value to an object.
func (n *Node) set(e *unstable.Node) {
	keys := tomlKeys(e)
	last := keys[len(keys)-1]
	n.table(keys[:len(keys)-1], false).addMember(last.Key, last.KeyAt, tomlValue(e.Value(), last.Offset))
}

// tomlValue returns a value; at is its offset where the tree has none.
func tomlValue(v *unstable.Node, at int) *Node {
	if v.Raw.Length > 0 {
		at = int(v.Raw.Offset)
	}
	n := &Node{Offset: at, Kind: String, Text: string(v.Data)}
	switch v.Kind {
	case unstable.Array:
		n.Kind = Array
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.Comment {
				n.Items = append(n.Items, tomlValue(it.Node(), at))
			}
		}
	case unstable.InlineTable:
		n.Kind = Object
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				n.set(it.Node())
			}
		}
	case unstable.Bool, unstable.Integer, unstable.Float:
		var of map[string]any
		err := toml.Unmarshal([]byte("x="+n.Text), &of)
		n.scalar(of["x"], err)
	}
	return n
}

// scalar makes n a literal of JSON.
func (n *Node) scalar(value any, err error) {
	text, encoding := json.Marshal(value)
	if err != nil || encoding != nil {
		n.flaw, text = "is a number that JSON does not have", []byte("0")
	}
	n.Kind, n.Text = hujson.Literal(text).Kind(), string(text)
}
