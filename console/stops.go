package console

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

// Stops stop calls of agents and resume them. Implementations are safe for concurrent use and
// return the errors of package stop.
type Stops interface {
	// List returns the stops in force, the oldest first.
	List(ctx context.Context) ([]stop.State, error)
	// Add stops calls, and returns which processes enforce it.
	Add(ctx context.Context, s stop.Stop) (stop.State, error)
	Resume(ctx context.Context, id string) error
}

// A StopState is a stop as people see it.
type StopState struct {
	stop.State
	Unknown bool `json:"unknown,omitempty"` // toolgate knows nothing of that name: a slip, or something to come
}

// stops are the pages that stop calls and resume them.
type stops struct {
	*people.Site
	stops Stops
	knows func(kind stop.Kind, name string) bool // Options.Knows
}

func (st *stops) state(s stop.State) StopState {
	return StopState{s, st.knows != nil && !st.knows(s.Kind, s.Name)}
}

// states returns the stops in force.
func (st *stops) states(ctx context.Context) ([]StopState, error) {
	all, err := st.stops.List(ctx)
	states := make([]StopState, 0, len(all))
	for _, s := range all {
		states = append(states, st.state(s))
	}
	return states, err
}

var (
	mayNotStop = page.Problem{Status: http.StatusForbidden, Code: "NOT_STOPPER", Detail: "the policy does not let you stop calls or resume them",
		Hint: "see data.stops of the policy"}
	noStop = page.Problem{Status: http.StatusNotFound, Code: "NO_STOP", Detail: "no such stop is in force", Hint: "toolgate stop"}
)

// stop stops calls for p. It is recorded first.
func (st *stops) stop(r *http.Request, p policy.Principal, s stop.Stop, within string) (stop.State, error) {
	act := people.Act{Name: audit.EventStopped, Principal: p}
	if !st.May(r.Context(), p, policy.Stops) {
		return stop.State{}, st.RecordRefusal(r, act, mayNotStop)
	}
	s.By = p.Subject
	if within != "" {
		d, err := time.ParseDuration(within)
		if err != nil || d <= 0 {
			return stop.State{}, page.BadRequest("for is no duration above zero", "1h30m")
		}
		s.Until = st.Now().Add(d).UTC()
	}
	if err := s.Check(); err != nil {
		return stop.State{}, page.BadRequest(err.Error(), "")
	}
	what := page.Visible(s.About() + ": " + s.Reason)
	if !s.Until.IsZero() {
		what += ", until " + s.Until.Format(time.RFC3339)
	}
	act.Added = []string{what}
	if err := st.Record(r, act); err != nil {
		return stop.State{}, err
	}
	return st.stops.Add(r.Context(), s)
}

// resume ends the stop with an ID for p, and returns it. It is recorded first.
func (st *stops) resume(r *http.Request, p policy.Principal, id string) (stop.Stop, error) {
	act := people.Act{Name: audit.EventResumed, Principal: p}
	if id != "" {
		act.Removed = []string{page.Visible(id)}
	}
	if !st.May(r.Context(), p, policy.Stops) {
		return stop.Stop{}, st.RecordRefusal(r, act, mayNotStop)
	}
	all, err := st.stops.List(r.Context())
	if err != nil {
		return stop.Stop{}, err
	}
	for _, s := range all {
		if s.ID != id {
			continue
		}
		act.Removed = []string{page.Visible(s.ID + ", " + s.About())}
		if err := st.Record(r, act); err != nil {
			return stop.Stop{}, err
		}
		if err := st.stops.Resume(r.Context(), id); !errors.Is(err, stop.ErrNotFound) {
			return s.Stop, err
		}
	}
	return stop.Stop{}, noStop
}

// list answers with the stops in force.
func (st *stops) list(r *http.Request, _ policy.Principal) (any, error) {
	all, err := st.states(r.Context())
	return map[string]any{"stops": all}, err
}

// add stops what the body says, and answers with who enforces it.
func (st *stops) add(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	var body struct {
		Kind   stop.Kind `json:"kind"`
		Name   string    `json:"name"`
		Reason string    `json:"reason"`
		For    string    `json:"for"`
	}
	if err := page.ReadBody(w, r, &body, "an object with the texts kind, name, reason and for", `{"kind": "role", "name": "researcher", "reason": "…", "for": "1h"}`); err != nil {
		return err
	}
	state, err := st.stop(r, p, stop.Stop{Kind: body.Kind, Name: body.Name, Reason: body.Reason}, body.For)
	if err != nil {
		return err
	}
	return page.AnswerAs(w, http.StatusCreated, st.state(state))
}

// end resumes, and answers with the stop that has ended.
func (st *stops) end(r *http.Request, p policy.Principal) (any, error) {
	return st.resume(r, p, r.PathValue("id"))
}

// stopsPage shows stops.
type stopsPage struct {
	page.Shell
	All []StopState
	May bool // the visitor may stop and resume
}

// page shows the stops in force and, to those who may, how to stop and resume.
func (st *stops) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	frame, err := st.Shell(r.Context(), v, "Stop", page.StopPath, page.StopPath)
	if err != nil {
		return nil, err
	}
	all, err := st.states(r.Context())
	return stopView(stopsPage{frame, all, st.May(r.Context(), v.Principal, policy.Stops)}), err
}

// submitStop stops what the form says.
func (st *stops) submitStop(r *http.Request, v people.Visitor) (string, error) {
	field := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	s := stop.Stop{Kind: stop.Kind(field("kind")), Name: field("name"), Reason: field("reason")}
	_, err := st.stop(r, v.Principal, s, field("for"))
	return page.StopPath, err
}

// submitResume ends the stop that the field id names.
func (st *stops) submitResume(r *http.Request, v people.Visitor) (string, error) {
	_, err := st.resume(r, v.Principal, r.PostForm.Get("id"))
	return page.StopPath, err
}

// Routes are the routes of stops.
func (st *stops) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		page.StopPath:             {http.MethodGet: g.Visit(people.Shows(st.page)), http.MethodPost: g.Submit(people.Leads(st.submitStop))},
		page.StopPath + "/resume": {http.MethodPost: g.Submit(people.Leads(st.submitResume))},
		"/v1/stop":                {http.MethodGet: g.As(page.Answers(st.list)), http.MethodPost: g.As(st.add)},
		"/v1/stop/{id}":           {http.MethodDelete: g.As(page.Answers(st.end))},
	}
}
