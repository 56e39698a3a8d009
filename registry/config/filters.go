package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A toolRule says of the tools that a pattern fits whether they are offered.
type toolRule struct {
	pattern string
	offered bool
}

// choosing returns the members of a file that choose tools of all servers, and reports the
// profiles among them, which choose tools for some agents only.
func (l *loader) choosing(root *node) (keys []string) {
	for _, f := range l.client.Filters {
		if root.at(f.Path...) != nil {
			keys = append(keys, f.Path[0])
		}
	}
	p := l.client.Profiles
	if p == nil {
		return keys
	}
	var names []string
	for _, profile := range root.at(p.Path...).each() {
		if slices.ContainsFunc(profile.members, func(m *node) bool { return slices.Contains(p.Members, m.key) }) {
			names = append(names, profile.key)
		}
	}
	if len(names) > 0 {
		l.warn(root.at(p.Path...).named(), fmt.Sprintf("the tools that profiles %s choose are not read", strings.Join(names, ", ")),
			"the rights of roles say who may call what: toolgate.policy")
		keys = append(keys, p.Path[0])
	}
	return keys
}

// filterTools applies the filters of a file to the entries of its servers.
func (l *loader) filterTools(root, servers *node) {
	for _, f := range l.client.Filters {
		n := root.at(f.Path...)
		if n == nil {
			continue
		}
		l.note(n.named(), `is read as "expose" and "exclude" of the servers`)
		rules := toolRules(n)
		for _, s := range servers.each() {
			if s.kind == kindObject {
				l.applyRules(s, n, rulesFor(rules, f.Prefix(cmp.Or(s.former, s.key))))
			}
		}
	}
}

// toolRules returns the rules of a list of what is not offered, or of an object, in the
// order in which later ones take precedence.
func toolRules(n *node) (rules []toolRule) {
	for _, item := range n.items {
		if item.kind == kindString && !strings.HasPrefix(item.text, "builtin:") {
			rules = append(rules, toolRule{item.text, false})
		}
	}
	for _, m := range n.members {
		rules = append(rules, toolRule{m.key, m.kind != kindFalse})
	}
	slices.SortFunc(rules, func(a, b toolRule) int {
		return cmp.Or(len(a.pattern)-len(b.pattern), strings.Compare(a.pattern, b.pattern))
	})
	return rules
}

// rulesFor returns the rules as they concern tools whose names have a prefix, without it. A
// rule for all of them ends those before it.
func rulesFor(rules []toolRule, prefix string) (found []toolRule) {
	for _, r := range rules {
		rest := remainders(r.pattern, prefix)
		if slices.Contains(rest, "*") {
			found, rest = nil, []string{"*"}
		}
		for _, pattern := range rest {
			if pattern != "" { // which no tool is called
				found = append(found, toolRule{pattern, r.offered})
			}
		}
	}
	return found
}

// remainders returns patterns of all that follows prefix in the texts that a pattern fits.
func remainders(pattern, prefix string) []string {
	now := []string{pattern}
	for i := range len(prefix) {
		var next []string
		for _, p := range now {
			for strings.HasPrefix(p, "*") {
				next = append(next, p)
				p = p[1:]
			}
			if p != "" && (p[0] == '?' || p[0] == prefix[i]) {
				next = append(next, p[1:])
			}
		}
		slices.Sort(next)
		now = slices.Compact(next)
	}
	return now
}

// applyRules writes rules as filters of an entry, at the place of n. What filters cannot
// say, an exception from what is not offered, is reported: the entry offers less.
func (l *loader) applyRules(s, n *node, rules []toolRule) {
	var offered, hidden []string
	only := false
	for _, r := range rules {
		exception := func(pattern string) bool { return strings.ContainsAny(r.pattern, "*?") || globs(pattern, r.pattern) }
		switch {
		case r.pattern == "*":
			only = !r.offered
		case !r.offered:
			hidden = append(hidden, r.pattern)
		default:
			offered = append(offered, r.pattern)
			if slices.ContainsFunc(hidden, exception) {
				l.note(n.named(), fmt.Sprintf("%s of server %s is not offered where a shorter pattern hides it", clip(r.pattern), s.key))
			}
		}
	}
	if only {
		l.addTexts(s, n, "expose", offered)
	}
	if len(hidden) > 0 {
		l.addTexts(s, n, "exclude", hidden)
	}
}

func (l *loader) addTexts(s, n *node, key string, texts []string) {
	holder := n.as(kindObject, "")
	holder.path = s.path
	holder.putList(key, n, texts)
	list := holder.members[0]
	list.items = unique(list.items) // two rules may concern the same tools of a server
	l.addFilter(s, list)
}
