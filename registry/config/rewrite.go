package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/dialect"
)

// entryKeys are the keys of a server's entry in toolgate's own form.
var entryKeys = []string{"type", "command", "args", "env", "cwd", "envFile", "url", "headers", "disabled", "timeout", "expose", "exclude"}

// rewriteServers turns every entry into toolgate's own form, by the table of dialects,
// and says what it changes. A server whose transport toolgate does not have is left
// out, alone.
func (l *loader) rewriteServers(servers *node) {
	servers.members = slices.DeleteFunc(servers.members, func(s *node) bool {
		word := ""
		if s.kind == kindObject {
			s.walk(l.rewriteTexts)
			s.members = l.rewriteMembers(s)
			word = l.rewriteValues(s)
		}
		if word == "" {
			return false
		}
		l.leftOut = append(l.leftOut, s.key)
		l.warn(s.named(), fmt.Sprintf("server %s is left out: transport %q is not supported", s.key, clip(word)),
			"toolgate reaches servers of type stdio, http, sse and ndjson")
		return true
	})
}

// rewriteTexts rewrites what the client expands in its own way.
func (l *loader) rewriteTexts(n *node) {
	for _, e := range l.client.Expand {
		found := e.Pattern.FindString(n.text)
		if n.kind != kindString || found == "" {
			continue
		}
		with := e.Pattern.ReplaceAllString(found, e.With)
		l.note(n, fmt.Sprintf("%s is read as %s, as %s expands it", clip(strings.TrimSpace(found)), clip(strings.TrimSpace(with)), l.client.Name))
		n.text = e.Pattern.ReplaceAllString(n.text, e.With)
	}
}

// note warns of something that is read in another form, once for a file.
func (l *loader) note(n *node, message string) {
	if l.noted == nil {
		l.noted = make(map[string]bool)
	}
	if key := n.file.path + "\n" + message; !l.noted[key] {
		l.noted[key] = true
		l.warn(n, message, "")
	}
}

// rewriteMembers returns the members of an entry under toolgate's keys.
func (l *loader) rewriteMembers(s *node) (out []*node) {
	for _, m := range s.members {
		if slices.Contains(entryKeys, m.key) {
			out = l.add(out, m)
			continue
		}
		k, known := dialect.Keys()[m.key]
		if m.key == "tools" && m.kind == kindObject {
			k = dialect.Key{Why: dialect.WhyConsent} // an approval mode for each tool
		}
		switch {
		case dialect.Unsupported(m.key):
			m.key = "type"
			out = l.add(out, m.as(kindString, m.keyText()))
		case k.To == "":
			l.foreign(m, k.Why, known)
		default:
			if n := l.translate(m, k); n != nil {
				out = l.add(out, n)
			}
		}
	}
	return out
}

// keyText returns the last key of a member's path, which rewriting leaves as it was.
func (n *node) keyText() string { return n.path[strings.LastIndexByte(n.path, '.')+1:] }

// translate returns a member in toolgate's form; nil when it says nothing there.
func (l *loader) translate(m *node, k dialect.Key) *node {
	was := m.key
	n := l.reform(m, k.Form)
	switch {
	case n == nil:
		l.warn(m.named(), "is ignored", "")
		return nil
	case k.Form != dialect.FormNot:
		l.note(m.named(), fmt.Sprintf("%q is read as %q", was, k.To))
	case n.kind == kindTrue:
		l.warn(m.named(), fmt.Sprintf("false is read as %q: true", k.To), "")
	}
	n.key = k.To
	return n
}

// reform returns a value in toolgate's form. A value of another kind than the client
// writes is left as it is, for the schema to report.
func (l *loader) reform(m *node, form string) *node {
	switch {
	case form == dialect.FormNot && m.kind == kindTrue:
		m.kind, m.text = kindFalse, "false"
	case form == dialect.FormNot && m.kind == kindFalse:
		m.kind, m.text = kindTrue, "true"
	case form == dialect.FormNames:
		return l.passedOn(m)
	case form == dialect.FormVariables && m.kind == kindObject:
		for _, v := range m.members {
			v.kind, v.text = kindString, "${"+v.text+"}"
		}
	case form == dialect.FormBearer:
		out := m.as(kindObject, "")
		if m.kind == kindString {
			out.members = []*node{reference(m, "Authorization", "Bearer ", m.text)}
		} else {
			l.wrongType(m, schema.Violation{Want: []string{"string"}})
		}
		return out
	case form == dialect.FormHeaders && m.kind == kindObject:
		if m.get("headers") == nil {
			return nil
		}
		m.become(m.get("headers"))
	case form == dialect.FormSeconds && m.kind == kindNumber:
		l.seconds(m)
	}
	return m
}

// as returns a copy of n with another value.
func (n *node) as(k kind, text string) *node {
	out := *n
	out.kind, out.text, out.members, out.items = k, text, nil, nil
	return &out
}

// become gives a member another value.
func (n *node) become(value *node) {
	key, keyAt, path := n.key, n.keyAt, n.path
	*n = *value
	n.key, n.keyAt, n.path = key, keyAt, path
}

// reference returns a member that has the value of a variable.
func reference(at *node, key, before, variable string) *node {
	out := at.as(kindString, before+"${"+variable+"}")
	out.key = key
	return out
}

// passedOn makes variables of a list of their names.
func (l *loader) passedOn(m *node) *node {
	out := m.as(kindObject, "")
	if m.kind != kindArray {
		l.wrongType(m, schema.Violation{Want: []string{"array"}})
	}
	for _, item := range m.items {
		name := item
		if item.kind == kindObject {
			name = item.get("name")
		}
		if name == nil || name.kind != kindString || !variable.MatchString(name.text) {
			l.fault(item, "is not the name of a variable", "a name has letters, digits and \"_\"")
			continue
		}
		out.members = append(out.members, reference(name, name.text, "", name.text))
	}
	return out
}

// seconds makes a duration of a number of seconds.
func (l *loader) seconds(m *node) {
	f, err := strconv.ParseFloat(m.text, 64)
	const most = 1e9
	if err != nil || f > most {
		return
	}
	if m.key == "timeout" {
		l.note(m, fmt.Sprintf("%s is read as %ss: %s counts seconds", m.text, m.text, l.client.Name))
	}
	m.kind, m.text = kindString, time.Duration(f*float64(time.Second)).String()
}

// add appends a member. Two that mean the same are joined where they can be, and a
// fault where they cannot.
func (l *loader) add(members []*node, m *node) []*node {
	i := slices.IndexFunc(members, func(o *node) bool { return o.key == m.key })
	if i < 0 {
		return append(members, m)
	}
	first := members[i]
	switch {
	case m.key == "exclude" && first.kind == kindArray && m.kind == kindArray:
		first.items = append(first.items, m.items...)
	case (m.key == "env" || m.key == "headers") && first.kind == kindObject && m.kind == kindObject:
		l.merge(first, m)
	default:
		l.fault(m.named(), fmt.Sprintf("conflicts with %q: they are synonyms", first.keyText()), "keep one of them")
	}
	return members
}

// foreign reports a key of an entry that toolgate has no use for. A key that looks like
// a misspelling of one that it has is a fault: a limit or a filter would be lost.
func (l *loader) foreign(m *node, why string, known bool) {
	near := Nearest(m.key, append(slices.Sorted(maps.Keys(dialect.Keys())), entryKeys...))
	switch {
	case why == dialect.WhyConsent:
		l.warn(m.named(), "is ignored: client consent is not policy", "who may call what is decided by toolgate.policy")
	case why == dialect.WhySignIn:
		l.warn(m.named(), "is ignored: toolgate does not sign in as this client does", "give the server a credential in headers or env")
	case why == dialect.WhyStartup:
		l.warn(m.named(), "is ignored: the time-out of a call bounds the start too", "")
	case known:
		l.note(m.named(), fmt.Sprintf("%q is ignored", m.key))
	case near != "" && fold(near) == fold(m.key):
		l.fault(m.named(), fmt.Sprintf("differs from %q only in case", near), fmt.Sprintf("write %q", near))
	case near != "":
		l.fault(m.named(), "unknown key", fmt.Sprintf("did you mean %q?", near))
	default:
		l.warn(m.named(), "is ignored", "")
	}
}

// rewriteValues rewrites what toolgate writes under the same keys in another form. It
// returns the transport that toolgate does not have, "" for none.
func (l *loader) rewriteValues(s *node) (unsupported string) {
	l.splitCommand(s)
	l.rewriteTimeout(s.get("timeout"))
	if n := s.get("exclude"); n != nil && n.kind == kindArray {
		n.items = unique(n.items)
	}
	if n := s.get("url"); n != nil && n.kind == kindString {
		if scheme, _, ok := strings.Cut(n.text, "://"); ok && dialect.Unsupported(scheme) {
			return scheme
		}
	}
	n := s.get("type")
	if n == nil || n.kind != kindString {
		return ""
	}
	word, known := dialect.Types()[n.text]
	switch {
	case known:
		n.text = word
	case dialect.Unsupported(n.text):
		return n.text
	case !strings.Contains(n.text, "${") && n.text != "" && Nearest(n.text, slices.Collect(maps.Keys(dialect.Types()))) == "":
		return n.text
	}
	return ""
}

// unique returns strings of which each is there once.
func unique(items []*node) (out []*node) {
	for _, item := range items {
		if !slices.ContainsFunc(out, func(o *node) bool { return o.kind == item.kind && o.text == item.text }) {
			out = append(out, item)
		}
	}
	return out
}

// splitCommand reads a command that is a list of program and arguments, or an object of
// path, args and env.
func (l *loader) splitCommand(s *node) {
	n, args := s.get("command"), s.get("args")
	switch {
	case n == nil:
	case n.kind == kindArray && len(n.items) > 0:
		if args != nil {
			l.fault(args.named(), `conflicts with "command", a list that has the arguments`, "join them")
		} else {
			l.note(n, `a list is read as "command" and "args"`)
			args = n.as(kindArray, "")
			args.key, args.items = "args", n.items[1:]
			s.members = append(s.members, args)
		}
		n.become(n.items[0])
	case n.kind == kindObject && n.get("path") != nil:
		l.note(n, `an object is read as "command", "args" and "env"`)
		for _, m := range n.members {
			if (m.key == "args" || m.key == "env") && m.kind != 'n' {
				s.members = l.add(s.members, m)
			}
		}
		n.become(n.get("path"))
	}
}

// rewriteTimeout reads a time-out in the unit of the client.
func (l *loader) rewriteTimeout(n *node) {
	switch {
	case n == nil:
	case n.kind == kindObject && n.get("request") != nil:
		l.note(n, `"request" is read as the time-out`)
		n.become(n.get("request"))
	case n.kind != kindNumber || n.keyText() != "timeout":
	case l.client.Unit != "s":
		if ms, err := strconv.Atoi(n.text); err == nil && ms > 0 && ms < 1000 {
			l.warn(n, n.text+" is milliseconds, less than a second", fmt.Sprintf(`if seconds were meant, write "%ss"`, n.text))
		}
	case l.own && longer(n.text, 999): // toolgate's own file counts milliseconds
	case l.client.Longest > 0 && longer(n.text, l.client.Longest):
		l.note(n, fmt.Sprintf("%s is read as milliseconds: %s accepts at most %d seconds", clip(n.text), l.client.Name, l.client.Longest))
	default:
		l.seconds(n)
	}
}

func longer(number string, most int64) bool {
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && f > float64(most)
}
