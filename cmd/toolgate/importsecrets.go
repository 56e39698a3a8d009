package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/clientfile"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

// minSecretBytes is how long a value must be to be hidden where it is printed.
const minSecretBytes = 6

// secretValues returns the secrets that entries hold as they are, not as variables.
func secretValues(entries []config.Entry) (values []string) {
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
	replaceArgs(s, replace)
	if !changed {
		return entry
	}
	text, err := json.Marshal(s)
	if err != nil {
		return entry
	}
	return text
}

// replaceArgs replaces the secrets among the arguments of a command.
func replaceArgs(s map[string]any, replace func(name, value string) string) {
	list, _ := s["args"].([]any)
	args := make([]string, len(list))
	for i, arg := range list {
		args[i], _ = arg.(string)
	}
	for i := range args {
		name, secret, ok := lock.SecretArg(args, i)
		if !ok || secret == "" {
			continue
		}
		list[i] = strings.TrimSuffix(args[i], secret) + replace(strings.TrimLeft(name, "-"), secret)
	}
}

// secretFile is a file of variables to which secrets move.
type secretFile struct {
	file   *clientfile.Change
	values map[string]string // that were moved
	form   string            // of what stands in the place of a secret, with %s for the variable
}

// openSecrets reads a file of variables, nil for none.
func openSecrets(path string) (*secretFile, error) {
	if path == "" {
		return nil, nil
	}
	c, err := clientfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("reading the file for secrets: %w", err)
	}
	c.Mode = 0o600
	return newSecrets(c, "${%s}"), nil
}

func newSecrets(file *clientfile.Change, form string) *secretFile {
	return &secretFile{file: file, values: map[string]string{}, form: form}
}

// move returns the entry of a server with references in the place of secrets.
func (f *secretFile) move(server string, entry json.RawMessage) json.RawMessage {
	return replaceSecrets(entry, func(name, value string) string { return f.put(server, name, value) })
}

// put keeps a secret of a server, and returns a reference to it.
func (f *secretFile) put(server, name, value string) string {
	variable := variableName(name)
	for i := 1; !f.free(variable, value); i++ {
		variable = variableName(server + "_" + name)
		if i > 1 {
			variable += fmt.Sprintf("_%d", i)
		}
	}
	f.values[variable] = value
	return fmt.Sprintf(f.form, variable)
}

// free reports whether a variable has this value, or none yet.
func (f *secretFile) free(variable, value string) bool {
	if moved, ok := f.values[variable]; ok {
		return moved == value
	}
	return f.has(variable, value) || !f.mentions(variable)
}

// mentions reports whether the file as it was gives a variable a value.
func (f *secretFile) mentions(variable string) bool {
	return f != nil && strings.Contains("\n"+string(f.file.Before), "\n"+variable+"=")
}

// has reports whether the file as it was gives a variable this value.
func (f *secretFile) has(variable, value string) bool {
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
func (f *secretFile) change() *clientfile.Change {
	text := string(f.file.Before)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	added := false
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		if !f.has(name, f.values[name]) {
			text += name + "=" + quoteVariable(f.values[name]) + "\n"
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
