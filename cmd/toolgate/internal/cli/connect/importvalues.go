package connect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/term"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/registry/lock"
)

// minSecretBytes is how long a value must be to be hidden where it is printed.
const minSecretBytes = 6

// secretValues returns the secrets that entries hold as they are, not as variables.
func secretValues(entries []clients.Entry) (values []string) {
	for _, s := range entries {
		replaceSecrets(s.Server, func(_, value string) string {
			if len(value) >= minSecretBytes {
				values = append(values, value)
			}
			return value
		})
	}
	return values
}

// replaceSecrets returns an entry with each secret replaced by what with returns for its
// name and its value. An entry without secrets is returned as it is.
func replaceSecrets(entry json.RawMessage, with func(name, value string) string) json.RawMessage {
	var s map[string]any
	if json.Unmarshal(entry, &s) != nil {
		return entry // which the configuration refuses
	}
	changed := false
	replace := func(name, value string) string {
		if value == "" || strings.Contains(value, "${") {
			return value
		}
		changed = true
		return with(name, value)
	}
	for _, key := range []string{"env", "headers"} {
		members, _ := s[key].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(members)) {
			value, _ := members[name].(string)
			if !lock.Secret(name) {
				continue
			}
			scheme := ""
			if before, credentials, ok := strings.Cut(value, " "); ok && key == "headers" { // Bearer, Basic
				scheme, value = before+" ", credentials
			}
			members[name] = scheme + replace(name, value)
		}
	}
	list, _ := s["args"].([]any)
	args := make([]string, len(list))
	for i, arg := range list {
		args[i], _ = arg.(string)
	}
	for i := range args {
		if name, secret, ok := lock.SecretArg(args, i); ok && secret != "" {
			list[i] = strings.TrimSuffix(args[i], secret) + replace(strings.TrimLeft(name, "-"), secret)
		}
	}
	if !changed {
		return entry
	}
	text, err := json.Marshal(s)
	if err != nil {
		return entry
	}
	return text
}

// SecretFile is a file of variables to which secrets move.
type SecretFile struct {
	file   *clientfile.Change
	Values map[string]string // that were moved
	Form   string            // of what stands in the place of a secret, with %s for the variable
}

// openSecrets reads a file of variables, nil for none.
func openSecrets(path string) (*SecretFile, error) {
	if path == "" {
		return nil, nil
	}
	c, err := clientfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("reading the file for secrets: %w", err)
	}
	c.Mode = 0o600
	return NewSecrets(c, "${%s}"), nil
}

// NewSecrets returns the secrets of a file, to which form refers by a name.
func NewSecrets(file *clientfile.Change, form string) *SecretFile {
	return &SecretFile{file: file, Values: map[string]string{}, Form: form}
}

// Move returns the entry of a server with references in the place of secrets.
func (f *SecretFile) Move(server string, entry json.RawMessage) json.RawMessage {
	return replaceSecrets(entry, func(name, value string) string { return f.put(server, name, value) })
}

// put keeps a secret of a server, and returns a reference to it.
func (f *SecretFile) put(server, name, value string) string {
	variable := variableName(name)
	free := func() bool { // it has this value, or none yet
		moved, ok := f.Values[variable]
		return ok && moved == value || !ok && (f.has(variable, value) || !f.mentions(variable))
	}
	for i := 1; !free(); i++ {
		variable = variableName(server + "_" + name)
		if i > 1 {
			variable += fmt.Sprintf("_%d", i)
		}
	}
	f.Values[variable] = value
	return fmt.Sprintf(f.Form, variable)
}

// mentions reports whether the file as it was gives a variable a value.
func (f *SecretFile) mentions(variable string) bool {
	return f != nil && strings.Contains("\n"+string(f.file.Before), "\n"+variable+"=")
}

// has reports whether the file as it was gives a variable this value.
func (f *SecretFile) has(variable, value string) bool {
	return strings.Contains("\n"+string(f.file.Before)+"\n", "\n"+variable+"="+quoteVariable(value)+"\n")
}

var notInName = regexp.MustCompile(`[^A-Z0-9]+`)

// variableName returns a text as the name of a variable.
func variableName(text string) string {
	name := strings.Trim(notInName.ReplaceAllString(strings.ToUpper(text), "_"), "_")
	if name == "" || name[0] <= '9' {
		name = "SECRET_" + name
	}
	return name
}

// change returns the planned file.
func (f *SecretFile) change() *clientfile.Change {
	text := string(f.file.Before)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	added := false
	for _, name := range slices.Sorted(maps.Keys(f.Values)) {
		if !f.has(name, f.Values[name]) {
			text += name + "=" + quoteVariable(f.Values[name]) + "\n"
			added = true
		}
	}
	if added {
		f.file.After = []byte(text)
	}
	return f.file
}

// quoteVariable writes a value for envFile, and for a shell.
func quoteVariable(value string) string {
	if !strings.ContainsAny(value, "'\n\r") {
		return "'" + value + "'"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`, "\r", `\r`).Replace(value) + `"`
}

// FillInputs gives values to the inputs to which servers refer: those given, of the environment
// or of the file for secrets, or else what ask returns, "" for nothing, or their defaults. A
// secret goes to the file for secrets, where there is one; any other value takes the place of
// its references. With asks, it asks for values on a terminal, and adds them to given. FillInputs returns the secrets that it
// wrote, and says which inputs have no value.
func FillInputs(e *command.Env, inputs []clients.Input, servers []*clients.Entry, env *SecretFile, given map[string]string, asks bool) (secrets []string, missing string, err error) {
	var without []string
	for _, in := range inputs {
		if !slices.ContainsFunc(servers, func(s *clients.Entry) bool { return bytes.Contains(s.Server, Quoted(in.Reference)) }) {
			continue // it is filled in, or its server is not imported
		}
		value, ok := given[in.Variable]
		switch set, _ := e.Lookup(in.Variable); {
		case ok:
		case set != "" || env.mentions(in.Variable) || strings.Contains(in.Reference, ":-"):
			continue
		default:
			if asks {
				value = askInput(e, in)
			}
			value = cmp.Or(value, in.Default)
		}
		if value == "" {
			without = append(without, describeInput(in))
			continue
		}
		given[in.Variable] = value
		if in.Secret {
			secrets = append(secrets, value)
		}
		switch {
		case len(in.Choices) > 0 && !slices.Contains(in.Choices, value):
			return nil, "", fmt.Errorf("%s has an invalid value: want one of %s", in.Variable, strings.Join(in.Choices, ", "))
		case in.Secret && env != nil:
			env.Values[in.Variable] = value
			value = fmt.Sprintf(env.Form, in.Variable)
		case strings.Contains(value, "${"):
			return nil, "", fmt.Errorf("the value of %s has \"${\" in it, which would be expanded\nhint: set the variable %s instead", in.Variable, in.Variable)
		}
		for _, s := range servers {
			s.Server = bytes.ReplaceAll(s.Server, Quoted(in.Reference), Quoted(value))
		}
	}
	if len(without) > 0 {
		missing = "no value for " + strings.Join(without, ", ") + ": --set NAME=VALUE gives one, as do variables of these names"
	}
	return secrets, missing, nil
}

// setNames returns the variables of --set.
func setNames(set []string) (names []string) {
	for _, text := range set {
		name, _, _ := strings.Cut(text, "=")
		names = append(names, name)
	}
	return names
}

// GivenValues returns the values of --set, by variable.
func GivenValues(inputs []clients.Input, set []string) (map[string]string, error) {
	given := map[string]string{}
	for _, text := range set {
		name, value, ok := strings.Cut(text, "=")
		i := slices.IndexFunc(inputs, func(in clients.Input) bool { return in.Variable == name })
		switch {
		case !ok || value == "":
			return nil, fmt.Errorf("--set %s: want NAME=VALUE", name)
		case i < 0:
			names := command.TextsOf(inputs, func(in clients.Input) string { return in.Variable })
			return nil, fmt.Errorf("--set %s: there is no input of this name, only %q", name, names)
		}
		given[name] = value
	}
	return given, nil
}

// describeInput says to people what an input is.
func describeInput(in clients.Input) string {
	var parts []string
	if in.Secret {
		parts = append(parts, "secret")
	}
	if in.Description != "" {
		parts = append(parts, in.Description)
	}
	if len(in.Choices) > 0 {
		parts = append(parts, "one of "+strings.Join(in.Choices, ", "))
	}
	if len(parts) == 0 {
		return in.Variable
	}
	return in.Variable + " (" + strings.Join(parts, "; ") + ")"
}

// askInput asks for a value on a terminal, "" for none. A secret is not shown.
func askInput(e *command.Env, in clients.Input) string {
	if e.Structured() || !e.Terminal() {
		return ""
	}
	question := report.OneLine(describeInput(in))
	if in.Default != "" {
		question += " [" + report.OneLine(in.Default) + "]"
	}
	if !in.Secret {
		answer, _ := e.Prompt(question + ": ") // "" = no value
		return answer
	}
	fmt.Fprint(e.Stderr, question+": ")
	answer, _ := term.ReadPassword(int(e.Stdin.(*os.File).Fd())) // a terminal is a file; "" = no value
	fmt.Fprintln(e.Stderr)
	return strings.TrimSpace(string(answer))
}

// SameFilled reports whether a server is that of an entry, whatever values its inputs have.
func SameFilled(server, entry json.RawMessage, inputs []clients.Input) bool {
	var values [2]any
	if json.Unmarshal(server, &values[0]) != nil || json.Unmarshal(entry, &values[1]) != nil {
		return false
	}
	is, _ := json.Marshal(values[0])   // of what was JSON
	want, _ := json.Marshal(values[1]) // of what was JSON
	pattern := regexp.QuoteMeta(string(want))
	for _, in := range inputs {
		pattern = strings.ReplaceAll(pattern, regexp.QuoteMeta(string(Quoted(in.Reference))), `(?:[^"\\]|\\.)*`) // any text inside a string of JSON
	}
	same, err := regexp.MatchString("^"+pattern+"$", string(is))
	return err == nil && same
}

// Quoted returns a text as it stands inside a string of JSON.
func Quoted(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // a text that is not UTF-8
		return []byte(text)
	}
	return out[1 : len(out)-1]
}
