package proxy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

const skilled = `{"resources":{},"extensions":{"io.modelcontextprotocol/skills":{}}}`

// skillServers are three: a and c have skills, and b has one of their files as a resource.
func skillServers() []backend {
	return []backend{
		{name: "a", can: skilled, pages: map[string]string{
			"resources/list ": `{"resources":[]}`,
			"skills/list ":    `{"skills":[{"uri":"skill://a/SKILL.md","n":1e2,"resources":[{"uri":"skill://a/SKILL.md"},{"uri":"skill://a/ref.md"}]},{"uri":"file:///secret"}],"nextCursor":"2","ttlMs":1}`,
			"skills/list 2":   `{"skills":[{"uri":"skill://more/SKILL.md","resources":"dynamic"}]}`,
		}},
		{name: "b", can: `{"resources":{}}`, pages: map[string]string{"resources/list ": `{"resources":[{"uri":"skill://c/ref.md"}]}`}},
		{name: "c", can: skilled, pages: map[string]string{
			"skills/list ": `{"skills":[{"uri":"skill://c/SKILL.md","resources":[{"uri":"skill://c/ref.md"}]},{"uri":"skill://a/SKILL.md"}]}`,
		}},
	}
}

// Where all servers are, skills are listed as resources are: what may be read, of the servers that have skills.
func TestSkillsOfAllServers(t *testing.T) {
	s := newAggregate(t, skillServers()...)
	const want = `{"skills":[{"uri":"skill://a/SKILL.md","n":1e2,"resources":[{"uri":"skill://a/SKILL.md"},{"uri":"skill://a/ref.md"}]},` +
		`{"uri":"skill://more/SKILL.md","resources":"dynamic"},{"uri":"skill://c/SKILL.md","resources":[{"uri":"skill://c/ref.md"}]},{"uri":"skill://a/SKILL.md"}]}`
	if got, f := s.enumerate(t, "skills/list", ""); f != nil || got != want {
		t.Errorf("got %s, %v\nwant %s", got, f, want)
	}
	if slices.ContainsFunc(s.got, func(asked string) bool { return strings.HasPrefix(asked, "b ") }) {
		t.Errorf("asked %q", s.got)
	}
	for _, in := range s.inputs {
		if in.Action != "resources/read" || in.Resource == nil {
			t.Errorf("judged %+v", in)
		}
	}
}

// A skill and its files are got where they are listed, and a listed resource takes precedence.
func TestWhereSkillsAre(t *testing.T) {
	for _, tt := range []struct{ method, uri, want string }{
		{"skills/get", "skill://a/SKILL.md", "a"},
		{"skills/get", "skill://c/SKILL.md", "c"},
		{"skills/get", "skill://c/ref.md", "c"},
		{"resources/read", "skill://a/ref.md", "a"},
		{"resources/read", "skill://c/ref.md", "b"},
		{"resources/directory/read", "skill://more/SKILL.md", "a"},
		{"skills/get", "skill://nowhere/SKILL.md", ""},
		{"skills/get", "file:///secret", "denied"},
	} {
		s := newAggregate(t, skillServers()...)
		params := `{"uri":"` + tt.uri + `", "n":1e2}`
		_, f := s.Relay(t.Context(), relayed(t, "", tt.method, params))
		switch {
		case tt.want == "":
			if f == nil || f.Kernel.Code != signal.CodeNotFound {
				t.Errorf("%s %s: %v", tt.method, tt.uri, f)
			}
		case tt.want == "denied":
			if f == nil || f.Kernel.Code != signal.CodePolicyDenied {
				t.Errorf("%s %s: %v", tt.method, tt.uri, f)
			}
		case s.got[len(s.got)-1] != tt.want+" "+tt.method+" "+params:
			t.Errorf("%s %s: sent %q, %v", tt.method, tt.uri, s.got, f)
		}
	}
}

// The children of a directory are those that may be read; what cannot be judged is left out.
func TestDirectory(t *testing.T) {
	for result, want := range map[string]string{
		`{"ttlMs":1,"resources":[{"uri":"d:/a", "n":1e2},{"uri":"file:///secret"},{"name":"b"},7],"nextCursor":"x"}`: `{"ttlMs":1,"resources":[{"uri":"d:/a", "n":1e2}],"nextCursor":"x"}`,
		`{"resources":[]}`: `{"resources":[]}`,
		`{"resources":{}}`: "",
		`{}`:               "",
	} {
		l := newLibrary(t)
		l.result = result
		reply, f := l.Relay(t.Context(), relayed(t, "web", "resources/directory/read", `{"uri":"d:/","cursor":"c"}`))
		if want == "" {
			if f == nil || f.Kernel.Code != signal.CodeOutputInvalid {
				t.Errorf("%s: %v", result, f)
			}
			continue
		}
		if f != nil || string(reply.Result) != want && !strings.HasPrefix(string(reply.Result), want[:len(want)-1]) {
			t.Errorf("%s: got %v, %v", result, reply, f)
		}
		if diff := cmp.Diff([]string{`web resources/directory/read {"uri":"d:/","cursor":"c"}`}, l.asked); diff != "" {
			t.Error(diff)
		}
		if l.inputs[0].Resource == nil || *l.inputs[0].Resource != (policy.Resource{Server: "web", URI: "d:/"}) {
			t.Errorf("judged %+v", l.inputs[0])
		}
	}
	l := newLibrary(t)
	if _, f := l.Relay(t.Context(), relayed(t, "web", "resources/directory/read", `{"uri":"file:///secret"}`)); f == nil || f.Kernel.Code != signal.CodePolicyDenied || len(l.asked) != 0 {
		t.Errorf("a directory that may not be read: %v, asked %q", f, l.asked)
	}
}
