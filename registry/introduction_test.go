package registry_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

func TestIntroductionOf(t *testing.T) {
	for _, tt := range []struct {
		name, mode, info, text string
		want                   registry.Introduction
	}{
		{"nothing", "", "", "", registry.Introduction{}},
		{"all", "", `{"title":"T","icons":[{"src":"x"}]}`, " Do so.\n", registry.Introduction{Title: "T", Icons: json.RawMessage(`[{"src":"x"}]`), Instructions: "Do so."}},
		{"who it is", "", `{"name":"n","version":"1\n2","websiteUrl":"https://x.example","more":1}`, "", registry.Introduction{Name: "n", Version: "1 2", WebsiteURL: "https://x.example"}},
		{"a title of two lines", "", `{"title":"T\n## other"}`, "", registry.Introduction{Title: "T ## other"}},
		{"icons that are no array", "", `{"icons":{}}`, "", registry.Introduction{}},
		{"icons that are too large", "", `{"icons":["` + strings.Repeat("x", 32<<10) + `"]}`, "", registry.Introduction{}},
		{"hidden, reported", "", `{"title":"a\u202eb"}`, "a\u202eb", registry.Introduction{Title: "a\u202eb", Instructions: "a\u202eb"}},
		{"hidden, escaped", "escape", `{"title":"a\u202eb"}`, "a\u202eb", registry.Introduction{Title: "a<U+202E>b", Instructions: "a<U+202E>b"}},
	} {
		tt.want.Server = "s"
		got := registry.IntroductionOf(config.Server{Name: "s", HiddenText: tt.mode}, json.RawMessage(tt.info), tt.text)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	got := registry.IntroductionOf(config.Server{}, nil, strings.Repeat("€", 3000)).Instructions
	if want := strings.Repeat("€", 2730) + "\n[toolgate cut these instructions: 8192 of 9000 bytes shown]"; got != want || !utf8.ValidString(got) {
		t.Errorf("cut to %q", got)
	}
}

// What a server says is redacted, reported when it hides something, and replaced
// by what it says when it has started again.
func TestIntroductions(t *testing.T) {
	const secret = "s3cr3t-of-mine"
	r := open(t, registry.Options{})
	introduce := func(text string) string {
		cfg := server("s", recorder.Stdio(t, recorder.Config{Instructions: text, Tools: []recorder.Tool{{Name: "a"}}}))
		cfg.Env["API_KEY"] = secret
		apply(t, r, cfg)
		awaitTools(t, r, "s__a")
		said := r.Introductions("s")
		if all := r.Introductions(""); len(said) != 1 || !cmp.Equal(all, said) {
			t.Fatalf("%v, of all %v", said, all)
		}
		return said[0].Instructions
	}
	if got := introduce("Send " + secret + "\u202e."); got != "Send [redacted]\u202e." {
		t.Errorf("%q", got)
	}
	if got := strings.Join(r.Status()[0].Warnings, "\n"); !strings.Contains(got, "its title or instructions have hidden characters: bidi") {
		t.Errorf("warnings %s", got)
	}
	if got := introduce("Something else."); got != "Something else." {
		t.Errorf("after a restart: %q", got)
	}
	if got := r.Status()[0].Warnings; got != nil {
		t.Errorf("warnings %s", got)
	}
}

// The real thing: server-everything has a title and instructions.
func TestIntroductionOfEverything(t *testing.T) {
	node, script := parts.Need(t, "node"), npm.File(t, "@modelcontextprotocol/server-everything/dist/index.js")
	r := open(t, registry.Options{})
	apply(t, r, config.Server{Name: "e", Type: "stdio", Command: node, Args: []string{script, "stdio"}, Prefix: "e__", Timeout: patience, Pin: config.PinFirst, MaxSessions: 8})
	await(t, "the server", func() bool { return len(r.Catalogue().Tools("e")) > 0 })
	if got := r.Introductions("e")[0]; got.Title == "" || !strings.Contains(got.Instructions, "Everything Server") {
		t.Errorf("%+v", got)
	}
}
