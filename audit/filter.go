package audit

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// A Filter selects records. An empty list selects all.
type Filter struct {
	Kinds      []string
	Outcomes   []string
	Principals []string // subjects
	Persons    []string
	Roles      []string
	Tools      []string // exposed names, methods and names of events; * stands for anything, as in path.Match
	Servers    []string
	Rules      []string
	Codes      []string
	Tickets    []string
	Argument   string // POINTER=VALUE: a JSON pointer (RFC 6901) into the recorded arguments, and a string's text or another scalar as JSON; "" = any
	ID         string // of a decision, call, trace or request; "" = any
}

// Check returns an error if Argument has another form, and one that wraps path.ErrBadPattern if one
// of the tools is no pattern.
func (f *Filter) Check() error {
	for _, pattern := range f.Tools {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("reading the pattern %q: %w", pattern, err)
		}
	}
	if pointer, _, ok := strings.Cut(f.Argument, "="); f.Argument != "" && (!ok || pointer != "" && pointer[0] != '/') {
		return fmt.Errorf("reading the argument %q: it is not a JSON pointer, =, and a value", f.Argument)
	}
	return nil
}

// Match reports whether f selects r.
func (f *Filter) Match(r *Record) bool {
	among := func(wanted []string, has ...string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(has, func(value string) bool { return slices.Contains(wanted, value) })
	}
	return among(f.Kinds, string(r.Kind)) && among(f.Outcomes, string(r.Outcome)) && among(f.Principals, r.Principal.Subject) &&
		among(f.Persons, r.Principal.Person) && among(f.Servers, r.Server) && among(f.Rules, r.Policy.Rule) && among(f.Codes, r.Code) &&
		among(f.Tickets, r.Ticket) && among(f.Roles, r.Principal.Roles...) && f.matchesTool(r) && f.matchesArgument(r) &&
		(f.ID == "" || slices.Contains([]string{r.DecisionID, r.CallID, r.ParentID, r.TraceID, r.RequestID}, f.ID))
}

func (f *Filter) matchesArgument(r *Record) bool {
	if f.Argument == "" {
		return true
	}
	pointer, wanted, _ := strings.Cut(f.Argument, "=")
	value := r.Arguments
	for _, name := range strings.Split(pointer, "/")[1:] {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		inner, found := jsonrpc.Get(value, name)
		if i, err := strconv.Atoi(name); !found && err == nil {
			for element := range jsonrpc.Elements(value) {
				if i--; i == -1 {
					inner = element
				}
			}
		}
		value = inner
	}
	text, isText := jsonrpc.Text(value)
	return isText && text == wanted || !isText && len(value) > 0 && string(value) == wanted
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
