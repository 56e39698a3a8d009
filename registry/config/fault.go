package config

import (
	"fmt"
	"strings"
)

// Fault is one thing that is wrong, and where.
type Fault struct {
	File    string // as the caller named it; a flag for what came from one
	Line    int    // from 1; 0 = the file as a whole
	Column  int    // in bytes, from 1
	Path    string // of the key, such as toolgate.limits.rules[0].rate; "" = none
	Message string // lower case, never with the value of a variable or secret
	Hint    string // how to mend it; "" = no idea
}

// Place gives "file:line:column: path", as much of it as is known.
func (f Fault) Place() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
	}
	if f.Path != "" {
		at += ": " + f.Path
	}
	return at
}

// String gives the place and the message, and the hint on a second line.
func (f Fault) String() string {
	text := f.Place() + ": " + f.Message
	if f.Hint != "" {
		text += "\nhint: " + f.Hint
	}
	return text
}

// Faults is the error of Load: everything that is wrong, in the order of the
// files and, within one, of its lines. There is at least one.
type Faults struct {
	List []Fault
}

// Error gives one fault after the other, each as Fault.String does.
func (f *Faults) Error() string {
	lines := make([]string, len(f.List))
	for i, one := range f.List {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Warning describes a setting that was accepted and should be looked at.
type Warning = Fault
