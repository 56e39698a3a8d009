package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/internal/text"
)

// overlayName is where files keep the data that comes from beside the policy.
// No file of a policy begins with a slash.
const overlayName = "/overlay"

// overlay takes in data from beside the policy. Its spelling is made one, so
// that the same data gives the same revision.
func (f sourceFiles) overlay(data json.RawMessage) error {
	if len(data) == 0 {
		return nil
	}
	if err := checkJSON(data); err != nil {
		return fmt.Errorf("parsing policy data: %w", err)
	}
	var members map[string]any
	if err := util.UnmarshalJSON(data, &members); err != nil || members == nil {
		return errors.New("parsing policy data: it is not an object")
	}
	if len(members) == 0 {
		return nil
	}
	var err error
	f[overlayName], err = json.Marshal(members)
	return err
}

// join adds what lies over the policy to the data of its files. Two opinions on
// one path are an error, even equal ones: whoever changes one of them would
// think that it is the one that holds.
func (f sourceFiles) join(data map[string]any, from func([]string) string) error {
	raw := f[overlayName]
	if raw == nil {
		return nil
	}
	var over map[string]any
	if err := util.UnmarshalJSON(raw, &over); err != nil {
		return fmt.Errorf("parsing policy data: %w", err)
	}
	if at := join(data, over, nil); at != nil {
		return fmt.Errorf("joining policy data: data.%s is set twice: in %s and in %s (hint: keep one of them)", strings.Join(at, "."), f.whereSet(at), from(at))
	}
	return nil
}

// join adds over to under, and returns the first path that both set.
func join(under, over map[string]any, at []string) []string {
	for _, name := range slices.Sorted(maps.Keys(over)) {
		path := append(slices.Clip(at), name)
		below, ok := under[name].(map[string]any)
		above, object := over[name].(map[string]any)
		if _, taken := under[name]; !taken {
			under[name] = over[name]
		} else if !ok || !object {
			return path
		} else if twice := join(below, above, path); twice != nil {
			return twice
		}
	}
	return nil
}

// ruled is how the compiler says that a rule and data have one path.
var ruled = regexp.MustCompile(`conflicting rule for data path (\S+) found`)

// overRule adds to an error of the compiler where the data that lies over the
// policy sets the path of a rule, if it does.
func (f sourceFiles) overRule(err error, from func([]string) string) error {
	found := ruled.FindStringSubmatch(err.Error())
	if found == nil || f[overlayName] == nil {
		return err
	}
	path := strings.Split(found[1], "/")
	if _, over := lineOf(f[overlayName], path); !over {
		return err
	}
	return fmt.Errorf("%w\nhint: %s sets data where this rule is: keep one of them", err, from(path))
}

// whereSet says which file of the policy sets a path of data, and where in it.
func (f sourceFiles) whereSet(at []string) string {
	name, line := f.setAt(at)
	switch {
	case name == "":
		return "the policy"
	case line == 0:
		return name
	}
	return fmt.Sprintf("%s:%d", name, line)
}

// setAt finds the file of the policy that sets a path of data, "" when none
// does, with the line where it is known.
func (f sourceFiles) setAt(at []string) (file string, line int) {
	for _, name := range f.names() {
		switch path.Base(name) {
		case "data.json", "data.yaml", "data.yml":
		default:
			continue
		}
		folder := path.Dir(name)
		var above []string
		if folder != "." {
			above = strings.Split(folder, "/")
		}
		if n := min(len(above), len(at)); !slices.Equal(above[:n], at[:n]) {
			continue
		}
		below := at[min(len(above), len(at)):]
		if path.Ext(name) != ".json" {
			if yamlSets(f[name], below) {
				return name, 0
			}
		} else if line, ok := lineOf(f[name], below); ok {
			return name, line
		}
	}
	return "", 0
}

// lineOf finds the line of a JSON document, from 1, at which a path is set: the
// deepest member on it that there is, where something that is no object stands
// in the way.
func lineOf(document []byte, at []string) (line int, ok bool) {
	var path jsontext.Pointer
	for _, name := range at {
		path = path.AppendToken(name)
	}
	d := jsontext.NewDecoder(bytes.NewReader(document))
	for {
		token, err := d.ReadToken()
		if err != nil {
			return 0, false
		}
		kind, n := d.StackIndex(d.StackDepth())
		here, name := d.StackPointer(), kind == '{' && n%2 == 1
		inTheWay := here != "" && here.Contains(path) && !name && token.Kind() != '{' && token.Kind() != '}'
		if here == path || inTheWay {
			return 1 + bytes.Count(document[:d.InputOffset()], []byte("\n")), true
		}
	}
}

// yamlSets reports whether a YAML document sets a path, or something that is no
// object on the way to it.
func yamlSets(document []byte, at []string) bool {
	var value any
	if util.Unmarshal(document, &value) != nil {
		return false
	}
	for _, name := range at {
		members, ok := value.(map[string]any)
		if !ok {
			return true
		}
		if value, ok = members[name]; !ok {
			return false
		}
	}
	return true
}

// paths are what of data the rules read: the members that they name, and below
// anyMember those under names that they do not know.
type paths struct {
	whole   bool // everything below is read
	members map[string]*paths
}

const anyMember = "[…]"

// readByEngine are parts of data that toolgate itself looks at, or an editor.
var readByEngine = []ast.Ref{ast.MustParseRef("data.usage"), ast.MustParseRef("data.system"), ast.MustParseRef(`data["$schema"]`)}

// pathsOf walks every compiled rule.
func pathsOf(c *ast.Compiler) *paths {
	root := new(paths)
	add := func(r ast.Ref) bool {
		if len(r) > 0 && r[0].Equal(ast.DefaultRootDocument) && len(c.GetRules(r.GroundPrefix())) == 0 {
			root.add(r[1:])
		}
		return false
	}
	for _, m := range c.Modules {
		ast.WalkRefs(m, add)
	}
	for _, r := range readByEngine {
		add(r)
	}
	return root
}

func (p *paths) add(r ast.Ref) {
	for _, t := range r {
		name := anyMember
		if s, ok := t.Value.(ast.String); ok {
			name = string(s)
		}
		if p.members == nil {
			p.members = make(map[string]*paths)
		}
		if p.members[name] == nil {
			p.members[name] = new(paths)
		}
		p = p.members[name]
	}
	p.whole = true
}

// mostUnread bounds what is said of data: one slip is often in many places.
const mostUnread = 20

// lintData finds members of data that no rule reads: a right, a limit or a list
// that was written, and does nothing. One that is nearly a member which a package declares
// is among typos: the limits below it would bound nothing.
func (f sourceFiles) lintData(c *ast.Compiler, s *sources, from func([]string) string) (found []Finding, typos Faults) {
	u := &unread{files: f, from: from, declared: declaredData(s.modules)}
	u.walk([]*paths{pathsOf(c)}, s.data, nil)
	return u.found, u.typos
}

// unread is a search of data for what no rule reads.
type unread struct {
	files    sourceFiles
	from     func([]string) string // where a path of the overlay was written
	declared []string              // members of data that a package declares to be in the published form
	found    []Finding
	typos    Faults
}

func (u *unread) walk(read []*paths, data map[string]any, at []string) {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		var next []*paths
		whole := false
		for _, p := range read {
			for _, key := range []string{name, anyMember} {
				if below := p.members[key]; below != nil {
					next, whole = append(next, below), whole || below.whole
				}
			}
		}
		switch below, object := data[name].(map[string]any); {
		case len(u.found) >= mostUnread:
			return
		case next == nil:
			var known []string
			for _, p := range read {
				known = slices.AppendSeq(known, maps.Keys(p.members))
			}
			u.say(append(slices.Clip(at), name), text.Nearest(name, known))
		case object && !whole:
			u.walk(next, below, append(slices.Clip(at), name))
		}
	}
}

func (u *unread) say(path []string, near string) {
	f := Finding{Level: LevelNote, Code: codeData, Message: "no rule reads data" + dotted(path)}
	if near != "" {
		f.Level, f.Hint = LevelWarning, "did you mean "+near+"?"
	}
	f = u.files.placed(f, path, u.from)
	if len(path) == 1 && slices.Contains(u.declared, near) {
		f.Level = LevelError
		u.typos = append(u.typos, f)
		return
	}
	u.found = append(u.found, f)
}

// placed returns a finding with the place where a path of data, or the nearest member above
// it, is set.
func (f sourceFiles) placed(one Finding, path []string, from func([]string) string) Finding {
	if one.File, one.Row = f.setAt(path); one.File == "" {
		one.File = from(path)
	}
	return one
}

var (
	plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	listIndex = regexp.MustCompile(`^[0-9]+$`)
)

// dotted is a path below a document, as Rego writes it.
func dotted(path []string) string {
	var b strings.Builder
	for _, name := range path {
		switch {
		case plainName.MatchString(name):
			b.WriteString("." + name)
		case listIndex.MatchString(name):
			b.WriteString("[" + name + "]")
		default:
			b.WriteString("[" + ast.String(name).String() + "]")
		}
	}
	return b.String()
}
