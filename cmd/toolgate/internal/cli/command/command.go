package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
)

// RequireCommand is the action of a command that needs a subcommand. It prints nothing on
// stdout, where a client that left out "stdio" expects protocol.
func RequireCommand(c *cobra.Command, args []string) error {
	var names []string
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			names = append(names, s.Name())
		}
	}
	all := HintMark + "one of " + strings.Join(names, ", ") + "; --help says more"
	if len(args) == 0 {
		return Usage(fmt.Errorf("%s needs a command%s", c.CommandPath(), all))
	}
	return Usage(fmt.Errorf("unknown command %q for %q%s", args[0], c.CommandPath(), cmp.Or(DidYouMean(args[0], names), all)))
}

// New returns a command that runs run. Its Use line says which arguments it takes.
func New(use, short string, run func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(c *cobra.Command, args []string) error { return run(c.Context(), args) }}
}

// Printing returns a command that prints the report that run returns. Nothing is printed for
// nil, and with an error, unless that is an exit that is reported.
func (e *Env) Printing(use, short string, run func(ctx context.Context, args []string) (*report.Report, error)) *cobra.Command {
	return New(use, short, func(ctx context.Context, args []string) error {
		result, err := run(ctx, args)
		if x := (*Exit)(nil); result == nil || err != nil && !(errors.As(err, &x) && x.Reported) {
			return err
		}
		return errors.Join(e.Print(result), err)
	})
}

// Group returns a command that only holds others. Cobra would answer a word that is none of
// them with help and success.
func Group(use, short string, members ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: RequireCommand}
	c.AddCommand(members...)
	return c
}

// WithForms gives c forms of output in addition to the usual: their names, with commas
// between, or NoReport.
func WithForms(c *cobra.Command, forms string) *cobra.Command {
	c.Annotations = map[string]string{Outputs: forms}
	return c
}

// An Argument is one of a Use line, such as
//
//	diff [SERVER TOOL]
//	test [POLICY [TESTS...]]
//	completion bash|zsh|fish|powershell
//
// The Use line decides how many arguments a command takes, which words it accepts, and
// how a shell completes them.
type Argument struct {
	Word string // TOOL, or alternatives: CLIENT|FILE, bash|zsh
	stop bool   // the arguments may end before this one
	Many bool   // it may be repeated
}

// ArgumentsOf returns the arguments of a Use line.
func ArgumentsOf(use string) (all []Argument) {
	_, line, _ := strings.Cut(use, " ")
	for _, word := range strings.Fields(strings.ReplaceAll(line, " | ", "|")) {
		a := Argument{stop: strings.HasPrefix(word, "[")}
		a.Word, a.Many = strings.CutSuffix(strings.Trim(word, "[]"), "...")
		all = append(all, a)
	}
	return all
}

// CheckArguments refuses arguments that the Use line of c does not have.
func CheckArguments(c *cobra.Command, args []string) error {
	want := ArgumentsOf(c.Use)
	if n := len(args); n < len(want) && !want[n].stop {
		return Usage(fmt.Errorf("missing argument %s\nhint: %s", want[n].Word, c.UseLine()))
	}
	for i, arg := range args {
		at := min(i, len(want)-1)
		if at < 0 || at < i && !want[at].Many {
			return Usage(fmt.Errorf("unexpected argument %q\nhint: %s", arg, c.UseLine()))
		}
		if err := checkChoice("argument", arg, want[at].Word); err != nil {
			return err
		}
	}
	return nil
}

// CheckFlags refuses values that the words of the flags of c do not allow.
func CheckFlags(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if err == nil {
				err = checkChoice("--"+f.Name, value, ValueWord(f))
			}
		}
	})
	return err
}

// ValueWord returns what the value of a flag is: the word between backquotes of its usage.
func ValueWord(f *pflag.Flag) string {
	word, _ := pflag.UnquoteUsage(f)
	return word
}

// Vocabularies are the words that stand for one of many values.
var Vocabularies = map[string][]string{
	"KIND":    {"open", "decision", "outcome", "ticket", "event", "close"},
	"OUTCOME": {"allowed", "denied", "held", "limited", "invalid", "unknown", "failed", "cancelled"},
	"STATE":   {"proposed", "approved", "needs_connection", "denied", "expired", "superseded", "dispatching", "done", "failed", "unknown"},
	"LEVEL":   {"trace", "debug", "info", "warn", "error"},
}

// Choices returns the values that a word allows, nil if it allows any. Those of a word in
// lower case have | between them.
func Choices(word string) []string {
	if word == "-" || strings.Contains(word, "|") && strings.ToLower(word) == word {
		return strings.Split(word, "|")
	}
	return Vocabularies[word]
}

// checkChoice refuses a value that is none of the choices of a word.
func checkChoice(what, value, word string) error {
	if known := Choices(word); known != nil && !slices.Contains(known, value) {
		return Unknown(what, value, known)
	}
	return nil
}

// A Moment is the value of a flag: a time, or how long ago it is.
type Moment time.Time

// Set implements pflag.Value.
func (m *Moment) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		*m = Moment(time.Now().Add(-d))
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return err
	}
	*m = Moment(at)
	return nil
}

// String implements pflag.Value. The usage of a flag says what its default is.
func (m *Moment) String() string { return "" }

// Type implements pflag.Value.
func (m *Moment) Type() string { return "time" }
