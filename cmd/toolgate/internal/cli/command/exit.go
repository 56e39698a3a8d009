package command

import (
	"cmp"
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
	ExitOK           = 0
	ExitUnexpected   = 1
	ExitUsage        = 2 // usage or invalid configuration
	ExitUnauthorised = 3
	ExitUnreachable  = 4
	ExitTool         = 5 // the tool answered with an error
	ExitDenied       = 10
	ExitApproval     = 11 // approval required
	ExitDiffer       = 12 // tests or replay differ
	ExitAudit        = 20 // the audit trail does not verify
	ExitUnproven     = 21 // nothing in it is broken, and its content or what was required is not proved
)

// exitWords are the codes of errors that no listener of toolgate has given one.
var exitWords = map[int]string{
	ExitUnexpected: "FAILED", ExitUsage: "USAGE", ExitUnauthorised: "UNAUTHORISED", ExitUnreachable: "UNREACHABLE", ExitTool: "TOOL_FAILED",
	ExitDenied: "DENIED", ExitApproval: "APPROVAL_PENDING", ExitDiffer: "DIFFERENT", ExitAudit: "AUDIT_BROKEN", ExitUnproven: "AUDIT_UNPROVEN",
}

// An Exit is an error with its exit code. A nil Err prints nothing.
type Exit struct {
	Code int
	Err  error

	Reported bool            // the result that comes with it is printed
	Word     string          // the code that a listener gave it; "" = that of Code
	rpc      json.RawMessage // the JSON-RPC error that it is; nil = none
	Findings []Finding       // of a configuration or policy that cannot serve
}

// Error returns the text of the cause, "" for none.
func (x *Exit) Error() string {
	if x.Err == nil {
		return ""
	}
	return x.Err.Error()
}

// Unwrap returns the cause.
func (x *Exit) Unwrap() error { return x.Err }

// Usage returns err with the exit code of a mistake, unless it has a code.
func Usage(err error) error {
	if coded := (*Exit)(nil); errors.As(err, &coded) {
		return err
	}
	return &Exit{Code: ExitUsage, Err: err}
}

// ExitIf ends a command whose result is printed with a code, if that result is bad news.
func ExitIf(bad bool, code int) error {
	if bad {
		return &Exit{Code: code, Reported: true}
	}
	return nil
}

// A Failure is the document of a command that failed before it printed a result, where
// -o asks for documents.
type Failure struct {
	OK       bool      `json:"ok"` // false, as in documents of commands that have a verdict
	Error    fault     `json:"error"`
	Findings []Finding `json:"findings,omitempty"` // of a configuration or policy that cannot serve
}

// fault is what went wrong.
type fault struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Hint    string          `json:"hint,omitempty"`
	Exit    int             `json:"exit"`
	RPC     json.RawMessage `json:"rpc,omitempty"` // the JSON-RPC error, where a listener answered with one
}

// FailureOf returns what is said about err. A message with several hints keeps them.
func FailureOf(err error) Failure {
	x, bad := &Exit{Code: ExitUnexpected}, (*app.ConfigError)(nil)
	if !errors.As(err, &x) && errors.As(err, &bad) {
		x.Code = ExitUsage
	}
	f := fault{Code: cmp.Or(x.Word, exitWords[x.Code]), Message: err.Error(), Exit: x.Code, RPC: x.rpc}
	if strings.Count(f.Message, HintMark) == 1 {
		f.Message, f.Hint, _ = strings.Cut(f.Message, HintMark)
	}
	return Failure{Error: f, Findings: x.Findings}
}

// HintMark is before the hint of an error.
const HintMark = "\nhint: "

// Fail prints an error for people and, where -o asks for documents, for programs. It
// returns the exit code.
func (e *Env) Fail(err error) int {
	if err == nil {
		return ExitOK
	}
	f := FailureOf(err)
	if f.Error.Message != "" && e.Structured() && !e.Printed() {
		err = errors.Join(err, e.Document(f))
	}
	if err.Error() != "" {
		fmt.Fprintf(e.Stderr, "toolgate: error: %s\n", report.Printable(err.Error()))
	}
	return f.Error.Exit
}

// DidYouMean is a hint line with the known word that is nearest to what was typed, or
// else "".
func DidYouMean(typed string, known []string) string {
	if near := text.Nearest(typed, known); near != "" && near != typed {
		return fmt.Sprintf("\nhint: did you mean %s?", near)
	}
	return ""
}

// TextsOf returns a text for each element of a list, such as its name.
func TextsOf[T any](list []T, text func(T) string) (texts []string) {
	for _, element := range list {
		texts = append(texts, text(element))
	}
	return texts
}

// Unknown is the error of a value that is none of those known; its hint is the nearest, or
// all of them.
func Unknown(what, value string, known []string) error {
	hint := DidYouMean(value, known)
	if hint == "" && len(known) > 0 {
		hint = HintMark + "one of " + strings.Join(known, ", ")
	}
	return Usage(fmt.Errorf("%s %q is unknown%s", what, value, hint))
}

// FlagFault returns an error of the flags of c with the flag that was probably meant, or with
// what the value of a flag is. An unknown command, whose flags are unknown too, is reported
// instead of them.
func FlagFault(e *Env, c *cobra.Command, err error) error {
	// Cobra stops at the first fault, before a -o that may follow.
	lenient := pflag.NewFlagSet("", pflag.ContinueOnError)
	lenient.ParseErrorsAllowlist.UnknownFlags = true
	c.Flags().VisitAll(func(f *pflag.Flag) {
		lenient.StringP(f.Name, f.Shorthand, "", "")
		lenient.Lookup(f.Name).NoOptDefVal = f.NoOptDefVal
	})
	_ = lenient.Parse(e.Args) // the fault has been found
	e.Form = report.Form(lenient.Lookup("output").Value.String())
	if c.HasSubCommands() && c.Flags().NArg() > 0 {
		return RequireCommand(c, c.Flags().Args())
	}
	missing, wrong, absent := (*pflag.NotExistError)(nil), (*pflag.InvalidValueError)(nil), (*pflag.ValueRequiredError)(nil)
	switch {
	case errors.As(err, &missing) && len(missing.GetSpecifiedName()) > 1:
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		err = fmt.Errorf("%w%s", err, DidYouMean("--"+missing.GetSpecifiedName(), names))
	case errors.As(err, &wrong):
		f := wrong.GetFlag()
		err = fmt.Errorf("--%s %q is no %s%s", f.Name, wrong.GetValue(), ValueWord(f), valueHint(f))
	case errors.As(err, &absent):
		err = fmt.Errorf("%w%s", err, valueHint(absent.GetFlag()))
	}
	return Usage(err)
}

// NoteUnknown warns of a name that is none of those known and looks like one of them.
func NoteUnknown(e *Env, what, name string, known []string) {
	if near := DidYouMean(name, known); near != "" && !slices.Contains(known, name) {
		fmt.Fprintf(e.Stderr, "toolgate: warning: no %s %q is known%s\n", what, report.Printable(name), report.Printable(near))
	}
}

// valueHint is a hint line that says what the value of a flag is.
func valueHint(f *pflag.Flag) string {
	word, text := pflag.UnquoteUsage(f)
	return HintMark + "--" + f.Name + " " + word + ": " + strings.TrimPrefix(text, word+" ")
}

// WithHint returns x with a hint in the place of what a listener says to agents.
func (x *Exit) WithHint(hint string) error {
	nearer := *x
	said, _, _ := strings.Cut(x.Error(), HintMark)
	nearer.Err = errors.New(said + hint)
	return &nearer
}
