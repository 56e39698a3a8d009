package clientfile_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
)

var entry = json.RawMessage(`{"type":"http","url":"http://127.0.0.1:8787/mcp"}`)

func set(key string, container ...string) clientfile.Edit {
	return clientfile.Edit{Container: container, Key: key, Name: "toolgate", Value: entry}
}

func TestApply(t *testing.T) {
	list := set("name", "s")
	list.Value = json.RawMessage(`{"name":"toolgate","url":"u"}`)
	for _, c := range []struct {
		name, format, before, after string
		edit                        clientfile.Edit
	}{
		{"no file", "json", "", "{\n  \"s\": {\n    \"toolgate\": {\n      \"type\": \"http\",\n      \"url\": \"http://127.0.0.1:8787/mcp\"\n    }\n  }\n}\n", set("", "s")},
		{
			"comments and tabs", "json", "// top\n{\n\t\"s\": {\n\t\t\"a\": {} // a\n\t\t// more\n\t} /* x */\n}",
			"// top\n{\n\t\"s\": {\n\t\t\"a\": {}, // a\n\t\t\"toolgate\": {\n\t\t\t\"type\": \"http\",\n\t\t\t\"url\": \"http://127.0.0.1:8787/mcp\"\n\t\t}\n\t\t// more\n\t} /* x */\n}", set("", "s"),
		},
		{
			"trailing comma and CRLF", "json", "{\r\n  \"s\": {\r\n    \"a\": 1, // a\r\n  },\r\n}\r\n",
			"{\r\n  \"s\": {\r\n    \"a\": 1, // a\r\n    \"toolgate\": {\r\n      \"type\": \"http\",\r\n      \"url\": \"http://127.0.0.1:8787/mcp\"\r\n    },\r\n  },\r\n}\r\n", set("", "s"),
		},
		{"one line", "json", `{"s":{"a":1}}`, `{"s":{"a":1, "toolgate": {"type":"http","url":"http://127.0.0.1:8787/mcp"}}}`, set("", "s")},
		{"list", "json", "{\n  \"s\": []\n}\n", "{\n  \"s\": [\n    {\n      \"name\": \"toolgate\",\n      \"url\": \"u\"\n    }\n  ]\n}\n", list},
		{"a member of the file", "json", "{\n  \"s\": {}\n}\n", "{\n  \"s\": {},\n  \"toolgate\": {\n    \"type\": \"http\",\n    \"url\": \"http://127.0.0.1:8787/mcp\"\n  }\n}\n", set("")},
		{"toml", "toml", "# mine\nmodel = \"o\"\n[s.a]\ncommand = \"x\" # run\n", "# mine\nmodel = \"o\"\n[s.a]\ncommand = \"x\" # run\n\n[s.toolgate]\ntype = \"http\"\nurl = \"http://127.0.0.1:8787/mcp\"\n", set("", "s")},
		{"yaml", "yaml", "a: 1 # one\ns:\n    x:\n        cmd: y\n# end\nb: 2\n", "a: 1 # one\ns:\n    x:\n        cmd: y\n    toolgate:\n      type: http\n      url: http://127.0.0.1:8787/mcp\n# end\nb: 2\n", set("", "s")},
		{"yaml list", "yaml", "s:\n  - name: a\n    url: b\n", "s:\n  - name: a\n    url: b\n  - name: toolgate\n    url: u\n", list},
		{"yaml empty", "yaml", "s: {}\nb: 2\n", "s:\n  toolgate:\n    type: http\n    url: http://127.0.0.1:8787/mcp\nb: 2\n", set("", "s")},
	} {
		t.Run(c.name, func(t *testing.T) {
			after, err := clientfile.Apply(c.format, []byte(c.before), c.edit)
			if d := cmp.Diff(c.after, string(after)); err != nil || d != "" {
				t.Fatalf("%v\n%s", err, d)
			}
			again, err := clientfile.Apply(c.format, after, c.edit)
			if err != nil || string(again) != string(after) {
				t.Errorf("the same edit again: %v %s", err, again)
			}
			c.edit.Value = nil
			removed, err := clientfile.Apply(c.format, after, c.edit)
			if err != nil {
				t.Fatal(err)
			}
			if c.name != "no file" && c.name != "list" && string(removed) != c.before {
				t.Errorf("removed again:\n%s", cmp.Diff(c.before, string(removed)))
			}
		})
	}
}

// TestApplyRefuses: a file that cannot be read whole, or edited alone, is not edited.
func TestApplyRefuses(t *testing.T) {
	for name, c := range map[string]struct{ format, data string }{
		"broken JSON":       {"json", `{"s":`},
		"a list":            {"json", `[]`},
		"another value":     {"json", `{"s":"x"}`},
		"inline TOML":       {"toml", "s = { a = { command = 'x' } }\n"},
		"broken TOML":       {"toml", "s = \n"},
		"flow YAML":         {"yaml", "s: { a: { cmd: x } }\n"},
		"several documents": {"yaml", "a: 1\n---\nb: 2\n"},
		"tabs in YAML":      {"yaml", "s:\n\ta: 1\n"},
	} {
		if after, err := clientfile.Apply(c.format, []byte(c.data), set("", "s")); err == nil || after != nil {
			t.Errorf("%s: %q, %v", name, after, err)
		}
	}
}

// TestApplyKeeps: an entry that the file describes in its own way is not described again.
func TestApplyKeeps(t *testing.T) {
	edit := set("", "s")
	edit.Keep = true
	for before, want := range map[string]string{
		`{"s":{"toolgate":1}}`: `{"s":{"toolgate":1}}`,
		`{"s":{"a":1}}`:        `{"s":{"a":1, "toolgate": {"type":"http","url":"http://127.0.0.1:8787/mcp"}}}`,
	} {
		if after, err := clientfile.Apply("json", []byte(before), edit); err != nil || string(after) != want {
			t.Errorf("%s: %s %v", before, after, err)
		}
	}
}

func FuzzApply(f *testing.F) {
	for _, seed := range []struct{ format, data string }{
		{"json", "{\n  // c\n  \"s\": { \"a\": 1, /* x */ \"b\": [] }, // d\n}"}, {"json", "{\"s\":{\n\"a\":1\n}}"},
		{"json", "{\"s\":{\"toolgate\":1,\n\"a\":2}}"},
		{"toml", "[s.a]\nb = \"\"\"\n# x\n\"\"\"\n# c\n[t]\n"}, {"toml", "[s]\na.b = 1\ntoolgate.x = 1\n"},
		{"yaml", "s:\n  a: |\n    # x\n  b: 1\n"}, {"yaml", "s:\n- name: a\n"},
	} {
		f.Add(seed.format, []byte(seed.data))
	}
	f.Fuzz(func(t *testing.T, format string, data []byte) {
		edit := set("", "s")
		after, err := clientfile.Apply(format, data, edit)
		if err != nil {
			return
		}
		if again, err := clientfile.Apply(format, after, edit); err != nil || string(again) != string(after) {
			t.Fatalf("the same edit again: %v\n%s\n%s", err, after, again)
		}
		edit.Value = nil
		removed, err := clientfile.Apply(format, after, edit) // which compares everything else
		if err != nil {
			return
		}
		if twice, err := clientfile.Apply(format, removed, edit); err != nil || string(twice) != string(removed) {
			t.Fatalf("removed twice: %v\n%s\n%s", err, removed, twice)
		}
	})
}

func TestWriteAndUndo(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "link.json")
	const before = "{ // mine\n  \"s\": {} }"
	write(t, file, before, 0o640)
	if err := os.Symlink(file, link); err != nil {
		t.Skip(err)
	}
	c := plan(t, link)
	now := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	backup, err := c.Write(now)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	for _, path := range []string{file, backup} {
		if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	holds(t, backup, before)
	holds(t, file, string(c.After))
	if again := plan(t, file); again.Changed() || again.Diff() != "" {
		t.Error("the second plan changes something")
	}
	last, err := clientfile.Last(link)
	if err != nil || last.Backup != backup || last.Stamp != "20260304T050607.000000008Z" {
		t.Fatalf("%+v %v", last, err)
	}
	write(t, file, string(c.After)+"\n", 0o640)
	if err := last.Undo(false); !errors.Is(err, clientfile.ErrChanged) {
		t.Errorf("undone although the file has changed: %v", err)
	}
	holds(t, file, string(c.After)+"\n")
	if err := last.Undo(true); err != nil {
		t.Fatal(err)
	}
	holds(t, file, before)
	if _, err := clientfile.Last(file); !errors.Is(err, clientfile.ErrNoBackup) {
		t.Errorf("a second undo: %v", err)
	}
}

// TestWriteRefuses: what appeared, changed or went after the plan is not overwritten.
func TestWriteRefuses(t *testing.T) {
	for name, c := range map[string]struct{ before, then string }{
		"changed": {"{}", "{ }"}, "appeared": {"", "{}"}, "gone": {"{}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "f.json")
			if c.before != "" {
				write(t, file, c.before, 0o600)
			}
			planned := plan(t, file)
			if _ = os.Remove(file); c.then != "" {
				write(t, file, c.then, 0o600)
			}
			if backup, err := planned.Write(time.Now()); !errors.Is(err, clientfile.ErrChanged) || backup != "" {
				t.Errorf("%q %v", backup, err)
			}
			if data, _ := os.ReadFile(file); string(data) != c.then {
				t.Errorf("the file is %q", data)
			}
		})
	}
}

// TestCreated: a file that was not there is gone again, in a directory that was not either.
func TestCreated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "f.json")
	if _, err := plan(t, file).Write(time.Now()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	last, err := clientfile.Last(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := last.Undo(false); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

func plan(t *testing.T, file string) *clientfile.Change {
	t.Helper()
	c, err := clientfile.Plan(file, "json", set("", "s"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, file, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, file, want string) {
	t.Helper()
	if data, err := os.ReadFile(file); err != nil || string(data) != want {
		t.Errorf("%s: %q %v", file, data, err)
	}
}
