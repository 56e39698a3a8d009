package tree

import (
	"cmp"
	"fmt"
	"slices"
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

// Faults is the error of a Report: everything that is wrong, in the order of the
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

// Report collects what is wrong with files, and what needs a look.
type Report struct {
	Files    []*File // in the order of reading
	Faults   []Fault
	Warnings []Fault
}

// Fault reports a value; nothing when there is none.
func (r *Report) Fault(n *Node, message, hint string) {
	if n != nil {
		r.Faults = append(r.Faults, *FaultAt(n, message, hint))
	}
}

// Warn reports a value that was accepted and needs a look.
func (r *Report) Warn(n *Node, message, hint string) {
	r.Warnings = append(r.Warnings, *FaultAt(n, message, hint))
}

// FaultAt makes a fault of a value.
func FaultAt(n *Node, message, hint string) *Fault {
	line, column := n.File.Position(n.Offset)
	return &Fault{File: n.File.Name, Line: line, Column: column, Path: n.Path, Message: message, Hint: hint}
}

// Err sorts what was reported: by file in the order of reading, then by position. It
// returns the faults as *Faults, nil when there are none.
func (r *Report) Err() error {
	rank := func(f Fault) int {
		if i := slices.IndexFunc(r.Files, func(o *File) bool { return o.Name == f.File }); i >= 0 {
			return i
		}
		return len(r.Files) // a flag is no file
	}
	for _, list := range [][]Fault{r.Faults, r.Warnings} {
		slices.SortStableFunc(list, func(a, b Fault) int { return cmp.Or(rank(a)-rank(b), a.Line-b.Line, a.Column-b.Column) })
	}
	if len(r.Faults) > 0 {
		return &Faults{List: r.Faults}
	}
	return nil
}

// Merge adds the members of an object to another, key by key. A key
// that both have is a fault, even with equal values.
func (r *Report) Merge(to, from *Node) {
	for _, m := range from.Members {
		i := slices.IndexFunc(to.Members, func(o *Node) bool { return strings.EqualFold(o.Key, m.Key) })
		if i < 0 {
			to.Members = append(to.Members, m)
			continue
		}
		first := to.Members[i]
		if first.Key == m.Key && first.Kind == Object && m.Kind == Object {
			r.Merge(first, m)
			continue
		}
		line, _ := first.File.Position(first.KeyAt)
		r.Fault(m.Named(), fmt.Sprintf("is set in %s:%d too", first.File.Name, line), "keep one of them")
	}
}
