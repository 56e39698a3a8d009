package clients

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// rewrite turns an entry into toolgate's own form, by the table, and says what it changes. It
// reports whether the server is left out, alone, since toolgate does not have its transport.
func (r *reader) rewrite(s *tree.Node) (leftOut bool) {
	if s.Kind != tree.Object {
		return false
	}
	s.Walk(r.rewriteTexts)
	members := s.Members
	s.Members = nil
	for _, m := range members {
		r.rewriteMember(s, m)
	}
	r.splitCommand(s)
	r.rewriteTimeout(s.Get("timeout"))
	if n := s.Get("exclude"); n != nil && n.Kind == tree.Array {
		n.Items = unique(n.Items)
	}
	word := rewriteType(s)
	if word == "" {
		return false
	}
	r.leftOut = append(r.leftOut, s.Key)
	r.Warn(s.Named(), fmt.Sprintf("server %s is left out: transport %q is not supported", s.Key, tree.Clip(word)),
		"toolgate reaches servers of type stdio, http, sse and ndjson")
	return true
}

// rewriteTexts rewrites what the client expands in its own way.
func (r *reader) rewriteTexts(n *tree.Node) {
	for _, e := range r.client.Expand {
		found := e.Pattern.FindString(n.Text)
		if n.Kind != tree.String || found == "" {
			continue
		}
		with := e.Pattern.ReplaceAllString(found, e.With)
		r.note(n, fmt.Sprintf("%s is read as %s, as %s expands it", tree.Clip(strings.TrimSpace(found)), tree.Clip(strings.TrimSpace(with)), r.client.Name))
		n.Text = e.Pattern.ReplaceAllString(n.Text, e.With)
	}
}

// note warns of something that is read in another form, once for a file.
func (r *reader) note(n *tree.Node, message string) {
	if !slices.Contains(r.noted, message) {
		r.noted = append(r.noted, message)
		r.Warn(n, message, "")
	}
}

// rewriteMember adds a member to an entry, under toolgate's key for it. It reports a key for
// which toolgate has no use. One that looks like a misspelling of a key that it has is a fault:
// a limit or a filter would be lost.
func (r *reader) rewriteMember(s, m *tree.Node) {
	k, known := Keys()[m.Key]
	if m.Key == "tools" && m.Kind == tree.Object {
		k = Key{Why: "consent"} // an approval mode for each tool
	}
	why := read().Why[k.Why]
	switch {
	case slices.Contains(config.EntryKeys, m.Key):
		r.add(s, m)
	case Unsupported(m.Key):
		m.Key = "type"
		r.add(s, m.As(tree.String, keyText(m)))
	case k.To != "":
		n := r.reform(m, k.Form)
		switch {
		case n == nil:
			r.Warn(m.Named(), "is ignored", "")
			return
		case k.Form != "not":
			r.note(m.Named(), fmt.Sprintf("%q is read as %q", m.Key, k.To))
		case n.Kind == tree.True:
			r.Warn(m.Named(), fmt.Sprintf("false is read as %q: true", k.To), "")
		}
		n.Key = k.To
		r.add(s, n)
	case why[0] != "":
		r.Warn(m.Named(), why[0], why[1])
	case known:
		r.note(m.Named(), fmt.Sprintf("%q is ignored", m.Key))
	default:
		switch near := text.Nearest(m.Key, append(slices.Sorted(maps.Keys(Keys())), config.EntryKeys...)); {
		case near != "" && strings.EqualFold(near, m.Key):
			r.Fault(m.Named(), fmt.Sprintf("differs from %q only in case", near), fmt.Sprintf("write %q", near))
		case near != "":
			r.Fault(m.Named(), "unknown key", fmt.Sprintf("did you mean %q?", near))
		default:
			r.Warn(m.Named(), "is ignored", "")
		}
	}
}

// keyText returns the last key of a member's path, which rewriting leaves as it was.
func keyText(n *tree.Node) string { return n.Path[strings.LastIndexByte(n.Path, '.')+1:] }

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reform returns a value in toolgate's form. A value of another kind than the client
// writes is left as it is, for the schema to report.
func (r *reader) reform(m *tree.Node, form string) *tree.Node {
	switch {
	case form == "not" && m.Kind == tree.True:
		m.Kind, m.Text = tree.False, "false"
	case form == "not" && m.Kind == tree.False:
		m.Kind, m.Text = tree.True, "true"
	case form == "names":
		out := m.As(tree.Object, "")
		if m.Kind != tree.Array {
			r.WrongType(m, "array")
		}
		for _, item := range m.Items {
			name := item
			if item.Kind == tree.Object {
				name = item.Get("name")
			}
			if name == nil || name.Kind != tree.String || !variable.MatchString(name.Text) {
				r.Fault(item, "is not the name of a variable", "a name has letters, digits and \"_\"")
				continue
			}
			out.Members = append(out.Members, variableOf(name, name.Text, "", name.Text))
		}
		return out
	case form == "variables" && m.Kind == tree.Object:
		for _, v := range m.Members {
			v.Kind, v.Text = tree.String, "${"+v.Text+"}"
		}
	case form == "bearer":
		out := m.As(tree.Object, "")
		if m.Kind == tree.String {
			out.Members = []*tree.Node{variableOf(m, "Authorization", "Bearer ", m.Text)}
		} else {
			r.WrongType(m, "string")
		}
		return out
	case form == "headers" && m.Kind == tree.Object:
		if m.Get("headers") == nil {
			return nil
		}
		m.Become(m.Get("headers"))
	case form == "sec" && m.Kind == tree.Number:
		r.seconds(m)
	}
	return m
}

// variableOf returns a member that has the value of a variable.
func variableOf(at *tree.Node, key, before, variable string) *tree.Node {
	out := at.As(tree.String, before+"${"+variable+"}")
	out.Key = key
	return out
}

// seconds makes a duration of a number of seconds.
func (r *reader) seconds(m *tree.Node) {
	f, err := strconv.ParseFloat(m.Text, 64)
	const most = 1e9
	if err != nil || f > most {
		return
	}
	if m.Key == "timeout" {
		r.note(m, fmt.Sprintf("%s is read as %ss: %s counts seconds", m.Text, m.Text, r.client.Name))
	}
	m.Kind, m.Text = tree.String, time.Duration(f*float64(time.Second)).String()
}

// add appends a member to an entry. Two that mean the same are joined where they can be, and
// a fault where they cannot.
func (r *reader) add(s, m *tree.Node) {
	first := s.Get(m.Key)
	switch {
	case first == nil:
		s.Members = append(s.Members, m)
	case m.Key == "exclude" && first.Kind == tree.Array && m.Kind == tree.Array:
		first.Items = append(first.Items, m.Items...)
	case (m.Key == "env" || m.Key == "headers") && first.Kind == tree.Object && m.Kind == tree.Object:
		r.Merge(first, m)
	default:
		r.Fault(m.Named(), fmt.Sprintf("conflicts with %q: they are synonyms", keyText(first)), "keep one of them")
	}
}

// rewriteType writes the client's word for a transport as toolgate does. It returns the
// transport that toolgate does not have, "" for none.
func rewriteType(s *tree.Node) (unsupported string) {
	if n := s.Get("url"); n != nil && n.Kind == tree.String {
		if scheme, _, ok := strings.Cut(n.Text, "://"); ok && Unsupported(scheme) {
			return scheme
		}
	}
	n := s.Get("type")
	if n == nil || n.Kind != tree.String {
		return ""
	}
	word, known := Types()[n.Text]
	switch {
	case known:
		n.Text = word
	case Unsupported(n.Text), !strings.Contains(n.Text, "${") && n.Text != "" && text.Nearest(n.Text, slices.Collect(maps.Keys(Types()))) == "":
		return n.Text
	}
	return ""
}

// unique returns strings of which each is there once.
func unique(items []*tree.Node) (out []*tree.Node) {
	for _, item := range items {
		if !slices.ContainsFunc(out, func(o *tree.Node) bool { return o.Kind == item.Kind && o.Text == item.Text }) {
			out = append(out, item)
		}
	}
	return out
}

// splitCommand reads a command that is a list of program and arguments, or an object of
// path, args and env.
func (r *reader) splitCommand(s *tree.Node) {
	n := s.Get("command")
	switch {
	case n == nil:
	case n.Kind == tree.Array && len(n.Items) > 0:
		if args := s.Get("args"); args != nil {
			r.Fault(args.Named(), `conflicts with "command", a list that has the arguments`, "join them")
		} else {
			r.note(n, `a list is read as "command" and "args"`)
			args = n.As(tree.Array, "")
			args.Key, args.Items = "args", n.Items[1:]
			r.add(s, args)
		}
		n.Become(n.Items[0])
	case n.Kind == tree.Object && n.Get("path") != nil:
		r.note(n, `an object is read as "command", "args" and "env"`)
		for _, m := range n.Members {
			if (m.Key == "args" || m.Key == "env") && m.Kind != tree.Null {
				r.add(s, m)
			}
		}
		n.Become(n.Get("path"))
	}
}

// rewriteTimeout reads a time-out in the unit of the client.
func (r *reader) rewriteTimeout(n *tree.Node) {
	longer := func(most int64) bool {
		f, err := strconv.ParseFloat(n.Text, 64)
		return err == nil && f > float64(most)
	}
	switch {
	case n == nil:
	case n.Kind == tree.Object && n.Get("request") != nil:
		r.note(n, `"request" is read as the time-out`)
		n.Become(n.Get("request"))
	case n.Kind != tree.Number || keyText(n) != "timeout":
	case r.client.Unit != "s":
		if ms, err := strconv.Atoi(n.Text); err == nil && ms > 0 && ms < 1000 {
			r.Warn(n, n.Text+" is milliseconds, less than a second", fmt.Sprintf(`if seconds were meant, write "%ss"`, n.Text))
		}
	case r.own && longer(999): // toolgate's own file counts milliseconds
	case r.client.Longest > 0 && longer(r.client.Longest):
		r.note(n, fmt.Sprintf("%s is read as milliseconds: %s accepts at most %d seconds", tree.Clip(n.Text), r.client.Name, r.client.Longest))
	default:
		r.seconds(n)
	}
}
