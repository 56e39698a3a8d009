package clients_test

import (
	stdcmp "cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/registry/config"
)

var tools = []string{
	"search_issues", "get_issue", "create_issue", "delete_file", "push_files", "search", "read", "evaluate", "screenshot",
	"search_docs", "navigate_back", "navigate_a/b", "click", "recommend", "read_documentation", "other",
}

// home returns options to read a file of an archive, whose files are in a person's home.
func home(a *txtar.Archive, name string) config.Options {
	files := map[string]string{}
	for _, f := range a.Files {
		files["/home/ada/"+f.Name] = string(f.Data)
	}
	return clients.Options(config.Options{
		Path: "/home/ada/" + name,
		ReadFile: func(path string) ([]byte, error) {
			if text, ok := files[path]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		},
		Getenv: func(name string) (string, bool) {
			if name == "HOME" {
				return "/home/ada", true
			}
			return "https://" + strings.ToLower(strings.ReplaceAll(name, "_", "-")) + ".example", true
		},
	})
}

// writers are the clients that call servers.
func writers() (found []clients.Client) {
	for _, c := range clients.Clients() {
		if c.Write != nil {
			found = append(found, c)
		}
	}
	return found
}

// TestExport holds what each client is given of the servers of one mcp.json, and every loss.
func TestExport(t *testing.T) {
	paths, err := filepath.Glob("testdata/export/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := clients.Entries(home(a, "mcp.json"))
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, c := range writers() {
			fmt.Fprintf(&b, "# %s\n", c.ID)
			for _, s := range entries.Servers {
				got := c.Export(s.Name, s.Members(), nil)
				fmt.Fprintf(&b, "%s %s\n", s.Name, got.Entry)
				for _, r := range got.Rules {
					fmt.Fprintf(&b, "  %s: %s %v\n", strings.Join(r.Path, "."), r.Pattern, r.Offered)
				}
				for _, loss := range got.Losses {
					fmt.Fprintf(&b, "  %s: %s%s\n", loss.Key, map[bool]string{true: "WIDER "}[loss.Wider], loss.Message)
				}
			}
		}
		want := &a.Files[len(a.Files)-1]
		if want.Name != "want" {
			t.Fatalf("%s: the last section is %s, not want", path, want.Name)
		}
		if *update {
			want.Data = []byte(b.String())
			if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if diff := cmp.Diff(string(want.Data), b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// exported returns the file of a client with one server, "" when the server is left out.
func exported(t interface{ Fatalf(string, ...any) }, c clients.Client, s clients.Entry) (text string, losses []clients.Loss) {
	got := c.Export(s.Name, s.Members(), nil)
	if got.Entry == nil {
		return "", got.Losses
	}
	edits := []clientfile.Edit{{Container: c.Container, Key: c.List, Name: s.Name, Value: json.RawMessage(got.Entry)}}
	for _, r := range got.Rules {
		edits = append(edits, clientfile.Edit{Container: r.Path, Name: r.Pattern, Value: json.RawMessage(fmt.Sprint(r.Offered))})
	}
	after, err := clientfile.Apply(c.Format, nil, edits...)
	if err != nil {
		t.Fatalf("%s: %v", c.ID, err)
	}
	return string(after), got.Losses
}

// What is exported to a client and imported from it is the same server, but for what the
// losses name. More tools are offered only where a loss says so.
func TestExportReverses(t *testing.T) {
	texts := rapid.SampledFrom([]string{
		"x", "", "a b", `"q"`, "${A}", "Bearer ${A}", "${env:B}", "${C:-d}", "${C:-}", "${input:in-put}", "${file:/etc/key}", "${file:key}", "${userHome}/x",
		"a${/}b", "$PRICE", "{env:X}", "${{", "é<&>", "1", "true", "- x", "# x",
	})
	names := rapid.SampledFrom([]string{"A", "B", "X-Key", "Authorization", "LOG"})
	pick := rapid.SampledFrom(tools[:6])
	filters := rapid.SliceOfNDistinct(rapid.OneOf(pick, rapid.SampledFrom([]string{"*", "search*", "get_?ssue", "*_file"})), 0, 3, rapid.ID)
	timeouts := rapid.SampledFrom([]any{1, 1500, 90000, "45s", "1h30m", "2h", "1.5s", "300ms"})
	rapid.Check(t, func(t *rapid.T) {
		entry, settings := map[string]any{}, map[string]any{}
		put := func(to map[string]any, key string, value any) {
			if rapid.Bool().Draw(t, "has "+key) {
				to[key] = value
			}
		}
		if rapid.Bool().Draw(t, "local") {
			entry["command"] = rapid.SampledFrom([]string{"npx", "${A}", "./run"}).Draw(t, "command")
			put(entry, "type", "stdio")
			put(entry, "args", rapid.SliceOfN(texts, 0, 3).Draw(t, "args"))
			put(entry, "env", rapid.MapOfN(names, texts, 0, 3).Draw(t, "env"))
			put(entry, "cwd", "work")
			put(entry, "envFile", "my.env")
		} else {
			entry["url"] = rapid.SampledFrom([]string{"https://example.org/mcp?a=b&c", "https://${A}/x", "${B:-https://example.org}"}).Draw(t, "url")
			put(entry, "type", rapid.SampledFrom([]string{"http", "sse", "streamable-http"}).Draw(t, "type"))
			put(entry, "headers", rapid.MapOfN(names, texts, 0, 3).Draw(t, "headers"))
		}
		put(entry, "disabled", true)
		put(entry, "timeout", timeouts.Draw(t, "timeout"))
		for _, to := range []map[string]any{entry, settings} {
			put(to, "expose", filters.Draw(t, "expose"))
			put(to, "exclude", filters.Draw(t, "exclude"))
		}
		put(settings, "timeout", "7s")
		text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"s": entry}, "toolgate": map[string]any{"servers": map[string]any{"s": settings}}})
		if err != nil {
			t.Fatal(err)
		}
		checkReversed(t, string(text))
	})
}

// checkReversed exports the server of an mcp.json to every client, and imports it again.
func checkReversed(t *rapid.T, text string) {
	files := []txtar.File{{Name: "mcp.json", Data: []byte(text)}, {Name: "my.env", Data: []byte("FROM=file")}, {Name: "key", Data: []byte("s3cret")}}
	opts := home(&txtar.Archive{Files: files}, "mcp.json")
	opts = withFile(opts, "/etc/key", "key")
	everything := opts.Getenv
	opts.Getenv = func(name string) (string, bool) {
		if name == "C" { // its default counts
			return "", false
		}
		return everything(name)
	}
	want := tryLoad(opts)
	entries, err := clients.Entries(opts)
	if want == nil || err != nil {
		if want != nil {
			t.Fatalf("Load accepts what Entries refuses: %v\n%s", err, text)
		}
		return
	}
	for _, c := range writers() {
		file, losses := exported(t, c, entries.Servers[0])
		if file == "" {
			if len(losses) != 1 || losses[0].Key != "" {
				t.Fatalf("%s: left out with losses %v", c.ID, losses)
			}
			continue
		}
		n, err := clients.Read(clients.Source{Name: "theirs", Path: "/elsewhere/theirs", Data: []byte(file), Client: c.ID})
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.ID, err, file)
		}
		got := tryLoad(withFile(opts, "/home/ada/mcp.json", bundleOf(n)))
		noDefault := func(l clients.Loss) bool { return strings.Contains(l.Message, "no default values: set C") }
		if got == nil && slices.ContainsFunc(losses, noDefault) {
			continue
		}
		if got == nil {
			t.Fatalf("%s: what is imported is refused\n%s", c.ID, bundleOf(n))
		}
		for _, key := range differing(want.Servers[0], got.Servers[0]) {
			if !slices.ContainsFunc(losses, func(l clients.Loss) bool { return slices.Contains(key, l.Key) }) {
				t.Errorf("%s: %s differs without a word\n%s\n%s\n%s", c.ID, key, text, file, cmp.Diff(want.Servers[0], got.Servers[0]))
			}
		}
		for _, tool := range tools {
			if got.Servers[0].Offers(tool) && !want.Servers[0].Offers(tool) && !slices.ContainsFunc(losses, func(l clients.Loss) bool { return l.Wider }) {
				t.Errorf("%s: offers %s without a word\n%s\n%s", c.ID, tool, text, file)
			}
		}
	}
}

// differing returns the keys that say different things of two servers; of those that say
// one thing together, all.
func differing(a, b config.Server) (keys [][]string) {
	offered := func(s config.Server) string {
		return fmt.Sprint(slices.DeleteFunc(slices.Clone(tools), func(tool string) bool { return !s.Offers(tool) }))
	}
	for key, same := range map[string]bool{
		"type": a.Type == b.Type, "command": a.Command == b.Command, "args": cmp.Equal(a.Args, b.Args, cmpopts.EquateEmpty()), "cwd": a.Dir == b.Dir, "url": a.URL == b.URL,
		"env envFile": maps.Equal(a.Env, b.Env), "headers": maps.Equal(a.Headers, b.Headers), "disabled": a.Disabled == b.Disabled, "timeout": a.Timeout == b.Timeout,
	} {
		if !same {
			keys = append(keys, strings.Fields(key))
		}
	}
	if offered(a) != offered(b) {
		keys = append(keys, []string{"expose", "exclude"})
	}
	return keys
}

func withFile(opts config.Options, path, text string) config.Options {
	read := opts.ReadFile
	opts.ReadFile = func(name string) ([]byte, error) {
		if name == path {
			return []byte(text), nil
		}
		return read(name)
	}
	return opts
}

// A file's rules for the tools of all servers are read as OpenCode applies them: the longest
// pattern that fits counts. Where that cannot be said, fewer tools are offered, with a note.
func TestRulesForAllServers(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "_", "*", "?", "a_", "ab"})
	rapid.Check(t, func(t *rapid.T) {
		rules := map[string]bool{}
		for _, parts := range rapid.SliceOfN(rapid.SliceOfN(part, 1, 5), 0, 5).Draw(t, "patterns") {
			rules[strings.Join(parts, "")] = rapid.Bool().Draw(t, "offered")
		}
		text, err := json.Marshal(map[string]any{"tools": rules, "mcp": map[string]any{"a": map[string]any{"type": "local", "command": []string{"x"}}}})
		if err != nil {
			t.Fatal(err)
		}
		file := txtar.File{Name: "opencode.json", Data: text}
		cfg, err := config.Load(home(&txtar.Archive{Files: []txtar.File{file}}, file.Name))
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range []string{"a", "b", "ab", "ba", "aa", "_a", "a_b", "abab"} {
			want, got := longest(rules, "a_"+tool), cfg.Servers[0].Offers(tool)
			noted := slices.ContainsFunc(cfg.Warnings, func(w config.Warning) bool { return strings.Contains(w.Message, "where a shorter pattern hides it") })
			if got && !want || want && !got && !noted {
				t.Errorf("%s: %s is offered: %v, want %v", text, tool, got, want)
			}
		}
	})
}

// longest reports what the longest of the patterns that fit says, true where none does.
func longest(rules map[string]bool, name string) bool {
	offered := true
	for _, pattern := range slices.SortedFunc(maps.Keys(rules), func(a, b string) int { return stdcmp.Or(len(a)-len(b), strings.Compare(a, b)) }) {
		if regexp.MustCompile("^" + strings.NewReplacer("*", ".*", "?", ".").Replace(pattern) + "$").MatchString(name) {
			offered = rules[pattern]
		}
	}
	return offered
}

// tryLoad loads, nil when the files are refused.
func tryLoad(opts config.Options) *config.Config {
	cfg, err := config.Load(opts)
	if err != nil {
		return nil
	}
	return cfg
}

// bundleOf makes an mcp.json of what was normalised.
func bundleOf(n *clients.Reading) string {
	servers, settings := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for _, s := range n.Servers {
		servers[s.Name] = s.Server
		if s.Settings != nil {
			settings[s.Name] = s.Settings
		}
	}
	text, err := json.Marshal(map[string]any{"mcpServers": servers, "toolgate": map[string]any{"servers": settings}})
	if err != nil {
		panic(err) // every member is JSON that Normalise has written
	}
	return string(text)
}
