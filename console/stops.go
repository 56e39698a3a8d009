package console

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/a-h/templ"

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

func (c *Console) stopState(s stop.State) StopState {
	return StopState{s, c.opts.Knows != nil && !c.opts.Knows(s.Kind, s.Name)}
}

// stopStates returns the stops in force.
func (c *Console) stopStates(ctx context.Context) ([]StopState, error) {
	all, err := c.opts.Stops.List(ctx)
	states := make([]StopState, 0, len(all))
	for _, s := range all {
		states = append(states, c.stopState(s))
	}
	return states, err
}

const stopPath = "/console/stop"

var (
	mayNotStop = problem{Status: http.StatusForbidden, Code: "NOT_STOPPER", Detail: "the policy does not let you stop calls or resume them",
		Hint: "see data.stops of the policy"}
	noStop = problem{Status: http.StatusNotFound, Code: "NO_STOP", Detail: "no such stop is in force", Hint: "toolgate stop"}
)

// stop stops calls for p. It is recorded first.
func (c *Console) stop(r *http.Request, p policy.Principal, s stop.Stop, within string) (stop.State, error) {
	act := Act{Name: ActStop, Principal: p}
	if !c.may(r.Context(), p, policy.Stops) {
		return stop.State{}, c.recordRefusal(r, act, mayNotStop)
	}
	s.By = p.Subject
	if within != "" {
		d, err := time.ParseDuration(within)
		if err != nil || d <= 0 {
			return stop.State{}, badRequest("for is no duration above zero", "1h30m")
		}
		s.Until = c.opts.Now().Add(d).UTC()
	}
	if err := s.Check(); err != nil {
		return stop.State{}, badRequest(err.Error(), "")
	}
	act.Stop = Visible(s.About() + ": " + s.Reason)
	if !s.Until.IsZero() {
		act.Stop += ", until " + s.Until.Format(time.RFC3339)
	}
	if err := c.record(r, act); err != nil {
		return stop.State{}, err
	}
	return c.opts.Stops.Add(r.Context(), s)
}

// resume ends the stop with an ID for p, and returns it. It is recorded first.
func (c *Console) resume(r *http.Request, p policy.Principal, id string) (stop.Stop, error) {
	act := Act{Name: ActResume, Principal: p, Stop: Visible(id)}
	if !c.may(r.Context(), p, policy.Stops) {
		return stop.Stop{}, c.recordRefusal(r, act, mayNotStop)
	}
	all, err := c.opts.Stops.List(r.Context())
	if err != nil {
		return stop.Stop{}, err
	}
	for _, s := range all {
		if s.ID != id {
			continue
		}
		act.Stop = Visible(s.ID + ", " + s.About())
		if err := c.record(r, act); err != nil {
			return stop.Stop{}, err
		}
		if err := c.opts.Stops.Resume(r.Context(), id); !errors.Is(err, stop.ErrNotFound) {
			return s.Stop, err
		}
	}
	return stop.Stop{}, noStop
}

// listStops answers with the stops in force.
func (c *Console) listStops(r *http.Request, _ policy.Principal) (any, error) {
	all, err := c.stopStates(r.Context())
	return map[string]any{"stops": all}, err
}

// addStop stops what the body says, and answers with who enforces it.
func (c *Console) addStop(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	var body struct {
		Kind   stop.Kind `json:"kind"`
		Name   string    `json:"name"`
		Reason string    `json:"reason"`
		For    string    `json:"for"`
	}
	if err := read(w, r, &body, "an object with the texts kind, name, reason and for", `{"kind": "role", "name": "researcher", "reason": "…", "for": "1h"}`); err != nil {
		return err
	}
	state, err := c.stop(r, p, stop.Stop{Kind: body.Kind, Name: body.Name, Reason: body.Reason}, body.For)
	if err != nil {
		return err
	}
	return answerAs(w, http.StatusCreated, c.stopState(state))
}

// endStop resumes, and answers with the stop that has ended.
func (c *Console) endStop(r *http.Request, p policy.Principal) (any, error) {
	return c.resume(r, p, r.PathValue("id"))
}

// inForce returns the stops in force here, in visible form, for the banner of pages.
func (c *Console) inForce() (all []stop.Stop) {
	if c.opts.InForce == nil {
		return nil
	}
	for _, s := range c.opts.InForce() {
		s.Name, s.Reason, s.By = Visible(s.Name), Visible(oneLine(s.Reason)), Visible(s.By)
		all = append(all, s)
	}
	return all
}

// banner is inForce for pages without a session: where not everybody may watch toolgate, it has the
// kinds only.
func (c *Console) banner() []stop.Stop {
	all := c.inForce()
	if !c.opts.Watches(policy.Principal{}) {
		for i := range all {
			all[i].Name, all[i].Reason = "", ""
		}
	}
	return all
}

// stopsPage shows stops.
type stopsPage struct {
	shell
	All []StopState
	May bool // the visitor may stop and resume
}

// stopPage shows the stops in force and, to those who may, how to stop and resume.
func (c *Console) stopPage(r *http.Request, v visitor) (templ.Component, error) {
	frame, err := c.shell(r.Context(), v, "Stop", stopPath, stopPath)
	if err != nil {
		return nil, err
	}
	all, err := c.stopStates(r.Context())
	return stopView(stopsPage{frame, all, c.may(r.Context(), v.Principal, policy.Stops)}), err
}

// submitStop stops what the form says.
func (c *Console) submitStop(r *http.Request, v visitor) (string, error) {
	field := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	s := stop.Stop{Kind: stop.Kind(field("kind")), Name: field("name"), Reason: field("reason")}
	_, err := c.stop(r, v.Principal, s, field("for"))
	return stopPath, err
}

// submitResume ends the stop that the field id names.
func (c *Console) submitResume(r *http.Request, v visitor) (string, error) {
	_, err := c.resume(r, v.Principal, r.PostForm.Get("id"))
	return stopPath, err
}
