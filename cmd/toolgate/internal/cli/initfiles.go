package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	strict "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

// plannedFile is one file that init writes, which must not exist yet.
type plannedFile struct {
	Path string // absolute once it is planned; before, with /, below the directory of init
	mode fs.FileMode
	data []byte
}

// MarshalText returns the path.
func (f plannedFile) MarshalText() ([]byte, error) { return []byte(f.Path), nil }

// plan makes the files, of which mcp.json is written last. The error is an *exit when one
// of them, or a directory of them, exists.
func (s *setup) plan() error {
	var entries []*offer
	for _, o := range s.taken() {
		written := *o
		written.entry.Server = s.secrets.move(o.Name, o.entry.Server)
		entries = append(entries, &written)
	}
	tokens := []config.Token{}
	for _, t := range s.Tokens {
		tokens = append(tokens, t.Entry)
	}
	text, err := mcpText(entries, object{"state": ".toolgate", "policy": object{"path": "policy"}, "identity": object{"tokens": tokens}, "approvals": object{"require_person": true}})
	if err != nil {
		return err
	}
	files, err := policyFiles(s.Tools)
	if err != nil {
		return err
	}
	moved := 0
	for _, name := range slices.Sorted(maps.Keys(s.secrets.values)) {
		if bytes.Contains(text, quoted(fmt.Sprintf(s.secrets.form, name))) { // its server is taken
			files = append(files, plannedFile{"secrets/" + name, 0o600, []byte(s.secrets.values[name] + "\n")})
			moved++
		}
	}
	if moved > 0 {
		files = append(files, plannedFile{"secrets/.gitignore", 0o600, []byte("*\n")})
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, ".toolgate")); errors.Is(err, fs.ErrNotExist) { // the state of an earlier one stays
		files = append(files, plannedFile{".toolgate/.gitignore", 0o600, []byte("*\n")})
	}
	files = append(files, plannedFile{lock.Name, 0o644, s.lock.Bytes()}, plannedFile{defaultConfig, 0o600, text})
	s.Files = nil
	for _, f := range files {
		top, _, _ := strings.Cut(f.Path, "/")
		if _, err := os.Lstat(filepath.Join(s.Dir, top)); !errors.Is(err, fs.ErrNotExist) {
			return usage(fmt.Errorf("%s has a %s, and nothing is overwritten\nhint: toolgate init DIR writes to another directory; toolgate import adds servers to an mcp.json", s.Dir, top))
		}
		f.Path = filepath.Join(s.Dir, filepath.FromSlash(f.Path))
		s.Files = append(s.Files, f)
	}
	return nil
}

// mcpText returns mcp.json with the servers and the settings of toolgate.
func mcpText(servers []*offer, settings object) ([]byte, error) {
	entries, own := object{}, object{}
	for _, o := range servers {
		entries[o.Name] = o.entry.Server
		if o.entry.Settings != nil {
			own[o.Name] = o.entry.Settings
		}
	}
	if len(own) > 0 {
		settings["servers"] = own
	}
	return document(object{"mcpServers": entries, "toolgate": settings})
}

// document returns a value as a JSON file.
func document(v any) ([]byte, error) {
	text, err := strict.Marshal(v, strict.Deterministic(true), jsontext.WithIndent("  "))
	return append(text, '\n'), err
}

// loadPlanned reads the configuration as if the planned files were on the disk.
func (e *env) loadPlanned(files []plannedFile) (*config.Config, error) {
	return config.Load(clients.Options(config.Options{Path: e.config, Getenv: e.lookup, State: e.state, Keys: e.keys, ReadFile: func(path string) ([]byte, error) {
		if i := slices.IndexFunc(files, func(f plannedFile) bool { return f.Path == path }); i >= 0 {
			return files[i].data, nil
		}
		return config.ReadFile(path)
	}}))
}

// write makes every file, or none.
func (s *setup) write() (err error) {
	for i, f := range s.Files {
		if err = os.MkdirAll(filepath.Dir(f.Path), 0o700); err == nil {
			err = files.Create(f.Path, f.data, f.mode)
		}
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(s.Files[:i]) {
			_ = os.Remove(done.Path)
			_ = os.Remove(filepath.Dir(done.Path)) // fails while it has others
		}
		return fmt.Errorf("writing %s: %w\nhint: nothing is left of what init wrote", f.Path, err)
	}
	s.Written = true
	return nil
}

// The roles that init drafts. An agent with the first two may call every tool.
const (
	roleReader   = "reader"   // tools that only read, and nothing outside their server
	roleWriter   = "writer"   // all other tools; a person decides on a call that may destroy
	roleApprover = "approver" // no tools: it decides on calls that are held
)

// draftedTool is a tool with its place in the drafted policy.
type draftedTool struct {
	Name        string          `json:"name"`                  // under which agents call it
	Annotations json.RawMessage `json:"annotations,omitempty"` // claims of its server
	Role        string          `json:"role"`
	Held        bool            `json:"held"` // a person decides on every call

	reads    bool // its server says that it changes nothing
	argument bool // it has a required argument
}

// draftTool finds the place of a tool. Annotations are what its server says, and nothing
// holds the server to them. What it does not say, or says in a form that has two readings,
// is what MCP takes for granted: the tool writes, may destroy and reaches the open world.
func draftTool(t policy.Tool, definition json.RawMessage) draftedTool {
	type claims struct {
		ReadOnly    *bool `json:"readOnlyHint"`
		Destructive *bool `json:"destructiveHint"`
		OpenWorld   *bool `json:"openWorldHint"`
	}
	var c claims
	if len(t.Annotations) > 0 && strict.Unmarshal(t.Annotations, &c) != nil {
		c = claims{}
	}
	is := func(claim *bool, otherwise bool) bool { return claim == nil && otherwise || claim != nil && *claim }
	d := draftedTool{Name: t.Exposed, Annotations: t.Annotations, Role: roleWriter, reads: is(c.ReadOnly, false) && !is(c.Destructive, false)}
	if d.reads && !is(c.OpenWorld, true) {
		d.Role = roleReader
	}
	d.Held = !d.reads && is(c.Destructive, true)
	var input struct{ InputSchema struct{ Required []string } }
	d.argument = json.Unmarshal(definition, &input) != nil || len(input.InputSchema.Required) > 0
	return d
}

// policyFiles returns the default policy with data that gives the drafted roles their
// tools, a decision table that says what each role may do with each tool, and a page that
// explains it.
func policyFiles(tools []draftedTool) (files []plannedFile, err error) {
	granted, held, cases := map[string]object{roleReader: {}, roleWriter: {}}, object{}, []object{}
	for _, t := range tools {
		effect := "allow"
		granted[t.Role][t.Name] = true
		if t.Held {
			effect = "hold"
			held[t.Name] = object{"hold": true}
		}
		for _, role := range []string{roleReader, roleWriter, roleApprover} {
			want := "deny"
			if role == t.Role {
				want = effect
			}
			cases = append(cases, object{"name": role + ": " + t.Name, "input": object{"principal": object{"roles": []string{role}}, "tool": object{"exposed": t.Name}}, "want": want})
		}
	}
	data, err := document(object{
		"roles": object{
			roleReader: object{"tools": granted[roleReader]}, roleWriter: object{"tools": granted[roleWriter]}, roleApprover: object{"tools": object{}},
		},
		"tools":    held,
		"approval": object{"roles": []string{roleApprover}, "quorum": 1},
		"trail":    object{"auditor": "all", roleApprover: "decides"},
	})
	table, failed := document(object{"cases": cases})
	files = []plannedFile{
		{"policy/README.md", 0o644, []byte(reports().Render("drafted-policy", tools, false))},
		{"policy/data.json", 0o644, data}, {"policy/roles_test.json", 0o644, table},
	}
	rules, unread := bundled()
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if strings.HasSuffix(name, ".rego") && !strings.HasSuffix(name, "_test.rego") {
			files = append(files, plannedFile{"policy/" + name, 0o644, rules[name]})
		}
	}
	return files, errors.Join(err, failed, unread)
}
