package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Entries reads the servers of mcp.json as Normalise reads those of a client. What the
// overlay and the member toolgate say about the same keys (timeout, expose, exclude) is in
// the entries; all other settings are not. Variables stay references, which Expand expands.
func Entries(opts Options) (*Normalised, error) {
	l := &loader{opts: opts.withDefaults(), cfg: defaults()}
	l.readRoot()
	servers := l.root.get(l.entries)
	for _, s := range servers.each() {
		if s.kind == kindObject {
			l.joinSettings(s, l.settings().at("servers", s.key))
		}
	}
	if servers != nil {
		servers.literal()
	}
	return l.finishNotes(&Normalised{Client: l.client, Servers: l.finishEntries(servers)})
}

// Expand returns a text of Entries with its references replaced by what they stand for. The
// error names a variable that is not set, or a file that cannot be read.
func Expand(opts Options, text string) (string, error) {
	l := &loader{opts: opts.withDefaults()}
	value, gap := l.expand(text, &file{path: opts.Path})
	if gap != nil {
		return "", fmt.Errorf("%s\nhint: %s", gap.message, gap.hint)
	}
	return value, nil
}

// Members returns what Server and Settings say, by key: what dialect.Client.Export takes.
func (e Entry) Members() map[string]any {
	var members map[string]any
	for _, text := range []json.RawMessage{e.Server, e.Settings} {
		if text != nil {
			_ = json.Unmarshal(text, &members) // Normalise and Entries have written it
		}
	}
	return members
}

// joinSettings puts into an entry what the settings of its server say about the same keys,
// and what is offered after all filters into as few filters as can say it.
func (l *loader) joinSettings(s, settings *node) {
	for _, m := range settings.each() {
		switch {
		case m.key == "expose" || m.key == "exclude":
			l.addFilter(s, m)
		case m.key == "timeout" && s.get(m.key) != nil:
			s.get(m.key).become(m)
		case m.key == "timeout":
			s.members = append(s.members, m)
		}
	}
	expose, exclude := s.get("expose"), s.get("exclude")
	if expose == nil || slices.ContainsFunc(expose.items, isPattern) {
		return
	}
	expose.items = slices.DeleteFunc(expose.items, func(i *node) bool { return matches(exclude.elements(), i.text) })
	s.members = slices.DeleteFunc(s.members, func(m *node) bool { return m == exclude })
}

// addFilter adds a list to what an entry offers, or does not: the entry offers less.
func (l *loader) addFilter(s, m *node) {
	own := s.get(m.key)
	switch {
	case own == nil:
		s.members = append(s.members, m)
	case m.key == "exclude":
		own.items = unique(slices.Concat(own.items, m.items))
	default:
		own.items = unique(slices.Concat(l.inBoth(own.items, m.items), l.inBoth(m.items, own.items)))
	}
}

// inBoth returns the names among items that another list has, too. Of patterns it keeps
// those that the other list has, or all when that has "*", for others would offer more.
func (l *loader) inBoth(items, others []*node) (found []*node) {
	all := slices.ContainsFunc(others, func(o *node) bool { return o.text == "*" })
	for _, i := range items {
		same := slices.ContainsFunc(others, func(o *node) bool { return o.text == i.text })
		switch {
		case all || same || !isPattern(i) && matches(others, i.text):
			found = append(found, i)
		case isPattern(i) && i.text != "*":
			l.warn(i, "is left out: another filter of the server has not the same pattern", "name the tools")
		}
	}
	return found
}

func isPattern(n *node) bool { return strings.ContainsAny(n.text, "*?") }

// matches reports whether a list of patterns has one for a tool.
func matches(patterns []*node, tool string) bool {
	return slices.ContainsFunc(patterns, func(p *node) bool { return globs(p.text, tool) })
}
