package rego

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/open-policy-agent/opa/v1/ast"
)

// Level says how much a finding weighs.
type Level string

// The levels. A policy with an error does not serve.
const (
	LevelError   Level = "error"
	LevelWarning Level = "warning" // it serves, and may do something else than its author thinks
	LevelNote    Level = "note"    // it serves, and could be written better
)

// Finding is one thing that is wrong with a policy, or could be better.
type Finding struct {
	Level   Level  `json:"level"`
	Code    string `json:"code"`           // what kind it is, such as rego_type_error or untyped-comparison
	File    string `json:"file,omitempty"` // below the policy's root; "" = the policy as a whole
	Row     int    `json:"row,omitempty"`  // from 1; 0 = the whole file
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // the mend, where one is known
}

// Where is the place, file:row, as far as there is one.
func (f Finding) Where() string {
	if f.Row == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d", f.File, f.Row)
}

// String is the finding as people are told it: its place, what it is, and on a
// second line the mend.
func (f Finding) String() string {
	text := f.Message
	if at := f.Where(); at != "" {
		text = at + ": " + text
	}
	if f.Hint != "" {
		text += "\nhint: " + f.Hint
	}
	return text
}

// line is the finding on one line.
func (f Finding) line() string {
	if f.Hint == "" {
		return f.String()
	}
	return strings.Replace(f.String(), "\nhint: ", " (hint: ", 1) + ")"
}

// at is a finding at a place of Rego.
func at(l *ast.Location, level Level, code, message, hint string) Finding {
	f := Finding{Level: level, Code: code, Message: message, Hint: hint}
	if l != nil {
		f.File, f.Row = strings.TrimPrefix(l.File, "/"), l.Row
	}
	return f
}

// sortFindings puts findings in the order of their places.
func sortFindings(list []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Row, b.Row), cmp.Compare(a.Message, b.Message))
	})
}

// Faults is why a policy was not loaded: every error that was found, each with
// its place. Load returns it wrapped.
type Faults []Finding

// Error is every fault, each as its String.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].String()
	}
	return strings.Join(lines, "\n")
}

// errorOf returns f as the error of doing something, nil when f is empty.
func (f Faults) errorOf(doing string) error {
	if len(f) == 0 {
		return nil
	}
	sortFindings(f)
	return fmt.Errorf("%s:\n%w", doing, f)
}

// faults gives OPA's errors as ours; any other error as it is.
func faults(err error) error {
	var list ast.Errors
	var one *ast.Error
	switch {
	case errors.As(err, &list) && len(list) > 0:
	case errors.As(err, &one):
		list = ast.Errors{one}
	default:
		return err
	}
	out := make(Faults, len(list))
	for i, e := range list {
		message, hint := explainError(e)
		out[i] = at(e.Location, LevelError, e.Code, message, hint)
	}
	sortFindings(out)
	return out
}

// explainError gives the message of e, and how to mend it where OPA knows what
// it would have taken.
func explainError(e *ast.Error) (message, hint string) {
	switch d := e.Details.(type) {
	case *ast.RefErrInvalidDetail:
		if len(d.OneOf) == 0 {
			break
		}
		var names []string
		for _, v := range d.OneOf {
			if s, ok := v.(ast.String); ok {
				names = append(names, string(s))
			}
		}
		hint = "there is " + strings.Join(names, ", ")
		if have, ok := d.Ref[d.Pos].Value.(ast.String); ok {
			if near := nearest(string(have), names); near != "" {
				hint = fmt.Sprintf("did you mean %s? %s", near, hint)
			}
		}
		return e.Message, hint
	case nil:
		return e.Message, refusalHint(e.Message)
	}
	return strings.Join(append([]string{e.Message}, e.Details.Lines()...), "\n\t"), ""
}

// nearest is the name that have was probably meant to be, or "".
func nearest(have string, names []string) string {
	best, least := "", 3
	for _, name := range names {
		if d := levenshtein.ComputeDistance(have, name); d < least && d < len(name) {
			best, least = name, d
		}
	}
	return best
}
