package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/dialect"
)

// ClientFile is the file of an MCP client, or another source of servers, to be read in
// toolgate's own form.
type ClientFile struct {
	Name   string // as people name it: in notes and faults; its ending says TOML or YAML
	Path   string // absolute, for what is relative to it; "" = not known
	Data   []byte
	Client string   // ID of its dialect; "" = recognise it
	Given  []string // variables of inputs that have a value: optional ones among them are not left out
}

// Normalised is what a client's file says, in toolgate's own form.
type Normalised struct {
	Client  dialect.Client // whose form it was; the zero Client = not recognised
	Servers []Entry        // in the order of the file
	Notes   []Warning      // what was rewritten and what was left out, and where
	Inputs  []Input        // to which the servers refer
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

// Normalise reads a client's file. No variable is expanded, no file is read and nothing
// is started: references to variables are references in what it returns. The error is
// always *Faults, and there is no Normalised then. Settings of toolgate in the file are
// not read.
func Normalise(in ClientFile) (*Normalised, error) {
	l := &loader{cfg: defaults(), asked: in.Client, given: in.Given, foreignFile: true}
	f := &file{name: in.Name, path: in.Path, data: slices.Clone(in.Data)}
	l.files = []*file{f}
	out := &Normalised{}
	if root := l.parseObject(f, ""); root != nil {
		out.Servers = l.normalise(root)
	}
	out.Client = l.client
	return l.finishNotes(out)
}

// finishNotes completes what was read, unless there are faults.
func (l *loader) finishNotes(out *Normalised) (*Normalised, error) {
	if len(l.faults) > 0 {
		slices.SortStableFunc(l.faults, l.before)
		return nil, &Faults{List: l.faults}
	}
	slices.SortStableFunc(l.warnings, l.before)
	out.Notes, out.Inputs = l.warnings, l.inputs
	return out, nil
}

// entrySchema is the published schema of servers, for texts that are not expanded: a
// format says nothing about a text with a variable in it.
var entrySchema = sync.OnceValue(func() *schema.Own {
	unexpanded := make(map[string]func(string) error, len(formats))
	for name, check := range formats {
		unexpanded[name] = func(s string) error { return unless(strings.Contains(s, "${"), check, s) }
	}
	return compile("config.json", "/$defs/servers", unexpanded)
})

func (l *loader) normalise(root *node) []Entry {
	servers := l.servers(root)
	if servers == nil {
		l.fault(root, "holds no servers", "name the client that wrote it")
		return nil
	}
	servers.literal()
	l.describeInputs(servers, root.get("inputs"))
	return l.finishEntries(servers)
}

// finishEntries checks servers in toolgate's form, and writes them.
func (l *loader) finishEntries(servers *node) (entries []Entry) {
	if servers != nil {
		l.checkShape(servers, entrySchema())
	}
	for _, s := range servers.each() {
		if s.kind == kindObject {
			entries = append(entries, l.entry(s))
		}
	}
	return entries
}

// inputReference refers to an input of a client.
var inputReference = regexp.MustCompile(`\$\{input:([^}]*)\}`)

// describeInputs notes the inputs to which texts refer, as list (VS Code's inputs) describes
// them.
func (l *loader) describeInputs(servers, list *node) {
	described := map[string]*node{}
	for _, in := range list.elements() {
		described[in.get("id").written()] = in
	}
	servers.walk(func(n *node) {
		for _, found := range inputReference.FindAllStringSubmatch(n.text, -1) {
			l.fillIn(found[1], described[found[1]])
			l.inputs[len(l.inputs)-1].Reference = found[0]
		}
	})
}

// literal makes the value of every string its text.
func (n *node) literal() { n.walk(func(n *node) { n.value = n.text }) }

// entry writes a server in toolgate's form.
func (l *loader) entry(s *node) Entry {
	line, _ := s.file.position(s.keyAt)
	e := Entry{Name: s.key, Written: cmp.Or(s.former, s.key), Line: line, Disabled: s.isTrue("disabled")}
	l.settle(s)
	server, settings := s.as(kindObject, ""), s.as(kindObject, "")
	for _, key := range entryKeys {
		m := s.get(key)
		switch {
		case m == nil || m.kind == kindFalse && key == "disabled":
		case key == "expose" && slices.ContainsFunc(m.items, func(i *node) bool { return i.text == "*" }):
		case key == "expose" || key == "exclude":
			settings.members = append(settings.members, m)
		default:
			server.members = append(server.members, m)
		}
	}
	e.Server = server.json(true)
	if len(settings.members) > 0 {
		e.Settings = settings.json(true)
	}
	return e
}

// settle makes absolute what is relative to the file.
func (l *loader) settle(s *node) {
	if !filepath.IsAbs(s.file.path) {
		return
	}
	workspace := dialect.Workspace(s.file.path)
	places := strings.NewReplacer("${workspaceFolder}", workspace, "${workspaceFolderBasename}", filepath.Base(workspace))
	s.walk(func(n *node) {
		n.value = relativeText.ReplaceAllStringFunc(places.Replace(n.value), func(found string) string {
			return "${file:" + s.resolve(found[len("${file:"):len(found)-1]) + "}"
		})
	})
	for _, key := range []string{"cwd", "envFile"} {
		if n := s.get(key); n != nil && n.kind == kindString && !strings.HasPrefix(n.value, "${") && !strings.HasPrefix(n.value, "~") {
			n.value = n.resolve(n.value)
		}
	}
}

// relativeText refers to the text of a file that is named relative to the one at hand.
var relativeText = regexp.MustCompile(`\$\{file:[^~/}][^}]*\}`)

// fitNames gives servers names that toolgate accepts.
func (l *loader) fitNames(servers *node) {
	for _, s := range servers.each() {
		fit := fitName(s.key)
		switch {
		case fit == s.key || fit == "":
			continue
		case servers.get(fit) != nil:
			l.fault(s.named(), fmt.Sprintf("would be called %q, as another server is", fit), "give them different names")
		default:
			l.warn(s.named(), fmt.Sprintf("is called %q: names have letters, digits, \"_\", \".\" and \"-\"", fit), "")
			s.key, s.former = fit, s.key
		}
	}
}
