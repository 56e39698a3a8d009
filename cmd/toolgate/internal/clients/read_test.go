package clients_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/registry/config"
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
			got, err := clients.Read(clients.Source{Name: f.Name, Path: "/home/ada/" + f.Name, Data: f.Data})
			if err != nil {
				compare(t, path, a, err.Error()+"\n")
				return
			}
			seen[got.Client.ID] = true
			compare(t, path, a, describeEntries(t, got))
		})
	}
	for _, c := range clients.Clients() {
		if !seen[c.ID] {
			t.Errorf("no test file is recognised as that of %s", c.Name)
		}
	}
}

// describeEntries prints the client, the notes as people see them, and the servers.
func describeEntries(t *testing.T, n *clients.Reading) string {
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

// bundle makes an mcp.json of what was normalised.
func bundle(t *testing.T, n *clients.Reading) string {
	t.Helper()
	return bundleOf(n)
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
			n, err := clients.Read(clients.Source{Name: f.Name, Path: "/home/ada/" + f.Name, Data: f.Data})
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
		n, err := clients.Read(clients.Source{Name: name, Path: "/home/ada/" + name, Data: []byte(text)})
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
		moved := strings.Contains(text, "cwd") || strings.Contains(text, "nvFile")
		if cfg == nil || moved && strings.Contains(text, "${") {
			return // names that only import makes fit, or a variable that may hold a relative path
		}
		if diff := sameServers(cfg.Servers, imported.Servers, tools); diff != "" && !strings.Contains(text, "toolgate") {
			t.Errorf("(-loaded +imported):\n%s\n%s", diff, bundle(t, n))
		}
	})
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

// What is wrong in a client's file is named with its place, in every format, and never
// with its text.
func TestNormaliseRefuses(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	bomb := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 'b'; i < 'i'; i++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", i-1), 10), ", "))
	}
	for name, c := range map[string]struct{ file, text, want string }{
		"toml syntax":     {"config.toml", "[mcp_servers.a]\ncommand = s3cret\n", "config.toml:2:11: is not TOML"},
		"toml twice":      {"config.toml", "[mcp_servers.a]\ncommand = 'x'\n[mcp_servers.a]\n", "config.toml:3:"},
		"toml case":       {"config.toml", "[mcp_servers.a]\ncommand = 'x'\nCommand = 'y'\n", `config.toml:3:1: mcp_servers.a.Command: differs from "command" only in case`},
		"toml number":     {"config.toml", "[mcp_servers.a]\ncommand = 'x'\ntool_timeout_sec = inf\n", "config.toml:3:20: mcp_servers.a.tool_timeout_sec: is a number that JSON does not have"},
		"toml type":       {"config.toml", "[mcp_servers.a]\ncommand = 'x'\nargs = [1]\n", "config.toml:3:9: mcp_servers.a.args[0]: want a string, got 1"},
		"toml misspelt":   {"config.toml", "[mcp_servers.a]\ncommand = 'x'\nenabled_tool = []\n", `hint: did you mean "enabled_tools"?`},
		"toml deep":       {"config.toml", "a = " + deep, "config.toml:1:69: is nested deeper than 64 levels"},
		"toml no servers": {"config.toml", "model = 'x'", "config.toml:1:1: holds no servers"},
		"yaml syntax":     {"c.yaml", "extensions:\n  a: [s3cret\n", ": is not YAML"},
		"yaml twice":      {"c.yaml", "extensions:\n  a: {cmd: x}\n  a: {cmd: y}\n", "c.yaml:3:3: extensions.a: is written twice"},
		"yaml merge":      {"c.yaml", "x: &x {cmd: y}\nextensions:\n  a: {<<: *x}\n", `c.yaml:3:7: extensions.a["<<"]: is a key that JSON does not have`},
		"yaml key":        {"c.yaml", "extensions:\n  [a]: {cmd: y}\n", "c.yaml:2:3: "},
		"yaml bomb":       {"c.yaml", bomb, "is nested deeper than 64 levels, or has too many values"},
		"yaml deep":       {"c.yaml", strings.Repeat("- ", 100) + "x", "is nested deeper than 64 levels"},
		"yaml list":       {"c.yaml", "- a\n- b\n", "c.yaml:1:1: is not an object"},
		"yaml empty":      {"c.yaml", "# nothing\n", "c.yaml:1:1: is empty"},
		"yaml no name":    {"c.yaml", "mcpServers:\n  - command: x\nmodels: []\n", `c.yaml:2:5: mcpServers[0]: has no "name"`},
		"json syntax":     {"m.json", `{"mcpServers": {"a": {"command": s3cret}}}`, "m.json:1:34: has a bare word"},
		"json utf-8":      {"m.json", "{\"mcpServers\": {}, \"\xff\": 1}", "m.json:1:21: is not valid UTF-8"},
		"json names":      {"m.json", `{"mcpServers": {"a b": {"command": "x"}, "a-b": {"command": "x"}}}`, `["a b"]: would be called "a-b", as another server is`},
		"json url":        {"m.json", `{"mcpServers": {"a": {"serverUrl": "localhost:1"}, "b": {"url": "${HOST}:1"}}}`, "m.json:1:36: mcpServers.a.serverUrl: not an http or https URL"},
		"registry":        {"server.json", `{"name": "a/b", "packages": []}`, "server.json:1:1: has no package that a command starts, and no remote address"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := clients.Read(clients.Source{Name: c.file, Path: "/x/" + c.file, Data: []byte(c.text)})
			if n != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Normalise = %v, %v, want %s", n, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Error("the message quotes the file")
			}
		})
	}
}

// Somebody who names the client is believed: the unit of a time-out depends on it.
func TestNormaliseForAClient(t *testing.T) {
	const text = `{"mcpServers": {"a": {"command": "x", "timeout": 90}}}`
	for client, want := range map[string]string{
		"":       `{"command":"x","timeout":90}`,
		"cursor": `{"command":"x","timeout":90}`,
		"cline":  `{"command":"x","timeout":"1m30s"}`,
		"roo":    `{"command":"x","timeout":"1m30s"}`,
	} {
		n, err := clients.Read(clients.Source{Name: "some.json", Data: []byte(text), Client: client})
		if err != nil || len(n.Servers) != 1 || string(n.Servers[0].Server) != want || n.Client.ID != client {
			t.Errorf("%q: %v, %v, want %s", client, n, err, want)
		}
	}
	n, err := clients.Read(clients.Source{Name: "typed", Data: []byte("[mcp_servers.a]\ncommand = 'x'"), Client: "codex"})
	if err != nil || len(n.Servers) != 1 {
		t.Errorf("the format of a named client: %v, %v", n, err)
	}
}

// A file of toolgate's own counts milliseconds, whatever keys of clients are left in it.
func TestOwnFileCountsMilliseconds(t *testing.T) {
	const entry = `"mcpServers": {"a": {"command": "x", "autoApprove": [], "timeout": %s}}`
	for text, want := range map[string]time.Duration{
		`{` + fmt.Sprintf(entry, "1500") + `}`:                  1500 * time.Second,
		`{` + fmt.Sprintf(entry, "1500") + `, "toolgate": {} }`: 1500 * time.Millisecond,
		`{` + fmt.Sprintf(entry, "30") + `, "toolgate": {} }`:   30 * time.Second,
		`{` + fmt.Sprintf(entry, "60000") + `}`:                 time.Minute,
	} {
		if got := load(t, only(text)).Servers[0].Timeout; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// The variables of clients are expanded as their clients do.
func TestClientVariables(t *testing.T) {
	opts := inMemory(map[string]string{
		"/src/app/.cursor/mcp.json": `{"mcpServers": {"a": {"command": "x", "args": ["${workspaceFolder}", "${workspaceFolderBasename}", "a${/}b${pathSeparator}c",
			"${userHome}", "${file:key}", "${file:/etc/key}", "${file:~/key}", "${input:my-key}"]}}}`,
		"/src/app/.cursor/key": "one\n", "/etc/key": "two\r\n", "/home/ada/key": "three\n\n",
	})
	opts.Path, opts.Getenv = "/src/app/.cursor/mcp.json", lookup("HOME=/home/ada\nMY_KEY=four")
	cfg := load(t, opts)
	want := []string{"/src/app", "app", "a/b/c", "/home/ada", "one", "two", "three\n", "four"}
	if diff := cmp.Diff(want, cfg.Servers[0].Args); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Contains(cfg.Files, "/etc/key") {
		t.Errorf("files %v lack /etc/key, which a reload has to notice", cfg.Files)
	}
}
