package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/registry/config"
)

// didYouMean is a hint line with the known word that is nearest to what was typed, or
// else "".
func didYouMean(typed string, known []string) string {
	if near := config.Nearest(typed, known); near != "" && near != typed {
		return fmt.Sprintf("\nhint: did you mean %s?", near)
	}
	return ""
}

// unknown is the error of a value that is none of those known; its hint is the nearest, or
// all of them.
func unknown(what, value string, known []string) error {
	hint := didYouMean(value, known)
	if hint == "" && len(known) > 0 {
		hint = hintMark + "one of " + strings.Join(known, ", ")
	}
	return usage(fmt.Errorf("%s %q is unknown%s", what, value, hint))
}

// flagFault returns an error of the flags of c with the flag that was probably meant, or with
// what the value of a flag is. An unknown command, whose flags are unknown too, is reported
// instead of them.
func (e *env) flagFault(c *cobra.Command, err error) error {
	e.Form = formAsked(c, e.args)
	if c.HasSubCommands() && c.Flags().NArg() > 0 {
		return requireCommand(c, c.Flags().Args())
	}
	missing, wrong, absent := (*pflag.NotExistError)(nil), (*pflag.InvalidValueError)(nil), (*pflag.ValueRequiredError)(nil)
	switch {
	case errors.As(err, &missing) && len(missing.GetSpecifiedName()) > 1:
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		err = fmt.Errorf("%w%s", err, didYouMean("--"+missing.GetSpecifiedName(), names))
	case errors.As(err, &wrong):
		f := wrong.GetFlag()
		err = fmt.Errorf("--%s %q is no %s%s", f.Name, wrong.GetValue(), valueWord(f), valueHint(f))
	case errors.As(err, &absent):
		err = fmt.Errorf("%w%s", err, valueHint(absent.GetFlag()))
	}
	return usage(err)
}

// formAsked returns the value of -o in a command line of c that has faulty flags: cobra stops
// at the first one.
func formAsked(c *cobra.Command, args []string) string {
	lenient := pflag.NewFlagSet("", pflag.ContinueOnError)
	lenient.ParseErrorsAllowlist.UnknownFlags = true
	c.Flags().VisitAll(func(f *pflag.Flag) {
		lenient.StringP(f.Name, f.Shorthand, "", "")
		lenient.Lookup(f.Name).NoOptDefVal = f.NoOptDefVal
	})
	_ = lenient.Parse(args) // the fault has been found
	return lenient.Lookup("output").Value.String()
}

// valueHint is a hint line that says what the value of a flag is.
func valueHint(f *pflag.Flag) string {
	word, text := pflag.UnquoteUsage(f)
	return hintMark + "--" + f.Name + " " + word + ": " + strings.TrimPrefix(text, word+" ")
}

// withNearestTool replaces the hint of a refused tool name with the name that was probably
// meant, or with how to find out why the caller does not see the tool.
func (a *agent) withNearestTool(ctx context.Context, refused *exit, name string) error {
	tools, err := a.list(ctx)
	if err != nil {
		return refused
	}
	var names []string
	for _, t := range tools {
		names = append(names, t.Name)
	}
	hint := didYouMean(name, names)
	// A name without its server's prefix is the usual slip.
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, "__"+name) }); hint == "" && i >= 0 {
		hint = fmt.Sprintf("\nhint: did you mean %s?", names[i])
	}
	if hint == "" {
		hint = "\nhint: toolgate tool list shows what the caller sees; toolgate policy explain --as ROLE " + name + " says why a role does not"
	}
	nearer := *refused
	said, _, _ := strings.Cut(refused.Error(), hintMark) // in place of the hint for agents
	nearer.err = errors.New(said + hint)
	return &nearer
}
