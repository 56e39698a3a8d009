package clients

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/registry/config"
)

// Write says how a client writes the servers that it calls.
type Write struct {
	Keys     []string          `json:"keys"`     // of an entry, in their order
	Types    map[string]string `json:"types"`    // its word for each transport that it has; "" = it needs none
	Base     map[string]any    `json:"base"`     // members of every entry; {name} is filled in
	Line     bool              `json:"line"`     // command is a list that has the arguments
	Globs    bool              `json:"globs"`    // its filters have * and ?
	Variable string            `json:"variable"` // reference to the variable {name}; "" = it expands none
	Default  string            `json:"default"`  // the same with {default}; "" = it has no defaults
	Input    string            `json:"input"`    // reference to the input {name}; "" = it has no inputs
	Text     string            `json:"text"`     // reference to the text of the file {name}; "" = it has none
	In       []string          `json:"in"`       // keys in which references are expanded; nil = all
	Schema   string            `json:"schema"`   // $schema that a file has to have; "" = none
	Declare  string            `json:"declare"`  // key with the names of all variables to which an entry refers; "" = none
}

// Exported is a server as a client writes it.
type Exported struct {
	Entry  jsontext.Value // nil = the server is left out
	Inputs []string       // IDs of the inputs to which Entry refers
	Rules  []Rule         // for members of the file outside of Entry
	Losses []Loss
}

// Rule says whether the tools are offered whose names fit a pattern: a member of an object
// of the file.
type Rule struct {
	Path    []string // keys that lead to the object
	Pattern string
	Offered bool
}

// Loss is something that a server's entry says in toolgate's form and not in the client's.
type Loss struct {
	Key     string // of toolgate's form; "" = the server is left out
	Message string
	Wider   bool // the client offers more tools than toolgate does
}

// Export returns a server in the client's form, from its members in toolgate's form, expose
// and exclude included. It reverses what Read does with the client's
// file. References to variables stay references, in the client's own words. For one that it
// does not have, value may give what is written instead; value may be nil. The client must
// have a Write.
func (c Client) Export(name string, server map[string]any, value func(reference string) (string, bool)) Exported {
	e := &exporter{client: c, name: name, value: value, own: map[string]any{}, transport: "http"}
	word, _ := server["type"].(string)
	if e.transport = cmp.Or(Types()[word], e.transport); server["command"] != nil && Types()[word] == "" {
		e.transport = "stdio"
	}
	reason, keys := "", c.Write.Keys
	if _, has := c.Write.Types[e.transport]; !has {
		reason = fmt.Sprintf("%s has no transport %s", c.Name, e.transport)
	} else if server["disabled"] == true && !slices.Contains(keys, "disabled") && !slices.Contains(keys, "enabled") {
		reason = fmt.Sprintf("it is disabled, and %s would start it", c.Name)
	}
	if reason != "" {
		return Exported{Losses: []Loss{{Message: reason}}}
	}
	for key, value := range server {
		if !slices.Contains(idle[e.transport == "stdio"], key) {
			e.own[key] = e.canonical(value)
		}
	}
	base, _ := replaceTexts(c.Write.Base, strings.NewReplacer("{name}", name).Replace).(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(base)) {
		e.set(key, base[key])
	}
	if command, ok := e.own["command"]; ok && c.Write.Line {
		args, _ := e.refer("args", e.own["args"]).([]any)
		e.own["command"] = append([]any{e.refer("command", command)}, args...)
		delete(e.own, "args")
	}
	for _, key := range keys {
		e.put(key)
	}
	if e.implied != "" && e.implied != e.transport {
		e.lose("type", "%s has no word for transport %s", c.Name, e.transport)
	}
	e.writeRules()
	for _, key := range slices.Sorted(maps.Keys(e.own)) {
		switch key {
		case "expose", "exclude":
			e.widen(key, "%s has no such filter: its agents see every tool that only this filter hides", c.Name)
		case "type", "disabled":
		default:
			e.lose(key, "%s has no such key", c.Name)
		}
	}
	if key := c.Write.Declare; key != "" && e.transport != "stdio" && len(e.declared) > 0 {
		slices.Sort(e.declared)
		e.set(key, slices.Compact(e.declared))
	}
	e.Entry = e.entry()
	return e.Exported
}

// exporter writes one entry.
type exporter struct {
	client    Client
	name      string
	value     func(string) (string, bool)
	transport string
	own       map[string]any // what is not written yet
	members   []member
	implied   string // the transport that the entry says without a word for it
	declared  []string
	Exported
}

type member struct {
	key   string
	value any
}

// idle are the keys without a meaning for an address, and for a command.
var idle = map[bool][]string{false: {"command", "args", "env", "envFile", "cwd"}, true: {"url", "headers"}}

// lose reports a loss, once.
func (e *exporter) lose(key, format string, args ...any) {
	loss := Loss{Key: key, Message: fmt.Sprintf(format, args...)}
	if !slices.Contains(e.Losses, loss) {
		e.Losses = append(e.Losses, loss)
	}
}

// widen reports a filter that the client does not apply.
func (e *exporter) widen(key, format string, args ...any) {
	e.Losses = append(e.Losses, Loss{Key: key, Message: fmt.Sprintf(format, args...), Wider: true})
}

// set adds a member, or replaces the one with its key.
func (e *exporter) set(key string, value any) {
	if i := slices.IndexFunc(e.members, func(m member) bool { return m.key == key }); i >= 0 {
		e.members[i].value = value
		return
	}
	e.members = append(e.members, member{key, value})
}

// put writes what a key of the client says.
func (e *exporter) put(key string) {
	k := Keys()[key]
	if k.To == "" {
		k.To = key
	}
	if k.To == "type" {
		if word := e.client.Write.Types[e.transport]; word != "" {
			e.set(key, word)
			e.implied = Types()[word]
		}
		return
	}
	value, ok := e.own[k.To]
	if !ok || k.Type != "" && k.Type != e.transport {
		return
	}
	written := e.form(k, value)
	if object, _ := value.(map[string]any); len(object) == 0 || !slices.Contains([]string{"names", "variables", "bearer"}, k.Form) {
		delete(e.own, k.To)
	}
	if written == nil {
		return
	}
	switch {
	case k.To == "command" && e.implied == "":
		e.implied = "stdio"
	case k.To == "url" && e.implied == "":
		e.implied = "http"
	}
	e.set(key, written)
}

// form returns a value as a key writes it, nil for nothing. Of an object of variables it
// takes the members that the key can say; the others are left for other keys.
func (e *exporter) form(k Key, value any) any {
	object, _ := value.(map[string]any)
	switch k.Form {
	case "not":
		return value != true
	case "names":
		if names := variables(object, true); len(names) > 0 {
			return slices.Sorted(maps.Keys(names))
		}
		return nil
	case "variables":
		if names := variables(object, false); len(names) > 0 {
			return names
		}
		return nil
	case "bearer": // a bearer token that is a variable
		text, _ := object["Authorization"].(string)
		token, isBearer := strings.CutPrefix(text, "Bearer ")
		found := wholeReference.FindStringSubmatch(token)
		if !isBearer || found == nil {
			return nil
		}
		delete(object, "Authorization")
		return found[1]
	case "headers":
		return map[string]any{"headers": e.refer(k.To, value)}
	}
	switch {
	case k.To == "timeout":
		return e.timeout(k.Form, value)
	case k.To == "expose" || k.To == "exclude":
		items, _ := value.([]any)
		pattern := slices.IndexFunc(items, func(item any) bool { return strings.ContainsAny(fmt.Sprint(item), "*?") })
		switch {
		case e.client.Write.Globs || pattern < 0:
		case k.To == "expose":
			e.lose(k.To, "%s has no patterns: %q offers nothing there", e.client.Name, items[pattern])
		default:
			e.widen(k.To, "%s has no patterns: its agents see the tools that %q hides", e.client.Name, items[pattern])
		}
		return value
	case k.To == "command" && e.client.Write.Line:
		return value // its references are rewritten
	}
	return e.refer(k.To, value)
}

var wholeReference = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)

// variables removes the members of object whose value is a reference to a variable, and
// returns the name of the variable by the name of the member. If same is true, it takes
// only members that have the name of their variable.
func variables(object map[string]any, same bool) map[string]any {
	found := map[string]any{}
	for name, value := range object {
		text, _ := value.(string)
		if v := wholeReference.FindStringSubmatch(text); v != nil && (!same || v[1] == name) {
			found[name] = v[1]
			delete(object, name)
		}
	}
	return found
}

// timeout returns a time-out as a number in the client's unit, nil when it has none of this
// length.
func (e *exporter) timeout(form string, value any) any {
	var d time.Duration
	var err error
	if ms, ok := value.(float64); ok {
		d = time.Duration(ms * float64(time.Millisecond))
	} else {
		text, _ := value.(string)
		d, err = time.ParseDuration(text)
	}
	unit, c := time.Millisecond, e.client
	if form == "sec" || form == "" && c.Unit == "s" {
		unit = time.Second
	}
	number := float64(d) / float64(unit)
	switch {
	case err != nil:
		e.lose("timeout", "it depends on a variable, and %s has a number", c.Name)
		return nil
	case c.Longest > 0 && number > float64(c.Longest):
		e.lose("timeout", "%s accepts at most %d", c.Name, c.Longest)
		return nil
	case form != "sec" && number != math.Ceil(number):
		e.lose("timeout", "%s counts whole numbers: %s is written as %v", c.Name, d, math.Ceil(number))
		number = math.Ceil(number)
	}
	return number
}

// writeRules writes the filters of an entry as rules for the tools of all servers, where the
// client has such rules. Of several that fit a tool the longest counts.
func (e *exporter) writeRules() {
	i := slices.IndexFunc(e.client.Filters, func(f Filter) bool { return strings.Contains(f.Name, "{server}") })
	offered, only := e.own["expose"].([]any)
	hidden, _ := e.own["exclude"].([]any)
	if i < 0 || slices.ContainsFunc(hidden, func(h any) bool {
		return slices.ContainsFunc(offered, func(o any) bool { return len(fmt.Sprint(h)) <= len(fmt.Sprint(o)) })
	}) {
		return
	}
	f := e.client.Filters[i]
	add := func(offered bool, patterns ...any) {
		for _, p := range patterns {
			e.Rules = append(e.Rules, Rule{f.Path, f.Prefix(e.name) + fmt.Sprint(p), offered})
		}
	}
	if only {
		add(false, "*")
	}
	add(true, offered...)
	add(false, hidden...)
	delete(e.own, "expose")
	delete(e.own, "exclude")
}

var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

// canonical returns a value with one spelling of each reference.
func (e *exporter) canonical(value any) any {
	return replaceTexts(value, func(text string) string {
		return reference.ReplaceAllStringFunc(text, func(found string) string {
			body := strings.TrimPrefix(found[2:len(found)-1], "env:")
			id, isInput := strings.CutPrefix(body, "input:")
			switch {
			case body == "/" || body == "pathSeparator":
				return string(filepath.Separator)
			case body == "userHome":
				body = "HOME"
			case isInput && e.client.Write.Input == "":
				body = config.InputVariable(id)
			}
			return "${" + body + "}"
		})
	})
}

// refer returns a value with its references in the client's words.
func (e *exporter) refer(key string, value any) any {
	return replaceTexts(value, func(text string) string {
		plain := reference.ReplaceAllString(text, "\n")
		for _, x := range e.client.Expand {
			if found := x.Pattern.FindString(plain); found != "" {
				e.lose(key, "%s expands %s, which toolgate takes literally", e.client.Name, strings.TrimSpace(found))
			}
		}
		return reference.ReplaceAllStringFunc(text, func(found string) string { return e.reference(key, found) })
	})
}

// reference returns one reference in the client's words, or as it is where the client has
// none.
func (e *exporter) reference(key, found string) string {
	w, body := e.client.Write, found[2:len(found)-1]
	form := w.Variable
	name, fallback, hasDefault := strings.Cut(body, ":-")
	if id, ok := strings.CutPrefix(body, "input:"); ok { // there are none without w.Input
		form, name, hasDefault = w.Input, id, false
		e.Inputs = append(e.Inputs, id)
	} else if path, ok := strings.CutPrefix(body, "file:"); ok {
		form, name, hasDefault = w.Text, path, false
	} else if hasDefault && w.Default != "" {
		form, hasDefault = w.Default, false
	} else if w.Variable != "" {
		e.declared = append(e.declared, name)
	}
	switch {
	case form == "" || w.In != nil && !slices.Contains(w.In, key):
		if e.value != nil {
			if value, ok := e.value(found); ok {
				return value
			}
		}
		before, _, _ := strings.Cut(body, ":-")
		e.lose(key, "%s does not expand ${%s}: write the value in its place", e.client.Name, before)
		return found
	case hasDefault:
		e.lose(key, "%s has no default values: set %s", e.client.Name, name)
	}
	return strings.NewReplacer("{name}", name, "{default}", fallback).Replace(form)
}

// entry returns the members as JSON.
func (e *exporter) entry() jsontext.Value {
	text := []byte("{")
	for i, m := range e.members {
		value, err := json.Marshal(m.value, json.Deterministic(true))
		if err != nil { // strings, numbers, lists and objects of them
			panic("writing an entry: " + err.Error())
		}
		if i > 0 {
			text = append(text, ',')
		}
		text, _ = jsontext.AppendQuote(text, m.key) // keys of the table are valid
		text = append(append(text, ':'), value...)
	}
	return append(text, '}')
}
