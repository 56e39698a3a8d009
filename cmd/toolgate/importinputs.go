package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/term"

	"github.com/toolgate/toolgate/internal/report"
	"github.com/toolgate/toolgate/registry/config"
)

// fillInputs gives values to the inputs of the servers that are new: those of --set, of the
// environment, of the file for secrets, or the answers of a person. A secret goes to the
// file for secrets, where there is one; any other value takes the place of its references.
// The plan notes what is missing, and the error names it where the plan is to be written.
func (e *env) fillInputs(p *clientPlan, inputs []config.Input, servers []*config.Entry, env *secretFile, f *clientFlags) error {
	given, err := givenValues(inputs, f.set)
	if err != nil {
		return err
	}
	var missing []string
	for _, in := range inputs {
		if !slices.ContainsFunc(servers, func(s *config.Entry) bool { return bytes.Contains(s.Server, quoted(in.Reference)) }) {
			continue // it is filled in, or its server is not imported
		}
		value, ok := given[in.Variable]
		switch set, _ := e.lookup(in.Variable); {
		case ok:
		case set != "" || env.mentions(in.Variable) || strings.Contains(in.Reference, ":-"):
			continue
		default:
			value = cmp.Or(e.askInput(in), in.Default)
		}
		if value == "" {
			missing = append(missing, describeInput(in))
			continue
		}
		if err := p.fill(in, value, servers, env); err != nil {
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	text := "no value for " + strings.Join(missing, ", ")
	if f.write || f.yes {
		return fmt.Errorf("%s\nhint: --set NAME=VALUE gives one, as do variables of these names", text)
	}
	p.Notes = append(p.Notes, text+": --set NAME=VALUE gives one, as do variables of these names")
	return nil
}

// setNames returns the variables of --set.
func setNames(set []string) (names []string) {
	for _, text := range set {
		name, _, _ := strings.Cut(text, "=")
		names = append(names, name)
	}
	return names
}

// givenValues returns the values of --set, by variable.
func givenValues(inputs []config.Input, set []string) (map[string]string, error) {
	given := map[string]string{}
	for _, text := range set {
		name, value, ok := strings.Cut(text, "=")
		i := slices.IndexFunc(inputs, func(in config.Input) bool { return in.Variable == name })
		switch {
		case !ok || value == "":
			return nil, fmt.Errorf("--set %s: want NAME=VALUE", name)
		case i < 0:
			var names []string
			for _, in := range inputs {
				names = append(names, in.Variable)
			}
			return nil, fmt.Errorf("--set %s: the file has no input of this name, only %q", name, names)
		}
		given[name] = value
	}
	return given, nil
}

// describeInput says to people what an input is.
func describeInput(in config.Input) string {
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
func (e *env) askInput(in config.Input) string {
	if e.Structured() || !e.terminal() {
		return ""
	}
	question := report.OneLine(describeInput(in))
	if in.Default != "" {
		question += " [" + report.OneLine(in.Default) + "]"
	}
	if !in.Secret {
		answer, _ := e.ask(question + ": ") // "" = no value
		return answer
	}
	fmt.Fprint(e.err, question+": ")
	answer, _ := term.ReadPassword(int(e.in.(*os.File).Fd())) // a terminal is a file; "" = no value
	fmt.Fprintln(e.err)
	return strings.TrimSpace(string(answer))
}

// fill puts the value of an input where it belongs.
func (p *clientPlan) fill(in config.Input, value string, servers []*config.Entry, env *secretFile) error {
	switch {
	case len(in.Choices) > 0 && !slices.Contains(in.Choices, value):
		return fmt.Errorf("%s has an invalid value: want one of %s", in.Variable, strings.Join(in.Choices, ", "))
	case in.Secret && env != nil:
		p.secrets = append(p.secrets, value)
		env.values[in.Variable] = value
		return nil
	case strings.Contains(value, "${"):
		return fmt.Errorf("the value of %s has \"${\" in it, which would be expanded\nhint: set the variable %s instead", in.Variable, in.Variable)
	case in.Secret:
		p.secrets = append(p.secrets, value)
	}
	for _, s := range servers {
		s.Server = bytes.ReplaceAll(s.Server, quoted(in.Reference), quoted(value))
	}
	return nil
}

// quoted returns a text as it stands inside a string of JSON.
func quoted(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // a text that is not UTF-8
		return []byte(text)
	}
	return out[1 : len(out)-1]
}
