package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// command returns a command that runs run. Its Use line says which arguments it takes.
func command(use, short string, run func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(c *cobra.Command, args []string) error { return run(c.Context(), args) }}
}

// group returns a command that only holds others. Cobra would answer a word that is none of
// them with help and success.
func group(use, short string, members ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: requireCommand}
	c.AddCommand(members...)
	return c
}

// withForms gives c forms of output in addition to the usual: their names, with commas
// between, or noReport.
func withForms(c *cobra.Command, forms string) *cobra.Command {
	c.Annotations = map[string]string{outputs: forms}
	return c
}

// An argument is one of a Use line, such as
//
//	diff [SERVER TOOL]
//	test [POLICY [TESTS...]]
//	completion bash|zsh|fish|powershell
//
// The Use line decides how many arguments a command takes, which words it accepts, and
// how a shell completes them.
type argument struct {
	word string // TOOL, or alternatives: CLIENT|FILE, bash|zsh
	stop bool   // the arguments may end before this one
	many bool   // it may be repeated
}

// argumentsOf returns the arguments of a Use line.
func argumentsOf(use string) (all []argument) {
	_, line, _ := strings.Cut(use, " ")
	for _, word := range strings.Fields(strings.ReplaceAll(line, " | ", "|")) {
		a := argument{stop: strings.HasPrefix(word, "[")}
		a.word, a.many = strings.CutSuffix(strings.Trim(word, "[]"), "...")
		all = append(all, a)
	}
	return all
}

// checkArguments refuses arguments that the Use line of c does not have.
func checkArguments(c *cobra.Command, args []string) error {
	want := argumentsOf(c.Use)
	if n := len(args); n < len(want) && !want[n].stop {
		return usage(fmt.Errorf("missing argument %s\nhint: %s", want[n].word, c.UseLine()))
	}
	for i, arg := range args {
		at := min(i, len(want)-1)
		if at < 0 || at < i && !want[at].many {
			return usage(fmt.Errorf("unexpected argument %q\nhint: %s", arg, c.UseLine()))
		}
		if err := checkChoice("argument", arg, want[at].word); err != nil {
			return err
		}
	}
	return nil
}

// checkFlags refuses values that the words of the flags of c do not allow.
func checkFlags(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if err == nil {
				err = checkChoice("--"+f.Name, value, valueWord(f))
			}
		}
	})
	return err
}

// valueWord returns what the value of a flag is: the word between backquotes of its usage.
func valueWord(f *pflag.Flag) string {
	word, _ := pflag.UnquoteUsage(f)
	return word
}

// vocabularies are the words that stand for one of many values.
var vocabularies = map[string][]string{
	"KIND":    {"open", "decision", "outcome", "ticket", "event", "close"},
	"OUTCOME": {"allowed", "denied", "held", "limited", "invalid", "unknown", "failed", "cancelled"},
	"STATE":   {"proposed", "approved", "denied", "expired", "superseded", "dispatching", "done", "failed", "unknown"},
	"LEVEL":   {"trace", "debug", "info", "warn", "error"},
}

// choices returns the values that a word allows, nil if it allows any. Those of a word in
// lower case have | between them.
func choices(word string) []string {
	if word == "-" || strings.Contains(word, "|") && strings.ToLower(word) == word {
		return strings.Split(word, "|")
	}
	return vocabularies[word]
}

// checkChoice refuses a value that is none of the choices of a word.
func checkChoice(what, value, word string) error {
	if known := choices(word); known != nil && !slices.Contains(known, value) {
		return unknown(what, value, known)
	}
	return nil
}

// A moment is the value of a flag: a time, or how long ago it is.
type moment time.Time

// Set implements pflag.Value.
func (m *moment) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		*m = moment(time.Now().Add(-d))
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return err
	}
	*m = moment(at)
	return nil
}

// String implements pflag.Value. The usage of a flag says what its default is.
func (m *moment) String() string { return "" }

// Type implements pflag.Value.
func (m *moment) Type() string { return "time" }
