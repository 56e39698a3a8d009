package config_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/dialect"
	"github.com/toolgate/toolgate/registry/lock"
)

// TestClientFiles reads a file of each client, and holds what comes out, every note
// included. The name of the file's section is its path below /home/ada.
func TestClientFiles(t *testing.T) {
	seen := map[string]bool{}
	for _, path := range archives(t, "clients") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f := a.Files[0]
			got, err := config.Normalise(config.ClientFile{Name: f.Name, Path: "/home/ada/" + f.Name, Data: f.Data})
			if err != nil {
				compare(t, path, a, err.Error()+"\n")
				return
			}
			seen[got.Client.ID] = true
			compare(t, path, a, describeEntries(t, got))
		})
	}
	for _, c := range dialect.Clients() {
		if !seen[c.ID] {
			t.Errorf("no test file is recognised as that of %s", c.Name)
		}
	}
}

// describeEntries prints the client, the notes as people see them, and the servers.
func describeEntries(t *testing.T, n *config.Normalised) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "client: %s\n", n.Client.ID)
	for _, w := range n.Notes {
		b.WriteString(w.String() + "\n")
	}
	for _, s := range n.Servers {
		fmt.Fprintf(&b, "%s, line %d, disabled %v\n", s.Name, s.Line, s.Disabled)
		for _, text := range []json.RawMessage{s.Server, s.Settings} {
			if text == nil {
				continue
			}
			var v any
			if err := json.Unmarshal(text, &v); err != nil {
				t.Fatalf("%s is no JSON: %v", text, err)
			}
			fmt.Fprintf(&b, "  %s\n", text)
		}
	}
	return b.String()
}

// home makes options that read an archive's files below /home/ada; every variable is
// set.
func home(a *txtar.Archive, name string) config.Options {
	files := map[string]string{}
	for _, f := range a.Files {
		files["/home/ada/"+f.Name] = string(f.Data)
	}
	opts := inMemory(files)
	opts.Path = "/home/ada/" + name
	opts.Getenv = func(name string) (string, bool) {
		if name == "HOME" {
			return "/home/ada", true
		}
		return "https://" + strings.ToLower(strings.ReplaceAll(name, "_", "-")) + ".example", true
	}
	return opts
}

// bundle makes an mcp.json of what was normalised.
func bundle(t *testing.T, n *config.Normalised) string {
	t.Helper()
	servers, settings := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for _, s := range n.Servers {
		servers[s.Name] = s.Server
		if s.Settings != nil {
			settings[s.Name] = s.Settings
		}
	}
	text, err := json.Marshal(map[string]any{"mcpServers": servers, "toolgate": map[string]any{"servers": settings}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sameServers reports how servers differ in how they are reached and in what they offer.
// The order is not compared, nor are names that only one of the files can have.
func sameServers(a, b []config.Server, tools []string) string {
	plain := func(list []config.Server) map[string]any {
		out := map[string]any{}
		for _, s := range list {
			var offered []string
			for _, tool := range tools {
				if s.Offers(tool) {
					offered = append(offered, tool)
				}
			}
			s.Expose, s.Exclude, s.Only, s.Origin = nil, nil, nil, lock.Origin{}
			out[s.Name] = []any{s, offered}
		}
		return out
	}
	return cmp.Diff(plain(a), plain(b), cmpopts.EquateEmpty())
}

// tools are the names in the test files, and one that is in none.
var tools = []string{
	"search_issues", "get_issue", "create_issue", "delete_file", "push_files", "search", "read", "evaluate", "screenshot",
	"search_docs", "navigate_back", "navigate_a/b", "click", "recommend", "read_documentation", "other",
}

// A client's file serves as it is, whatever the commands call it, and so does what is
// imported from it. Both say the same.
func TestClientFilesLoad(t *testing.T) {
	for _, path := range archives(t, "clients") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f := a.Files[0]
			n, err := config.Normalise(config.ClientFile{Name: f.Name, Path: "/home/ada/" + f.Name, Data: f.Data})
			if err != nil {
				t.Fatal(err)
			}
			imported := home(a, "mcp.json")
			read := imported.ReadFile
			imported.ReadFile = func(path string) ([]byte, error) {
				if path == imported.Path {
					return []byte(bundle(t, n)), nil
				}
				return read(path)
			}
			if diff := sameServers(load(t, home(a, f.Name)).Servers, load(t, imported).Servers, tools); diff != "" {
				t.Errorf("(-loaded +imported):\n%s", diff)
			}
		})
	}
}

// Whatever a file says, its servers offer no tool that a filter of the file leaves out,
// and what is imported is read as the file itself is.
func FuzzNormalise(f *testing.F) {
	paths, err := filepath.Glob("testdata/clients/*.txtar")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Files[0].Name, string(a.Files[0].Data))
	}
	f.Add("mcp.json", `{"mcpServers":{"a":{"command":"x","includeTools":["a*"],"tools":["ab","c"],"enabled_tools":["ab"]}}}`)
	f.Add("mcp.json", `{"mcpServers":{"a":{"command":"x","excludeTools":["*"],"disabledTools":["[a","a\\"],"enabled":false,"timeout":3e1,"autoApprove":[]}}}`)
	f.Fuzz(func(t *testing.T, name, text string) {
		if !filepath.IsLocal(name) || filepath.Base(name) == "mcp.json" && name != "mcp.json" {
			name = "mcp.json"
		}
		n, err := config.Normalise(config.ClientFile{Name: name, Path: "/home/ada/" + name, Data: []byte(text)})
		if (n == nil) == (err == nil) {
			t.Fatalf("Normalise = %v, %v", n, err)
		}
		if err != nil {
			return
		}
		imported := tryLoad(home(&txtar.Archive{Files: []txtar.File{{Name: "mcp.json", Data: []byte(bundle(t, n))}}}, "mcp.json"))
		if imported == nil {
			return // a value that only its variables, or a file that it names, make invalid
		}
		for _, s := range imported.Servers {
			include, exclude := rawFilters(text, s.Name)
			for _, tool := range append(slices.Concat(include, exclude), "other") {
				refused := slices.Contains(exclude, tool) || include != nil && !slices.ContainsFunc(include, func(p string) bool {
					return p == tool || strings.ContainsAny(p, "*?")
				})
				if refused && s.Offers(tool) {
					t.Errorf("server %s offers %q", s.Name, tool)
				}
			}
		}
		cfg := tryLoad(home(&txtar.Archive{Files: []txtar.File{{Name: name, Data: []byte(text)}}}, name))
		moved := strings.Contains(text, "cwd") || strings.Contains(text, "nvFile") || strings.Contains(text, "file:")
		if cfg == nil || moved && strings.Contains(text, "${") {
			return // names that only import makes fit, or a variable that may hold a relative path
		}
		if diff := sameServers(cfg.Servers, imported.Servers, tools); diff != "" && !strings.Contains(text, "toolgate") {
			t.Errorf("(-loaded +imported):\n%s\n%s", diff, bundle(t, n))
		}
	})
}

// tryLoad loads, nil when the files are refused.
func tryLoad(opts config.Options) *config.Config {
	cfg, err := config.Load(opts)
	if err != nil {
		return nil
	}
	return cfg
}

// rawFilters reads the filters of a server from plain JSON, by their names in the forms of
// all clients.
func rawFilters(text, server string) (include, exclude []string) {
	var file struct {
		Servers map[string]map[string]any `json:"mcpServers"`
	}
	if json.Unmarshal([]byte(text), &file) != nil {
		return nil, nil
	}
	for key, value := range file.Servers[server] {
		list, ok := value.([]any)
		if !ok {
			continue
		}
		names := []string{}
		for _, v := range list {
			names = append(names, fmt.Sprint(v))
		}
		switch key {
		case "includeTools", "enabled_tools", "available_tools", "allowedTools", "tools", "expose":
			include = append(names, include...)
		case "excludeTools", "disabled_tools", "disabledTools", "exclude":
			exclude = append(exclude, names...)
		}
	}
	return include, exclude
}
