package config

import (
	"net/url"
	"strings"
	"time"
)

// DecisionLog says where decisions are told, in the form of OPA's decision logs.
// It holds secrets: it is not for printing. The zero DecisionLog tells nobody.
type DecisionLog struct {
	File    string            // absolute path that lines are appended to; "" = none
	URL     string            // that chunks are posted to: https, or http on loopback; "" = none
	Token   string            // bearer token for URL; "" = none
	Headers map[string]string // sent with every chunk, names as written
	MaxLag  time.Duration     // events that are older and not told are warned of; more than 0
}

func (l *loader) decisionLog(n *node) {
	d := &l.cfg.Policy.Log
	d.MaxLag = DefaultMaxLag
	l.object(n, fields{
		"file":    l.path(&d.File),
		"url":     l.collector(&d.URL),
		"token":   l.bearer(&d.Token),
		"headers": l.headers(&d.Headers),
		"max_lag": l.span(&d.MaxLag, time.Second),
	})
	if n.kind == kindObject && n.get("file") == nil && n.get("url") == nil {
		l.fault(n, `has neither a "file" nor a "url"`, "say where decisions are told")
	}
	if n.get("url") == nil {
		l.misplaced(n, "url", "token", "headers")
	}
	for name := range d.Headers {
		if at := n.get("headers").get(name); d.Token != "" && strings.EqualFold(name, "authorization") {
			l.fault(at, `stands beside a "token", which is sent in that header`, "keep one of them")
		}
	}
}

// collector reads the address of who collects decisions: it must be https beyond
// loopback. A password in it would be written where addresses are.
func (l *loader) collector(to *string) func(*node) {
	return func(n *node) {
		var s string
		if l.overTLS(&s, "is a collector that is not called over https")(n); s == "" {
			return
		}
		if u, err := url.Parse(s); err == nil && (u.User != nil || u.Fragment != "") {
			l.fault(n, "has a user or a fragment in it", `write "token" or "headers" beside it`)
			return
		}
		*to = s
	}
}

// bearer reads a token that a header can carry. It is never quoted.
func (l *loader) bearer(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.filled(n)
		if ok && strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
			l.fault(n, "has a character in it that no token has", "a variable often ends with a line end: cut it off")
			return
		}
		*to = s
	}
}
