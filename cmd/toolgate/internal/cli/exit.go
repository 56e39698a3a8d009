package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/text"
)

// The exit codes of every command.
const (
	exitOK           = 0
	exitUnexpected   = 1
	exitUsage        = 2 // usage or invalid configuration
	exitUnauthorised = 3
	exitUnreachable  = 4
	exitTool         = 5 // the tool answered with an error
	exitDenied       = 10
	exitApproval     = 11 // approval required
	exitDiffer       = 12 // tests or replay differ
	exitAudit        = 20 // the audit trail does not verify
	exitUnproven     = 21 // nothing in it is broken, and its content or what was required is not proved
)

// exitWords are the codes of errors that no listener of toolgate has given one.
var exitWords = map[int]string{
	exitUnexpected: "FAILED", exitUsage: "USAGE", exitUnauthorised: "UNAUTHORISED", exitUnreachable: "UNREACHABLE", exitTool: "TOOL_FAILED",
	exitDenied: "DENIED", exitApproval: "APPROVAL_PENDING", exitDiffer: "DIFFERENT", exitAudit: "AUDIT_BROKEN", exitUnproven: "AUDIT_UNPROVEN",
}

// An exit is an error with its exit code. A nil err prints nothing.
type exit struct {
	code int
	err  error

	reported bool            // the result that comes with it is printed
	word     string          // the code that a listener gave it; "" = that of exitWords
	rpc      json.RawMessage // the JSON-RPC error that it is; nil = none
	findings []finding       // of a configuration or policy that cannot serve
}

func (x *exit) Error() string {
	if x.err == nil {
		return ""
	}
	return x.err.Error()
}

func (x *exit) Unwrap() error { return x.err }

// usage returns err with the exit code of a mistake, unless it has a code.
func usage(err error) error {
	if coded := (*exit)(nil); errors.As(err, &coded) {
		return err
	}
	return &exit{code: exitUsage, err: err}
}

// exitIf ends a command whose result is printed with a code, if that result is bad news.
func exitIf(bad bool, code int) error {
	if bad {
		return &exit{code: code, reported: true}
	}
	return nil
}

// A failure is the document of a command that failed before it printed a result, where
// -o asks for documents.
type failure struct {
	OK       bool      `json:"ok"` // false, as in documents of commands that have a verdict
	Error    fault     `json:"error"`
	Findings []finding `json:"findings,omitempty"` // of a configuration or policy that cannot serve
}

// fault is what went wrong.
type fault struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Hint    string          `json:"hint,omitempty"`
	Exit    int             `json:"exit"`
	RPC     json.RawMessage `json:"rpc,omitempty"` // the JSON-RPC error, where a listener answered with one
}

// failureOf returns what is said about err. A message with several hints keeps them.
func failureOf(err error) failure {
	x, bad := &exit{code: exitUnexpected}, (*app.ConfigError)(nil)
	if !errors.As(err, &x) && errors.As(err, &bad) {
		x.code = exitUsage
	}
	f := fault{Code: cmp.Or(x.word, exitWords[x.code]), Message: err.Error(), Exit: x.code, RPC: x.rpc}
	if strings.Count(f.Message, hintMark) == 1 {
		f.Message, f.Hint, _ = strings.Cut(f.Message, hintMark)
	}
	return failure{Error: f, Findings: x.findings}
}

// hintMark is before the hint of an error.
const hintMark = "\nhint: "

// fail prints an error for people and, where -o asks for documents, for programs. It
// returns the exit code.
func (e *env) fail(err error) int {
	if err == nil {
		return exitOK
	}
	f := failureOf(err)
	if f.Error.Message != "" && e.Structured() && !e.Printed() {
		err = errors.Join(err, e.Document(f))
	}
	if err.Error() != "" {
		fmt.Fprintf(e.err, "toolgate: error: %s\n", report.Printable(err.Error()))
	}
	return f.Error.Exit
}

// didYouMean is a hint line with the known word that is nearest to what was typed, or
// else "".
func didYouMean(typed string, known []string) string {
	if near := text.Nearest(typed, known); near != "" && near != typed {
		return fmt.Sprintf("\nhint: did you mean %s?", near)
	}
	return ""
}

// textsOf returns a text for each element of a list, such as its name.
func textsOf[T any](list []T, text func(T) string) (texts []string) {
	for _, element := range list {
		texts = append(texts, text(element))
	}
	return texts
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
func flagFault(e *env, c *cobra.Command, err error) error {
	// Cobra stops at the first fault, before a -o that may follow.
	lenient := pflag.NewFlagSet("", pflag.ContinueOnError)
	lenient.ParseErrorsAllowlist.UnknownFlags = true
	c.Flags().VisitAll(func(f *pflag.Flag) {
		lenient.StringP(f.Name, f.Shorthand, "", "")
		lenient.Lookup(f.Name).NoOptDefVal = f.NoOptDefVal
	})
	_ = lenient.Parse(e.args) // the fault has been found
	e.Form = report.Form(lenient.Lookup("output").Value.String())
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

// noteUnknown warns of a name that is none of those known and looks like one of them.
func noteUnknown(e *env, what, name string, known []string) {
	if near := didYouMean(name, known); near != "" && !slices.Contains(known, name) {
		fmt.Fprintf(e.err, "toolgate: warning: no %s %q is known%s\n", what, report.Printable(name), report.Printable(near))
	}
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
	names := textsOf(tools, func(t listedTool) string { return t.Name })
	hint := didYouMean(name, names)
	// A name without its server's prefix is the usual slip.
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, "__"+name) }); hint == "" && i >= 0 {
		hint = fmt.Sprintf("\nhint: did you mean %s?", names[i])
	}
	if hint == "" {
		hint = "\nhint: toolgate tool list shows what the caller sees; toolgate policy explain --as ROLE " + name + " says why a role does not"
	}
	return refused.withHint(hint)
}

// withHint returns x with a hint in the place of what a listener says to agents.
func (x *exit) withHint(hint string) error {
	nearer := *x
	said, _, _ := strings.Cut(x.Error(), hintMark)
	nearer.err = errors.New(said + hint)
	return &nearer
}
