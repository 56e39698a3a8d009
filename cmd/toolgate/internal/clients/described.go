package clients

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// described returns the servers of a file that describes how servers are installed, in
// place of how they are started: the server.json of the MCP registry, and the files of
// Docker's MCP toolkit. It returns nil for any other file.
func (r *reader) described(root *tree.Node) *tree.Node {
	out := root.As(tree.Object, "")
	switch r.client.ID {
	case "server-json":
		r.registryServer(out, root)
	case "docker":
		for _, d := range root.Get("registry").Each() {
			s := r.dockerServer(d)
			s.Key, s.KeyAt = d.Key, d.KeyAt
			out.Members = append(out.Members, s)
		}
	default:
		return nil
	}
	return out
}

// put adds a member with a value that the file has in another form, at the place of at.
func put(n *tree.Node, key string, at *tree.Node, value *tree.Node) {
	value.Key, value.KeyAt, value.Path = key, at.Offset, tree.Join(n.Path, key)
	n.Members = append(n.Members, value)
}

func putText(n *tree.Node, key string, at *tree.Node, text string) {
	put(n, key, at, at.As(tree.String, text))
}

func putList(n *tree.Node, key string, at *tree.Node, texts []string) {
	list := at.As(tree.Array, "")
	for _, text := range texts {
		list.Items = append(list.Items, at.As(tree.String, text))
	}
	put(n, key, at, list)
}

// putCommand adds a command line, and variables where there are any.
func putCommand(s, at *tree.Node, command string, args []string, env *tree.Node) {
	putText(s, "command", at, command)
	putList(s, "args", at, args)
	if len(env.Each()) > 0 {
		put(s, "env", at, env)
	}
}

// registryServer reads a server.json (schema 2025-12-11): its first package that can be
// started, or else its first remote address.
func (r *reader) registryServer(out, root *tree.Node) {
	name := root.Get("name").Written()
	name = name[strings.LastIndexByte(name, '/')+1:]
	s := root.As(tree.Object, "")
	for _, p := range root.Get("packages").Elements() {
		line, known := read().Launchers[p.Get("registryType").Written()]
		if !known || p.Get("transport").Get("type").Written() != "stdio" {
			r.Warn(p, "is not imported: packages of this registry and transport are not started by a command", "")
			continue
		}
		env := r.filledObject(p.Get("environmentVariables"))
		var args []string
		for _, word := range line {
			switch word {
			case "runtime":
				args = append(args, r.arguments(p.Get("runtimeArguments"), name)...)
			case "env":
				for _, m := range env.Each() {
					args = append(args, "-e", m.Key)
				}
			case "@", ":":
				id := p.Get("identifier").Written()
				if version := p.Get("version").Written(); version != "" {
					id += word + version
				}
				args = append(args, id)
			default:
				args = append(args, word)
			}
		}
		args = append(args, r.arguments(p.Get("packageArguments"), name)...)
		putCommand(s, p, cmp.Or(p.Get("runtimeHint").Written(), args[0]), args[1:], env)
		put(out, name, p, s)
		return
	}
	remote := root.At("remotes", "0")
	if remote == nil || remote.Kind != tree.Object {
		r.Fault(root, "has no package that a command starts, and no remote address", "")
		return
	}
	putText(s, "type", remote, remote.Get("type").Written())
	putText(s, "url", remote, r.filled(remote.Get("url").Written(), remote))
	if headers := r.filledObject(remote.Get("headers")); headers != nil {
		put(s, "headers", remote, headers)
	}
	put(out, name, remote, s)
}

// arguments returns the arguments of list that have a value, positional and named. server is the
// prefix of variables: hints for people, such as "path", are names of other variables.
func (r *reader) arguments(list *tree.Node, server string) (args []string) {
	for _, a := range list.Elements() {
		name := a.Get("name").Written()
		variable, value := server+"_"+cmp.Or(strings.TrimLeft(name, "-"), a.Get("valueHint").Written(), "argument"), ""
		switch {
		case a.Get("value") == nil && a.Get("default") != nil && !slices.Contains(r.given, config.InputVariable(variable)):
			value = a.Get("default").Written()
		case a.Get("value") != nil || name == "" || a.IsTrue("isRequired"): // any other is a flag
			value = r.value(a, variable)
		}
		if a.Get("type").Written() == "named" && name != "" {
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
func (r *reader) filledObject(list *tree.Node) *tree.Node {
	if list == nil {
		return nil
	}
	out := list.As(tree.Object, "")
	for _, v := range list.Items {
		if value := r.value(v, v.Get("name").Written()); value != "" {
			putText(out, v.Get("name").Written(), v, value)
		}
	}
	if len(out.Members) == 0 {
		return nil
	}
	return out
}

// value returns a value that is fixed, or a reference to the one that people fill in. It is
// "" for an optional value that nobody has given.
func (r *reader) value(v *tree.Node, name string) string {
	if fixed := v.Get("value"); fixed != nil {
		return r.filled(fixed.Written(), v)
	}
	variable := config.InputVariable(name)
	if v.Get("default").Written() == "" && !v.IsTrue("isRequired") && !slices.Contains(r.given, variable) {
		r.Warn(v, fmt.Sprintf("optional %q is not imported: it has no value", name), "toolgate import --set "+variable+"=VALUE gives it one")
		return ""
	}
	return r.fillIn(name, v)
}

// fillIn returns a reference to a value that people fill in, as n describes it; n may be nil.
func (r *reader) fillIn(name string, n *tree.Node) string {
	in := Input{
		Variable: config.InputVariable(name), Description: n.Get("description").Written(), Default: n.Get("default").Written(),
		Secret: n.IsTrue("isSecret") || n.IsTrue("password"),
	}
	for _, choice := range slices.Concat(n.Get("choices").Elements(), n.Get("options").Elements()) {
		in.Choices = append(in.Choices, cmp.Or(choice.Get("value").Written(), choice.Written()))
	}
	in.Reference = "${" + in.Variable + "}"
	if in.Default != "" {
		in.Reference = "${" + in.Variable + ":-" + in.Default + "}"
	}
	r.inputs = append(r.inputs, in)
	return in.Reference
}

// curly is a variable of a server.json, {name}.
var curly = regexp.MustCompile(`(^|[^$])\{([A-Za-z_][A-Za-z0-9_-]*)\}`)

// filled makes references of the variables of a text, which at describes.
func (r *reader) filled(text string, at *tree.Node) string {
	return curly.ReplaceAllStringFunc(text, func(found string) string {
		parts := curly.FindStringSubmatch(found)
		return parts[1] + r.fillIn(parts[2], at.Get("variables").Get(parts[2]))
	})
}

// dockerServer reads one server of Docker's catalogue, which has an image or an address.
// One that a registry.yaml only names is run by Docker's own gateway.
func (r *reader) dockerServer(d *tree.Node) *tree.Node {
	s, env := d.As(tree.Object, ""), d.As(tree.Object, "")
	remote, image := d.Get("remote"), d.Get("image").Written()
	switch {
	case remote != nil:
		putText(s, "type", d, remote.Get("transport_type").Written())
		putText(s, "url", d, remote.Get("url").Written())
		if headers := remote.Get("headers"); headers != nil {
			put(s, "headers", d, headers)
		}
		return s
	case image == "":
		r.Warn(d.Named(), "is run by Docker's own gateway: the file does not say how it is started", "")
		putCommand(s, d, "docker", []string{"mcp", "gateway", "run", "--servers=" + d.Key}, nil)
		return s
	}
	args := []string{"run", "-i", "--rm", "--init"}
	for _, secret := range d.Get("secrets").Elements() {
		name := secret.Get("env").Written()
		putText(env, name, secret, r.fillIn(name, secret))
		r.inputs[len(r.inputs)-1].Secret = true
	}
	for _, v := range d.Get("env").Elements() {
		if strings.Contains(v.Get("value").Written(), "{{") {
			r.Warn(v, fmt.Sprintf("variable %q is not imported: its value is a setting of Docker's toolkit", v.Get("name").Written()), "add it to env")
			continue
		}
		putText(env, v.Get("name").Written(), v, v.Get("value").Written())
	}
	for _, m := range env.Members {
		args = append(args, "-e", m.Key)
	}
	for _, v := range d.Get("volumes").Elements() {
		args = append(args, "-v", v.Written())
	}
	args = append(args, image)
	for _, c := range d.Get("command").Elements() {
		args = append(args, c.Written())
	}
	putCommand(s, d, "docker", args, env)
	return s
}
