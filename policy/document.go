package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// document is the form in which a policy sees an Input: a tool only where there
// is one, an action always.
type document struct {
	Action    string             `json:"action"`
	Principal Principal          `json:"principal"`
	Tool      *Tool              `json:"tool,omitempty"`
	Resource  *Resource          `json:"resource,omitempty"`
	Prompt    *Prompt            `json:"prompt,omitempty"`
	Server    *Server            `json:"server,omitempty"`
	Arguments json.RawMessage    `json:"arguments"`
	Request   Request            `json:"request"`
	Usage     map[string]Reading `json:"usage,omitempty"`
}

// Calls reports whether in is about the call of a tool.
func (in *Input) Calls() bool { return in.Action == "" || in.Action == ActionCall }

// MarshalJSON writes in as a policy sees it.
func (in Input) MarshalJSON() ([]byte, error) {
	d := document{
		Action: in.Action, Principal: in.Principal, Resource: in.Resource, Prompt: in.Prompt, Server: in.Server,
		Arguments: in.Arguments, Request: in.Request, Usage: in.Usage,
	}
	if in.Calls() {
		d.Action, d.Tool = ActionCall, &in.Tool
	}
	if d.Principal.Roles == nil {
		d.Principal.Roles = []string{}
	}
	if len(d.Arguments) == 0 {
		d.Arguments = json.RawMessage("{}")
	}
	d.Request.Time = d.Request.Time.UTC()
	return json.Marshal(d)
}

// UnmarshalJSON reads what MarshalJSON writes, as people may write it by hand:
// everything but the principal and what the request is about may be missing.
// A member that no policy sees is an error.
func (in *Input) UnmarshalJSON(raw []byte) error {
	var d document
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return fmt.Errorf("reading input: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("reading input: more than one JSON value")
	}
	*in = Input{
		Action: d.Action, Principal: d.Principal, Resource: d.Resource, Prompt: d.Prompt, Server: d.Server,
		Arguments: d.Arguments, Request: d.Request, Usage: d.Usage,
	}
	if d.Tool != nil {
		in.Tool = *d.Tool
	}
	if in.Calls() != (d.Tool != nil) {
		return errors.New("reading input: tool: wanted for tools/call, and for that only (hint: name one of tool, resource, prompt, server)")
	}
	return nil
}
