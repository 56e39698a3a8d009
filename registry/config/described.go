package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/registry/dialect"
)

// described returns the servers of a file that describes how servers are installed, in
// place of how they are started: the server.json of the MCP registry, and the files of
// Docker's MCP toolkit. It returns nil for any other file.
func (l *loader) described(root *node) *node {
	out := root.as(kindObject, "")
	switch l.client.ID {
	case "server-json":
		l.registryServer(out, root)
	case "docker":
		for _, s := range root.get("registry").each() {
			l.dockerServer(out, s)
		}
	default:
		return nil
	}
	return out
}

// put adds a member with a value that the file has in another form, at the place of at.
func (n *node) put(key string, at *node, value *node) {
	value.key, value.keyAt, value.path = key, at.offset, join(n.path, key)
	n.members = append(n.members, value)
}

func (n *node) putText(key string, at *node, text string) { n.put(key, at, at.as(kindString, text)) }

func (n *node) putList(key string, at *node, texts []string) {
	list := at.as(kindArray, "")
	for _, text := range texts {
		list.items = append(list.items, at.as(kindString, text))
	}
	n.put(key, at, list)
}

// launchers start the packages of each registry. In a line, runtime stands for the arguments
// of the launcher, env for flags that pass variables on, and @ or : for the package, with
// that sign before its version.
var launchers = map[string][]string{
	"npm":   {"npx", "-y", "runtime", "@"},
	"pypi":  {"uvx", "runtime", "@"},
	"nuget": {"dnx", "runtime", "@", "--yes"},
	"oci":   {"docker", "run", "-i", "--rm", "runtime", "env", ":"},
}

// registryServer reads a server.json (schema 2025-12-11): its first package that can be
// started, or else its first remote address.
func (l *loader) registryServer(out, root *node) {
	name := root.get("name").written()
	name = name[strings.LastIndexByte(name, '/')+1:]
	s := root.as(kindObject, "")
	for _, p := range root.get("packages").elements() {
		if l.launch(s, p, name) {
			out.put(name, p, s)
			return
		}
		l.warn(p, "is not imported: packages of this registry and transport are not started by a command", "")
	}
	r := root.at("remotes", "0")
	if r == nil || r.kind != kindObject {
		l.fault(root, "has no package that a command starts, and no remote address", "")
		return
	}
	s.putText("type", r, r.get("type").written())
	s.putText("url", r, l.filled(r.get("url").written(), r))
	if headers := l.filledObject(r.get("headers")); headers != nil {
		s.put("headers", r, headers)
	}
	out.put(name, r, s)
}

// launch writes the command that starts a package. False means that no command does.
func (l *loader) launch(s, p *node, name string) bool {
	line, known := launchers[p.get("registryType").written()]
	if !known || p.get("transport").get("type").written() != "stdio" {
		return false
	}
	env := l.filledObject(p.get("environmentVariables"))
	var args []string
	for _, word := range line {
		switch word {
		case "runtime":
			args = append(args, l.arguments(p.get("runtimeArguments"), name)...)
		case "env":
			for _, m := range env.each() {
				args = append(args, "-e", m.key)
			}
		case "@", ":":
			id, version := p.get("identifier").written(), p.get("version").written()
			if version != "" {
				id += word + version
			}
			args = append(args, id)
		default:
			args = append(args, word)
		}
	}
	args = append(args, l.arguments(p.get("packageArguments"), name)...)
	s.putText("command", p, cmp.Or(p.get("runtimeHint").written(), args[0]))
	s.putList("args", p, args[1:])
	if env != nil {
		s.put("env", p, env)
	}
	return true
}

// arguments returns those that have a value, positional ones and named ones. server is the
// prefix of variables: hints for people, such as "path", are names of other variables.
func (l *loader) arguments(list *node, server string) (args []string) {
	for _, a := range list.elements() {
		name := a.get("name").written()
		variable, value := server+"_"+cmp.Or(strings.TrimLeft(name, "-"), a.get("valueHint").written(), "argument"), ""
		switch {
		case a.get("value") == nil && a.get("default") != nil && !slices.Contains(l.given, dialect.InputVariable(variable)):
			value = a.get("default").written()
		case a.get("value") != nil || name == "" || a.isTrue("isRequired"): // any other is a flag
			value = l.value(a, variable)
		}
		if a.get("type").written() == "named" && name != "" {
			args = append(args, name)
		}
		if value != "" {
			args = append(args, value)
		}
	}
	return args
}

// filledObject returns variables or headers as an object. An optional one without a value is left
// out.
func (l *loader) filledObject(list *node) *node {
	if list == nil {
		return nil
	}
	out := list.as(kindObject, "")
	for _, v := range list.items {
		if value := l.value(v, v.get("name").written()); value != "" {
			out.putText(v.get("name").written(), v, value)
		}
	}
	if len(out.members) == 0 {
		return nil
	}
	return out
}

// value returns a value that is fixed, or a reference to the one that people fill in. It is
// "" for an optional value that nobody has given.
func (l *loader) value(v *node, name string) string {
	if fixed := v.get("value"); fixed != nil {
		return l.filled(fixed.written(), v)
	}
	variable := dialect.InputVariable(name)
	if v.get("default").written() == "" && !v.isTrue("isRequired") && !slices.Contains(l.given, variable) {
		l.warn(v, fmt.Sprintf("optional %q is not imported: it has no value", name), "toolgate import --set "+variable+"=VALUE gives it one")
		return ""
	}
	return l.fillIn(name, v)
}

// fillIn returns a reference to a value that people fill in, as n describes it; n may be nil.
func (l *loader) fillIn(name string, n *node) string {
	in := Input{
		Variable: dialect.InputVariable(name), Description: n.get("description").written(), Default: n.get("default").written(),
		Secret: n.isTrue("isSecret") || n.isTrue("password"),
	}
	for _, choice := range slices.Concat(n.get("choices").elements(), n.get("options").elements()) {
		in.Choices = append(in.Choices, cmp.Or(choice.get("value").written(), choice.written()))
	}
	in.Reference = "${" + in.Variable + "}"
	if in.Default != "" {
		in.Reference = "${" + in.Variable + ":-" + in.Default + "}"
	}
	l.inputs = append(l.inputs, in)
	return in.Reference
}

// curly is a variable of a server.json, {name}.
var curly = regexp.MustCompile(`(^|[^$])\{([A-Za-z_][A-Za-z0-9_-]*)\}`)

// filled makes references of the variables of a text, which at describes.
func (l *loader) filled(text string, at *node) string {
	return curly.ReplaceAllStringFunc(text, func(found string) string {
		parts := curly.FindStringSubmatch(found)
		return parts[1] + l.fillIn(parts[2], at.get("variables").get(parts[2]))
	})
}

// dockerServer reads one server of Docker's catalogue, which has an image or an address.
// One that a registry.yaml only names is run by Docker's own gateway.
func (l *loader) dockerServer(out, d *node) {
	s := d.as(kindObject, "")
	remote, image := d.get("remote"), d.get("image").written()
	switch {
	case remote != nil:
		s.putText("type", d, remote.get("transport_type").written())
		s.putText("url", d, remote.get("url").written())
		if headers := remote.get("headers"); headers != nil {
			s.put("headers", d, headers)
		}
	case image != "":
		l.dockerRun(s, d, image)
	default:
		l.warn(d.named(), "is run by Docker's own gateway: the file does not say how it is started", "")
		s.putText("command", d, "docker")
		s.putList("args", d, []string{"mcp", "gateway", "run", "--servers=" + d.key})
	}
	s.key, s.keyAt = d.key, d.keyAt
	out.members = append(out.members, s)
}

// dockerRun writes the command that runs an image, with its variables and secrets.
func (l *loader) dockerRun(s, d *node, image string) {
	args := []string{"run", "-i", "--rm", "--init"}
	env := d.as(kindObject, "")
	for _, secret := range d.get("secrets").elements() {
		name := secret.get("env").written()
		env.putText(name, secret, l.fillIn(name, secret))
		l.inputs[len(l.inputs)-1].Secret = true
	}
	for _, v := range d.get("env").elements() {
		if strings.Contains(v.get("value").written(), "{{") {
			l.warn(v, fmt.Sprintf("variable %q is not imported: its value is a setting of Docker's toolkit", v.get("name").written()), "add it to env")
			continue
		}
		env.putText(v.get("name").written(), v, v.get("value").written())
	}
	for _, m := range env.members {
		args = append(args, "-e", m.key)
	}
	for _, v := range d.get("volumes").elements() {
		args = append(args, "-v", v.written())
	}
	args = append(args, image)
	for _, c := range d.get("command").elements() {
		args = append(args, c.written())
	}
	s.putText("command", d, "docker")
	s.putList("args", d, args)
	if len(env.members) > 0 {
		s.put("env", d, env)
	}
}
