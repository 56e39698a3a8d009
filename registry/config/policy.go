package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Policy says where the policy is.
type Policy struct {
	PolicySource
	Log    DecisionLog   // where decisions are told
	Shadow *PolicySource // a policy that is asked beside it and decides nothing; nil = none
}

// PolicySource is where a policy comes from, and what must be true of it. It
// holds secrets (Keys, Headers).
type PolicySource struct {
	Path    string               // absolute directory or .tar.gz, or an http(s) URL; "" = the embedded default
	Data    json.RawMessage      // one object that is added to its data; empty = nothing is
	Keys    map[string]PolicyKey // by key id; not empty = what none of them signed is refused
	KeyID   string               // the key that must have signed; "" = the one that the signature names
	Scope   string               // what the signature must say it is for; "" = what its key says
	Poll    Poll                 // of a URL; zero for every other path
	Headers map[string]string    // sent to a URL, names as written
	Places  map[string]string    // :: JSON Pointer into Data ⇒ file:line:column where its member is written
}

// PolicyKey verifies the signature of a policy.
type PolicyKey struct {
	Algorithm string // RS256, PS256, ES256, HS256 or one of their longer kin
	Key       string // a public key or certificate in PEM; with HS256 and its kin the secret
	Scope     string // what its signatures must say they are for; "" = nothing
}

// Poll says how often a policy at a URL is asked for.
type Poll struct {
	Min  time.Duration // between two questions at least; a second or more
	Max  time.Duration // and at most; the time between is random
	Long time.Duration // how long the server may wait for a change before it answers; 0 = not at all
}

// Defaults of Poll.
const (
	DefaultPollMin = 30 * time.Second
	DefaultPollMax = 60 * time.Second
)

// Remote reports whether the policy is at a URL.
func (s *PolicySource) Remote() bool { return remote(s.Path) }

// DataAt says where a path of Data, or the nearest member above it, is written.
func (s *PolicySource) DataAt(path []string) string {
	for n := len(path); n > 0; n-- {
		if at, ok := s.Places[pointer(path[:n])]; ok {
			return at
		}
	}
	return "toolgate.policy.data"
}

// pointer writes a path as a JSON Pointer (RFC 6901).
func pointer(path []string) string {
	var p jsontext.Pointer
	for _, name := range path {
		p = p.AppendToken(name)
	}
	return string(p)
}

func remote(path string) bool {
	return strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://")
}

func (l *loader) policy(n *node) {
	l.policySource(n, &l.cfg.Policy.PolicySource, fields{"log": l.decisionLog, "shadow": l.policyShadow})
}

// policyShadow reads where the policy comes from that is asked beside the one that
// serves.
func (l *loader) policyShadow(n *node) {
	l.cfg.Policy.Shadow = new(PolicySource)
	l.policySource(n, l.cfg.Policy.Shadow, nil)
	if n.kind == kindObject && n.get("path") == nil {
		l.fault(n, `has no "path"`, "name the policy that is to be asked beside the one that serves")
	}
}

// policySource reads a section that says where a policy comes from, and that
// may have further keys of its own.
func (l *loader) policySource(n *node, s *PolicySource, further fields) {
	s.Poll = Poll{Min: DefaultPollMin, Max: DefaultPollMax}
	known := fields{
		"path":    l.policyPath(&s.Path),
		"data":    l.policyData(s),
		"keys":    func(n *node) { l.policyKeys(n, s) },
		"signing": func(n *node) { l.object(n, fields{"keyid": l.filledTo(&s.KeyID), "scope": l.filledTo(&s.Scope)}) },
		"poll": func(n *node) {
			l.object(n, fields{
				"min": l.span(&s.Poll.Min, time.Second), "max": l.span(&s.Poll.Max, time.Second), "long": l.span(&s.Poll.Long, time.Second),
			})
		},
		"headers": l.headers(&s.Headers),
		"token":   func(*node) {}, // beside the headers, once they are read
	}
	maps.Copy(known, further)
	l.object(n, known)
	if n.kind != kindObject {
		return
	}
	if token := n.get("token"); token != nil {
		l.policyToken(token, s)
	}
	l.policySigning(n, s)
	l.policyFetching(n, s)
	if !s.Remote() {
		s.Poll = Poll{}
	}
}

// policyPath reads a path on this machine or a URL.
func (l *loader) policyPath(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.filled(n)
		switch {
		case !ok:
		case remote(s):
			l.address(to)(n)
		default:
			*to = n.resolve(s)
		}
	}
}

// policyToken makes a header of a token.
func (l *loader) policyToken(n *node, s *PolicySource) {
	for name := range s.Headers {
		if strings.EqualFold(name, "authorization") {
			l.fault(n, `stands beside a header "Authorization"`, "keep one of them")
			return
		}
	}
	var token string
	if l.bearer(&token)(n); token == "" {
		return
	}
	s.Headers = maps.Clone(s.Headers)
	if s.Headers == nil {
		s.Headers = map[string]string{}
	}
	s.Headers["Authorization"] = "Bearer " + token
}

// policySigning checks that the keys are there that signing speaks of, and that
// there is something that they could have signed.
func (l *loader) policySigning(n *node, s *PolicySource) {
	keys, signing := n.get("keys"), n.get("signing")
	switch {
	case keys == nil && signing != nil:
		l.fault(signing, `means nothing without "keys"`, "add the keys that sign the policy, or leave it out")
	case keys != nil && n.get("path") == nil:
		l.fault(keys, `means nothing without "path"`, "the embedded policy is part of this program; name the signed one")
	case s.KeyID != "" && len(s.Keys) > 0:
		if _, ok := s.Keys[s.KeyID]; !ok {
			l.fault(signing.get("keyid"), fmt.Sprintf("no key is named %q", clip(signing.get("keyid").text)), "")
		}
	}
}

// policyFetching checks what is said about a URL.
func (l *loader) policyFetching(n *node, s *PolicySource) {
	if s.Path != "" && !remote(s.Path) || n.get("path") == nil {
		for _, key := range []string{"poll", "token", "headers"} {
			if v := n.get(key); v != nil {
				l.fault(v, "means nothing for a policy that is not fetched", "leave it out, or give path a URL")
			}
		}
		return
	}
	l.pollSpan(n.get("poll"), &s.Poll)
	u, err := url.Parse(s.Path)
	if err != nil || u.Scheme != "http" || loopback(u.Hostname()) {
		return
	}
	if len(s.Headers) > 0 {
		l.fault(n.get("path"), "would be sent secrets without TLS", "write https://HOST/PATH")
	}
	if n.get("keys") == nil {
		l.fault(n.get("path"), "is a policy that is neither fetched over https nor signed: who can change it in transit decides what is allowed",
			`write https://HOST/PATH, or sign it and name the keys in "keys"`)
	}
}

// pollSpan settles how often is asked: who says one end only moves the other.
func (l *loader) pollSpan(n *node, p *Poll) {
	if n == nil || p.Min <= p.Max {
		return
	}
	switch least, most := n.get("min"), n.get("max"); {
	case most == nil:
		p.Max = 2 * p.Min
	case least == nil:
		p.Min = p.Max / 2
	default:
		l.fault(least, fmt.Sprintf("is more than max: %s and %s", p.Min, p.Max), "min is the shorter one")
	}
}

// policyData reads one object as JSON, with the place of each of its members.
func (l *loader) policyData(s *PolicySource) func(*node) {
	return func(n *node) {
		if !l.is(n, kindObject) {
			return
		}
		s.Places = map[string]string{}
		var ok bool
		if s.Data, ok = l.json(n); ok {
			s.place(n, nil)
		}
	}
}

// place notes where each member of n is written.
func (s *PolicySource) place(n *node, path []string) {
	for _, m := range n.members {
		at := append(slices.Clip(path), m.key)
		line, column := m.value.file.position(m.offset)
		s.Places[pointer(at)] = fmt.Sprintf("%s:%d:%d", m.value.file.name, line, column)
		s.place(m.value, at)
	}
}

// json writes a value as JSON, its strings expanded and its numbers as they
// stand there.
func (l *loader) json(n *node) (json.RawMessage, bool) {
	switch n.kind {
	case kindString:
		s, ok := l.expand(n)
		return quoted(s), ok
	case kindObject:
		return l.jsonMembers(n)
	case kindArray:
		all := true
		out := []byte{'['}
		for i, item := range n.items {
			if i > 0 {
				out = append(out, ',')
			}
			text, ok := l.json(item)
			out, all = append(out, text...), all && ok
		}
		return append(out, ']'), all
	}
	return json.RawMessage(n.text), true
}

func (l *loader) jsonMembers(n *node) (json.RawMessage, bool) {
	all := true
	out := []byte{'{'}
	for i, m := range n.members {
		if i > 0 {
			out = append(out, ',')
		}
		text, ok := l.json(m.value)
		out = append(append(append(out, quoted(m.key)...), ':'), text...)
		all = all && ok
	}
	return append(out, '}'), all
}

// quoted writes a string as JSON. What came from a variable may not be UTF-8:
// that is replaced.
func quoted(s string) json.RawMessage {
	text, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`) // a string always has a JSON form
	}
	return text
}
