package clients_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/internal/tree"
)

// wanted are the clients that the table has to know.
var wanted = []string{
	"claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "gemini", "zed", "codex", "goose", "continue", "opencode",
	"lmstudio", "cline", "roo", "copilot-cli", "amp", "kiro", "agent-plugin", "server-json", "docker",
}

func TestEveryClientIsInTheTable(t *testing.T) {
	var ids []string
	for _, c := range clients.Clients() {
		ids = append(ids, c.ID)
	}
	if diff := cmp.Diff(wanted, ids); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRowsAreWhole(t *testing.T) {
	formats := []string{tree.JSON, tree.TOML, tree.YAML}
	for _, c := range clients.Clients() {
		sources := c.ID == "server-json" || c.ID == "docker"
		switch {
		case c.Name == "" || !slices.Contains(formats, c.Format) || len(c.Files) == 0:
			t.Errorf("%s: the row has no name, format or file", c.ID)
		case sources != (c.Write == nil):
			t.Errorf("%s: the row does not say how servers are written", c.ID)
		case !sources && (c.Connect == nil || len(c.Container) == 0 || c.Unit != "ms" && c.Unit != "s"):
			t.Errorf("%s: the row has no container, unit or entry", c.ID)
		}
		for _, f := range c.Files {
			if !slices.Contains([]string{"user", "project", "system"}, f.Scope) || f.Scope == "project" && strings.HasPrefix(f.Path, "~") {
				t.Errorf("%s: %s has scope %q", c.ID, f.Path, f.Scope)
			}
		}
	}
}

// known are toolgate's own keys.
var known = []string{"type", "command", "args", "env", "cwd", "envFile", "url", "headers", "disabled", "timeout", "expose", "exclude"}

// A client writes keys that are read again, and transports that toolgate has.
func TestWrittenKeysAreRead(t *testing.T) {
	for _, c := range clients.Clients() {
		if c.Write == nil {
			continue
		}
		for _, key := range c.Write.Keys {
			if clients.Keys()[key].To == "" && !slices.Contains(known, key) {
				t.Errorf("%s: key %s is not read", c.ID, key)
			}
		}
		for transport, word := range c.Write.Types {
			if !slices.Contains([]string{"stdio", "http", "sse"}, transport) || word != "" && (clients.Types()[word] == "" || !slices.ContainsFunc(c.Write.Keys, isType)) {
				t.Errorf("%s: transport %s is written as %q", c.ID, transport, word)
			}
		}
	}
}

func isType(key string) bool { return key == "type" || clients.Keys()[key].To == "type" }

func TestKeysLeadSomewhere(t *testing.T) {
	why := []string{"consent", "sign-in", "startup", "other"}
	for key, k := range clients.Keys() {
		if slices.Contains(known, key) {
			t.Errorf("%s is toolgate's own key", key)
		}
		if (k.To == "") == (k.Why == "") || k.To != "" && !slices.Contains(known, k.To) || k.Why != "" && !slices.Contains(why, k.Why) {
			t.Errorf("%s: %+v", key, k)
		}
	}
	for word, to := range clients.Types() {
		if !slices.Contains([]string{"stdio", "http", "sse", "ndjson"}, to) || clients.Unsupported(word) {
			t.Errorf("type %s is read as %q", word, to)
		}
	}
}

// A file in the place where a client keeps it is that client's.
func TestRecogniseByPlace(t *testing.T) {
	machine := clients.Machine{OS: "linux", Home: "/home/ada", Project: "/src/project", Getenv: func(string) (string, bool) { return "", false }}
	shared := []string{"/src/project/.mcp.json", "/src/project/mcp.json"}
	for _, c := range clients.Clients() {
		for _, p := range c.Places(machine) {
			if slices.Contains(shared, p.Path) || c.ID == "lmstudio" {
				continue
			}
			got, ok := clients.Recognise(clients.Shape{Path: p.Path, Format: c.Format})
			if !ok || got.ID != c.ID {
				t.Errorf("%s is taken for %q, want %s", p.Path, got.ID, c.ID)
			}
		}
	}
}

func TestRecogniseByShape(t *testing.T) {
	for name, c := range map[string]struct {
		shape clients.Shape
		want  string
	}{
		"nothing":           {clients.Shape{Root: []string{"mcpServers"}, Entries: []string{"command", "args", "env"}}, ""},
		"a key":             {clients.Shape{Entries: []string{"serverUrl"}}, "windsurf"},
		"two keys":          {clients.Shape{Entries: []string{"autoApprove", "disabledTools"}}, "kiro"},
		"one of two keys":   {clients.Shape{Entries: []string{"autoApprove", "command"}}, "cline"},
		"keys of two":       {clients.Shape{Entries: []string{"serverUrl", "httpUrl"}}, ""},
		"a word":            {clients.Shape{Root: []string{"mcp"}, Entries: []string{"type", "type=local"}}, "opencode"},
		"the root":          {clients.Shape{Root: []string{"context_servers", "theme"}}, "zed"},
		"a schema":          {clients.Shape{Schema: "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json", Entries: []string{"type"}}, "agent-plugin"},
		"name before keys":  {clients.Shape{Path: "/x/.cursor/mcp.json", Format: tree.JSON, Entries: []string{"serverUrl"}}, "cursor"},
		"a name in another": {clients.Shape{Path: "/x/mcp.json", Format: tree.JSON}, ""},
	} {
		got, ok := clients.Recognise(c.shape)
		if got.ID != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got.ID, ok, c.want)
		}
	}
}

func TestPlaces(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": "/cfg", "APPDATA": "/app"}
	for _, c := range []struct {
		client, os string
		home       string
		want       []string
	}{
		{"claude-desktop", "linux", "/home/ada", []string{"/cfg/Claude/claude_desktop_config.json"}},
		{"claude-desktop", "darwin", "/Users/ada", []string{"/Users/ada/Library/Application Support/Claude/claude_desktop_config.json"}},
		{"claude-desktop", "windows", "/u/ada", []string{"/app/Claude/claude_desktop_config.json"}},
		{"claude-desktop", "darwin", "", nil},
		{"codex", "linux", "/home/ada", []string{"/home/ada/.codex/config.toml", "/p/.codex/config.toml"}},
		{"cursor", "linux", "/home/ada", []string{"/p/.cursor/mcp.json", "/home/ada/.cursor/mcp.json"}},
	} {
		client, _ := clients.Lookup(c.client)
		var got []string
		for _, p := range client.Places(clients.Machine{OS: c.os, Home: c.home, Project: "/p", Getenv: func(n string) (string, bool) { return env[n], env[n] != "" }}) {
			got = append(got, filepath.ToSlash(p.Path))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s on %s (-want +got):\n%s", c.client, c.os, diff)
		}
	}
}

func TestWorkspace(t *testing.T) {
	for path, want := range map[string]string{
		"/p/.cursor/mcp.json": "/p", "/p/.kiro/settings/mcp.json": "/p", "/p/.mcp.json": "/p", "/p/q/mcp.json": "/p/q",
	} {
		if got := clients.Workspace(path); got != want {
			t.Errorf("Workspace(%s) = %s, want %s", path, got, want)
		}
	}
}

// What each client needs to reach toolgate; the first contact fails without it.
// entryOf returns toolgate's entry for a client as JSON.
func entryOf(c clients.Client, a clients.Address) ([]byte, error) {
	entry, err := c.Entry(a)
	if err != nil {
		return nil, err
	}
	return json.Marshal(entry)
}

func TestEntry(t *testing.T) {
	a := clients.Address{URL: "http://127.0.0.1:8787/mcp", Command: "/usr/bin/toolgate", Token: "t0k"}
	for id, want := range map[string]string{
		"claude-desktop": `{"args":["stdio","--connect","http://127.0.0.1:8787/mcp"],"command":"/usr/bin/toolgate"}`,
		"claude-code":    `{"headers":{"Authorization":"Bearer ${TOOLGATE_TOKEN}"},"type":"http","url":"http://127.0.0.1:8787/mcp"}`,
		"vscode":         `{"headers":{"Authorization":"Bearer ${input:toolgate-token}"},"type":"http","url":"http://127.0.0.1:8787/mcp"}`,
		"windsurf":       `{"headers":{"Authorization":"Bearer ${env:TOOLGATE_TOKEN}"},"serverUrl":"http://127.0.0.1:8787/mcp"}`,
		"codex":          `{"bearer_token_env_var":"TOOLGATE_TOKEN","url":"http://127.0.0.1:8787/mcp"}`,
		"zed":            `{"args":["stdio","--connect","http://127.0.0.1:8787/mcp"],"command":"/usr/bin/toolgate"}`,
	} {
		c, _ := clients.Lookup(id)
		got, err := entryOf(c, a)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", id, got, err, want)
		}
	}
	for _, c := range clients.Clients() {
		got, err := entryOf(c, clients.Address{URL: "http://127.0.0.1:1/mcp", Command: "toolgate"})
		if (err != nil) != (c.Connect == nil) {
			t.Errorf("%s: %s, %v", c.ID, got, err)
		}
		if strings.Contains(string(got), "oken") || err == nil && !json.Valid(got) {
			t.Errorf("%s: an entry without a token is %s", c.ID, got)
		}
		literal, err := entryOf(c, clients.Address{URL: "http://127.0.0.1:1/mcp", Command: "toolgate", Token: "$1t0k", Literal: true})
		if takes := c.Connect != nil && !slices.Contains([]string{"vscode", "codex", "agent-plugin"}, c.ID); c.TakesToken() != takes {
			t.Errorf("%s: takes a token: %v", c.ID, !takes)
		} else if takes && (err != nil || !strings.Contains(string(literal), `$1t0k"`) || strings.Contains(string(literal), "${")) {
			t.Errorf("%s: an entry with the token itself is %s, %v", c.ID, literal, err)
		}
	}
	if c, _ := clients.Lookup("zed"); !c.HoldsToken() {
		t.Error("Zed expands nothing, so its entry holds the token")
	}
	if c, _ := clients.Lookup("codex"); c.HoldsToken() {
		t.Error("Codex names a variable")
	}
}

func ExampleClient_Places() {
	c, _ := clients.Lookup("cursor")
	machine := clients.Machine{OS: "linux", Home: "/home/ada", Project: "/src/project"}
	for _, p := range c.Places(machine) {
		fmt.Println(p.Scope, filepath.ToSlash(p.Path))
	}
	// Output:
	// project /src/project/.cursor/mcp.json
	// user /home/ada/.cursor/mcp.json
}
