package clients

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// A toolRule says of the tools that a pattern fits whether they are offered.
type toolRule struct {
	pattern string
	offered bool
}

// choosing returns the members of a file that choose tools of all servers, and reports the
// profiles among them, which choose tools for some agents only.
func (r *reader) choosing(root *tree.Node) (keys []string) {
	for _, f := range r.client.Filters {
		if root.At(f.Path...) != nil {
			keys = append(keys, f.Path[0])
		}
	}
	p := r.client.Profiles
	if p == nil {
		return keys
	}
	var names []string
	for _, profile := range root.At(p.Path...).Each() {
		if slices.ContainsFunc(profile.Members, func(m *tree.Node) bool { return slices.Contains(p.Members, m.Key) }) {
			names = append(names, profile.Key)
		}
	}
	if len(names) > 0 {
		r.Warn(root.At(p.Path...).Named(), fmt.Sprintf("the tools that profiles %s choose are not read", strings.Join(names, ", ")),
			"the rights of roles say who may call what: toolgate.policy")
		keys = append(keys, p.Path[0])
	}
	return keys
}

// filterTools applies the filters of a file to the entries of its servers: a list of what is
// not offered, or an object of rules.
func (r *reader) filterTools(root, servers *tree.Node) {
	for _, f := range r.client.Filters {
		n := root.At(f.Path...)
		if n == nil {
			continue
		}
		r.note(n.Named(), `is read as "expose" and "exclude" of the servers`)
		var rules []toolRule // in the order in which later ones take precedence
		for _, item := range n.Items {
			if item.Kind == tree.String && !strings.HasPrefix(item.Text, "builtin:") {
				rules = append(rules, toolRule{item.Text, false})
			}
		}
		for _, m := range n.Members {
			rules = append(rules, toolRule{m.Key, m.Kind != tree.False})
		}
		slices.SortFunc(rules, func(a, b toolRule) int {
			return cmp.Or(len(a.pattern)-len(b.pattern), strings.Compare(a.pattern, b.pattern))
		})
		for _, s := range servers.Each() {
			if s.Kind == tree.Object {
				r.applyRules(s, n, rulesFor(rules, f.Prefix(cmp.Or(s.Former, s.Key))))
			}
		}
	}
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
func (r *reader) applyRules(s, n *tree.Node, rules []toolRule) {
	var offered, hidden []string
	only := false
	for _, rule := range rules {
		exception := func(pattern string) bool {
			return strings.ContainsAny(rule.pattern, "*?") || config.Fits(pattern, rule.pattern)
		}
		switch {
		case rule.pattern == "*":
			only = !rule.offered
		case !rule.offered:
			hidden = append(hidden, rule.pattern)
		default:
			offered = append(offered, rule.pattern)
			if slices.ContainsFunc(hidden, exception) {
				r.note(n.Named(), fmt.Sprintf("%s of server %s is not offered where a shorter pattern hides it", tree.Clip(rule.pattern), s.Key))
			}
		}
	}
	if only {
		r.addTexts(s, n, "expose", offered)
	}
	if len(hidden) > 0 {
		r.addTexts(s, n, "exclude", hidden)
	}
}

func (r *reader) addTexts(s, n *tree.Node, key string, texts []string) {
	holder := n.As(tree.Object, "")
	holder.Path = s.Path
	putList(holder, key, n, texts)
	list := holder.Members[0]
	list.Items = unique(list.Items) // two rules may concern the same tools of a server
	r.addFilter(s, list)
}
