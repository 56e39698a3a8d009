package config

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fields are the keys that an object may have, and who reads each value.
type fields map[string]func(*node)

// object reads the members of n in file order. A key that is not in known is a
// fault.
func (l *loader) object(n *node, known fields) {
	if !l.is(n, kindObject) {
		return
	}
	for _, m := range n.members {
		if read, ok := known[m.key]; ok {
			read(m.value)
			continue
		}
		hint := ""
		if near := nearest(m.key, keys(known)); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		if m.key == "toolgate" && n.path == "toolgate" {
			hint = "an overlay is the settings object itself, without the member toolgate around it"
		}
		l.faultAt(m.value.file, m.offset, m.value.path, "is no key that toolgate knows", hint)
	}
}

// list reads the elements of n.
func (l *loader) list(n *node, read func(*node)) {
	if !l.is(n, kindArray) {
		return
	}
	for _, item := range n.items {
		read(item)
	}
}

// kindNames say a kind to people.
var kindNames = map[kind]string{
	kindString: "a string", kindNumber: "a number", kindObject: "an object", kindArray: "a list",
	kindTrue: "a boolean", kindFalse: "a boolean", 'n': "null",
}

// is reports whether n is of kind want, and a fault when not.
func (l *loader) is(n *node, want kind) bool {
	if n.kind == want {
		return true
	}
	hint := ""
	switch {
	case n.kind == 'n':
		hint = "leave the key out"
	case want == kindString && n.kind != kindObject && n.kind != kindArray:
		hint = "put it between double quotes"
	case want == kindArray && n.kind == kindString:
		hint = "put it between [ and ]"
	}
	l.fault(n, "is "+kindNames[n.kind]+", not "+kindNames[want], hint)
	return false
}

// text reads a string and expands it.
func (l *loader) text(n *node) (string, bool) {
	if !l.is(n, kindString) {
		return "", false
	}
	return l.expand(n)
}

// filled reads a string that must say something and hold no control character.
func (l *loader) filled(n *node) (string, bool) {
	s, ok := l.text(n)
	switch {
	case !ok:
		return "", false
	case strings.TrimSpace(s) == "":
		l.fault(n, "is empty", "leave the key out, or say something")
		return "", false
	case strings.ContainsFunc(s, control):
		l.fault(n, "has a control character in it", "")
		return "", false
	}
	return s, true
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// filledTo is filled with a place to go.
func (l *loader) filledTo(to *string) func(*node) {
	return func(n *node) {
		if s, ok := l.filled(n); ok {
			*to = s
		}
	}
}

// oneOf reads one of a few words.
func (l *loader) oneOf(to *string, words ...string) func(*node) {
	return func(n *node) {
		s, ok := l.text(n)
		if !ok {
			return
		}
		if slices.Contains(words, s) {
			*to = s
			return
		}
		hint := "write " + strings.Join(words, ", ")
		if near := nearest(s, words); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.fault(n, fmt.Sprintf("%q is not one of %s", clip(n.text), strings.Join(words, ", ")), hint)
	}
}

// flag reads true or false.
func (l *loader) flag(to *bool) func(*node) {
	return func(n *node) {
		if n.kind == kindTrue || n.kind == kindFalse {
			*to = n.kind == kindTrue
			return
		}
		l.fault(n, "is "+kindNames[n.kind]+", not true or false", "write true or false, without quotes")
	}
}

// count reads a whole number of at least 1.
func (l *loader) count(to *int) func(*node) {
	return func(n *node) {
		if !l.is(n, kindNumber) {
			return
		}
		v, err := strconv.ParseInt(n.text, 10, 32)
		if err != nil || v < 1 {
			l.fault(n, clip(n.text)+" is not a whole number of at least 1", "")
			return
		}
		*to = int(v)
	}
}

// span reads a duration of at least least.
func (l *loader) span(to *time.Duration, least time.Duration) func(*node) {
	return func(n *node) {
		if n.kind == kindNumber {
			l.fault(n, clip(n.text)+" has no unit", fmt.Sprintf(`write a string with a unit, such as "%ss"`, clip(n.text)))
			return
		}
		s, ok := l.text(n)
		if !ok {
			return
		}
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			l.fault(n, fmt.Sprintf("%q is no duration", clip(n.text)), `write a number with a unit, such as "45s", "15m" or "1h30m"`)
		case d < least:
			l.fault(n, fmt.Sprintf("%q is too short", clip(n.text)), "")
		default:
			*to = d
		}
	}
}

// address reads an http(s) URL. It is never quoted: it may hold a password.
func (l *loader) address(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.filled(n)
		if !ok {
			return
		}
		u, err := url.Parse(s)
		switch {
		case err != nil:
			l.fault(n, "is no URL", "write https://HOST/PATH")
		case u.Scheme != "http" && u.Scheme != "https":
			l.fault(n, "is no http or https URL", "write https://HOST/PATH")
		case u.Hostname() == "":
			l.fault(n, "is a URL without a host", "write https://HOST/PATH")
		default:
			*to = s
		}
	}
}

// names reads a list of strings that say something, none of them twice.
func (l *loader) names(to *[]string) func(*node) {
	return func(n *node) {
		list := []string{}
		l.list(n, func(item *node) {
			s, ok := l.filled(item)
			if ok && slices.Contains(list, s) {
				l.fault(item, "is in the list twice", "keep one of them")
				return
			}
			if ok {
				list = append(list, s)
			}
		})
		*to = list
	}
}

// require reports an object that lacks a key.
func (l *loader) require(n *node, key, hint string) {
	if n.kind == kindObject && n.get(key) == nil {
		l.fault(n, fmt.Sprintf("has no %q", key), hint)
	}
}

// clip keeps what people read short.
func clip(s string) string {
	const most = 40
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most]) + "…"
}
