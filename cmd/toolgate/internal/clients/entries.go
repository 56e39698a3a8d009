package clients

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// Entries reads the servers of mcp.json as Read reads those of a client. What the
// overlay and the member toolgate say about the same keys (timeout, expose, exclude) is in
// the entries; all other settings are not. Variables stay references, which config.Expand expands.
func Entries(opts config.Options) (*Reading, error) {
	r := &reader{}
	opts.Translate = func(root *tree.Node, report *tree.Report) []string {
		r.Report = report
		return r.translate(root)
	}
	root, report := config.Document(opts)
	r.Report = report
	servers := cmp.Or(root.Get("mcpServers"), root.Get("servers"))
	for _, s := range servers.Each() {
		if s.Kind != tree.Object {
			continue
		}
		for _, m := range root.At("toolgate", "servers", s.Key).Each() {
			own := s.Get(m.Key)
			switch {
			case m.Key == "expose" || m.Key == "exclude":
				r.addFilter(s, m)
			case m.Key == "timeout" && own != nil:
				own.Become(m)
			case m.Key == "timeout":
				s.Members = append(s.Members, m)
			}
		}
		// What is offered after all filters is in as few filters as can say it.
		if expose, exclude := s.Get("expose"), s.Get("exclude"); expose != nil && !slices.ContainsFunc(expose.Items, isPattern) {
			expose.Items = slices.DeleteFunc(expose.Items, func(i *tree.Node) bool { return matches(exclude.Elements(), i.Text) })
			s.Members = slices.DeleteFunc(s.Members, func(m *tree.Node) bool { return m == exclude })
		}
	}
	if servers != nil {
		servers.Literal()
	}
	entries := r.entries(servers)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return &Reading{Client: r.client, Servers: entries, Notes: r.Warnings, Inputs: r.inputs}, nil
}

// Members returns what Server and Settings say, by key: what Client.Export takes.
func (e Entry) Members() map[string]any {
	var members map[string]any
	for _, text := range []json.RawMessage{e.Server, e.Settings} {
		if text != nil {
			_ = json.Unmarshal(text, &members) // Normalise and Entries have written it
		}
	}
	return members
}

// addFilter adds a list to what an entry offers, or does not: the entry offers less.
func (r *reader) addFilter(s, m *tree.Node) {
	own := s.Get(m.Key)
	switch {
	case own == nil:
		s.Members = append(s.Members, m)
	case m.Key == "exclude":
		own.Items = unique(slices.Concat(own.Items, m.Items))
	default:
		own.Items = unique(slices.Concat(r.inBoth(own.Items, m.Items), r.inBoth(m.Items, own.Items)))
	}
}

// inBoth returns the names among items that another list has, too. It keeps a pattern only if
// the other list has the same pattern or "*": another one could offer more tools.
func (r *reader) inBoth(items, others []*tree.Node) (found []*tree.Node) {
	all := slices.ContainsFunc(others, func(o *tree.Node) bool { return o.Text == "*" })
	for _, i := range items {
		same := slices.ContainsFunc(others, func(o *tree.Node) bool { return o.Text == i.Text })
		switch {
		case all || same || !isPattern(i) && matches(others, i.Text):
			found = append(found, i)
		case isPattern(i) && i.Text != "*":
			r.Warn(i, "is left out: another filter of the server has not the same pattern", "name the tools")
		}
	}
	return found
}

func isPattern(n *tree.Node) bool { return strings.ContainsAny(n.Text, "*?") }

// matches reports whether a list of patterns has one for a tool.
func matches(patterns []*tree.Node, tool string) bool {
	return slices.ContainsFunc(patterns, func(p *tree.Node) bool { return config.Fits(p.Text, tool) })
}
