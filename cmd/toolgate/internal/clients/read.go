package clients

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// Source is the file of an MCP client, or another source of servers, to be read in
// toolgate's own form.
type Source struct {
	Name   string // as people name it: in notes and faults; its ending says TOML or YAML
	Path   string // absolute, for what is relative to it; "" = not known
	Data   []byte
	Client string   // ID of its dialect; "" = recognise it
	Given  []string // variables of inputs that have a value: optional ones among them are not left out
}

// Reading is what a client's file says, in toolgate's own form.
type Reading struct {
	Client  Client           // whose form it was; the zero Client = not recognised
	Servers []Entry          // in the order of the file
	Notes   []config.Warning // what was rewritten and what was left out, and where
	Inputs  []Input          // to which the servers refer
}

// Input is a value that the file leaves to people.
type Input struct {
	Variable    string // that has the value
	Reference   string // to it, as the entries have it
	Description string
	Default     string   // "" = none
	Choices     []string // nil = any value
	Secret      bool
}

// Entry is one server in toolgate's own form, with its variables unexpanded.
type Entry struct {
	Name     string
	Written  string          // the name as the file has it
	Server   json.RawMessage // for mcpServers.NAME
	Settings json.RawMessage // for toolgate.servers.NAME: expose and exclude; nil = none
	Disabled bool            // Server says that it is disabled
	Line     int             // of the file, from 1
}

// Read reads a client's file. No variable is expanded, no file is read and nothing
// is started: references to variables are references in what it returns. The error is
// always *config.Faults, and there is no Reading then. Settings of toolgate in the file are
// not read.
func Read(in Source) (*Reading, error) {
	f := &tree.File{Name: in.Name, Path: in.Path, Data: slices.Clone(in.Data)}
	r := &reader{Report: &tree.Report{Files: []*tree.File{f}}, asked: in.Client, given: in.Given, foreign: true}
	if c, ok := Lookup(in.Client); ok && c.Format != tree.JSON {
		f.Format = c.Format
	}
	var entries []Entry
	if root := r.ParseObject(f, ""); root != nil {
		if servers := r.servers(root); servers == nil {
			r.Fault(root, "holds no servers", "name the client that wrote it")
		} else {
			servers.Literal()
			described := map[string]*tree.Node{} // the inputs of VS Code, by id
			for _, in := range root.Get("inputs").Elements() {
				described[in.Get("id").Written()] = in
			}
			servers.Walk(func(n *tree.Node) {
				for _, found := range inputReference.FindAllStringSubmatch(n.Text, -1) {
					r.fillIn(found[1], described[found[1]])
					r.inputs[len(r.inputs)-1].Reference = found[0]
				}
			})
			entries = r.entries(servers)
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return &Reading{Client: r.client, Servers: entries, Notes: r.Warnings, Inputs: r.inputs}, nil
}

// entries checks servers in toolgate's form, and writes them.
func (r *reader) entries(servers *tree.Node) (entries []Entry) {
	if servers != nil {
		config.CheckServers(servers, r.Report)
	}
	for _, s := range servers.Each() {
		if s.Kind == tree.Object {
			entries = append(entries, r.entry(s))
		}
	}
	return entries
}

// inputReference refers to an input of a client.
var inputReference = regexp.MustCompile(`\$\{input:([^}]*)\}`)

// entry writes a server in toolgate's form, with absolute names in the place of those that are
// relative to the file.
func (r *reader) entry(s *tree.Node) Entry {
	line, _ := s.File.Position(s.KeyAt)
	e := Entry{Name: s.Key, Written: cmp.Or(s.Former, s.Key), Line: line, Disabled: s.IsTrue("disabled")}
	absolute := filepath.IsAbs(s.File.Path)
	if absolute {
		workspace := Workspace(s.File.Path)
		places := strings.NewReplacer("${workspaceFolder}", workspace, "${workspaceFolderBasename}", filepath.Base(workspace))
		s.Walk(func(n *tree.Node) {
			n.Value = relativeText.ReplaceAllStringFunc(places.Replace(n.Value), func(found string) string {
				return "${file:" + s.Resolve(found[len("${file:"):len(found)-1]) + "}"
			})
		})
	}
	server, settings := s.As(tree.Object, ""), s.As(tree.Object, "")
	for _, key := range config.EntryKeys {
		m := s.Get(key)
		switch {
		case m == nil || m.Kind == tree.False && key == "disabled":
		case key == "expose" && slices.ContainsFunc(m.Items, func(i *tree.Node) bool { return i.Text == "*" }):
		case key == "expose" || key == "exclude":
			settings.Members = append(settings.Members, m)
		default:
			if absolute && (key == "cwd" || key == "envFile") && m.Kind == tree.String && !strings.HasPrefix(m.Value, "${") && !strings.HasPrefix(m.Value, "~") {
				m.Value = m.Resolve(m.Value)
			}
			server.Members = append(server.Members, m)
		}
	}
	e.Server = server.JSON(true)
	if len(settings.Members) > 0 {
		e.Settings = settings.JSON(true)
	}
	return e
}

// relativeText refers to the text of a file that is named relative to the one at hand.
var relativeText = regexp.MustCompile(`\$\{file:[^~/}][^}]*\}`)
