package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/report"
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
)

// exitWords are the codes of errors that no listener of toolgate has given one.
var exitWords = map[int]string{
	exitUnexpected: "FAILED", exitUsage: "USAGE", exitUnauthorised: "UNAUTHORISED", exitUnreachable: "UNREACHABLE", exitTool: "TOOL_FAILED",
	exitDenied: "DENIED", exitApproval: "APPROVAL_PENDING", exitDiffer: "DIFFERENT", exitAudit: "AUDIT_BROKEN",
}

// An exit is an error with its exit code. A nil err prints nothing.
type exit struct {
	code int
	err  error

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
		return &exit{code: code}
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
