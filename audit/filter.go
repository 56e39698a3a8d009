package audit

import (
	"fmt"
	"path"
	"slices"
)

// A Filter selects records. An empty list selects all.
type Filter struct {
	Kinds      []string
	Outcomes   []string
	Principals []string // subjects
	Roles      []string
	Tools      []string // exposed names, methods and names of events; * stands for anything, as in path.Match
	Tickets    []string
	ID         string // of a decision, call, trace or request; "" = any
}

// Check returns an error that wraps path.ErrBadPattern if one of the tools is no pattern.
func (f *Filter) Check() error {
	for _, pattern := range f.Tools {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("reading the pattern %q: %w", pattern, err)
		}
	}
	return nil
}

// Match reports whether f selects r.
func (f *Filter) Match(r *Record) bool {
	among := func(wanted []string, has ...string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(has, func(value string) bool { return slices.Contains(wanted, value) })
	}
	return among(f.Kinds, string(r.Kind)) && among(f.Outcomes, string(r.Outcome)) && among(f.Principals, r.Principal.Subject) &&
		among(f.Tickets, r.Ticket) && among(f.Roles, r.Principal.Roles...) && f.matchesTool(r) &&
		(f.ID == "" || slices.Contains([]string{r.DecisionID, r.CallID, r.ParentID, r.TraceID, r.RequestID}, f.ID))
}

func (f *Filter) matchesTool(r *Record) bool {
	event := ""
	if r.Event != nil {
		event = r.Event.Name
	}
	return len(f.Tools) == 0 || slices.ContainsFunc(f.Tools, func(pattern string) bool {
		return slices.ContainsFunc([]string{r.Exposed, r.Method, event}, func(name string) bool {
			found, _ := path.Match(pattern, name) // see Check
			return found && name != ""
		})
	})
}
