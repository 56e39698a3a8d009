package judgement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
)

// rest is the form of Record.Input: the part of a policy's input that the other
// members of the record do not hold. It repeats a member of the record only where
// the two differ.
type rest struct {
	Action    string                    `json:"action,omitempty"` // "" = tools/call
	Principal *policy.Principal         `json:"principal,omitempty"`
	Tool      *tool                     `json:"tool,omitempty"`
	Resource  *policy.Resource          `json:"resource,omitempty"`
	Prompt    *policy.Prompt            `json:"prompt,omitempty"`
	Server    *policy.Server            `json:"server,omitempty"`
	Arguments json.RawMessage           `json:"arguments,omitempty"`
	Request   struct{ Time time.Time }  `json:"request"`
	Usage     map[string]policy.Reading `json:"usage,omitempty"`
}

// tool is a tool in a rest; nil = as in the record.
type tool struct {
	Server      *string         `json:"server,omitempty"`
	Name        *string         `json:"name,omitempty"`
	Exposed     *string         `json:"exposed,omitempty"`
	Fingerprint *string         `json:"fingerprint,omitempty"`
	Risk        string          `json:"risk"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
}

// EncodeInput returns the Record.Input for in, the input that the policy judged. The
// other members of r must be set already. The result is one line of JSON;
// EncodeInput changes neither argument.
func EncodeInput(in *policy.Input, r *audit.Record) json.RawMessage {
	b := append(make([]byte, 0, 256), '{')
	if !in.Calls() {
		b = document(b, "action", in.Action)
	}
	p, recorded := &in.Principal, &r.Principal
	if p.Subject != recorded.Subject || p.Person != recorded.Person || p.Client != recorded.Client || p.Tenant != recorded.Tenant || !slices.Equal(p.Roles, recorded.Roles) ||
		p.Issuer != "" || p.ClientID != "" || len(p.Actors)+len(p.MayAct)+len(p.Scopes) > 0 { // of which the record has nothing
		judged := in.Principal
		judged.Scopes = append([]string{}, p.Scopes...) // never null
		b = document(b, "principal", judged)
	}
	switch {
	case in.Calls():
		b = append(b, `"tool":{`...)
		for _, m := range [...]struct{ name, judged, recorded string }{
			{"server", in.Tool.Server, r.Server}, {"name", in.Tool.Name, r.Tool},
			{"exposed", in.Tool.Exposed, r.Exposed}, {"fingerprint", in.Tool.Fingerprint, r.Fingerprint},
		} {
			if m.judged != m.recorded {
				b = document(b, m.name, m.judged)
			}
		}
		b, _ = jsontext.AppendQuote(append(b, `"risk":`...), in.Tool.Risk)
		b = append(b, ',')
		if len(in.Tool.Annotations) > 0 {
			b = append(value(append(b, `"annotations":`...), in.Tool.Annotations), ',')
		}
		b = append(b[:len(b)-1], `},`...)
	case in.Resource != nil:
		b = document(b, "resource", in.Resource)
	case in.Prompt != nil:
		b = document(b, "prompt", in.Prompt)
	case in.Server != nil:
		b = document(b, "server", in.Server)
	}
	if !bytes.Equal(in.Arguments, r.Arguments) {
		b = value(append(b, `"arguments":`...), in.Arguments)
		b = append(b, ',')
	}
	b = append(b, `"request":{"time":"`...)
	b = in.Request.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `"},`...)
	if in.Usage != nil {
		b = document(b, "usage", in.Usage)
	}
	b[len(b)-1] = '}' // in place of the last comma
	return b
}

// document appends a member, whose value is text or one of toolgate's own types, and a comma.
func document(b []byte, name string, v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		raw = []byte("null") // an invalid number, which no store gives; it reads back as absent
	}
	b = append(append(append(b, '"'), name...), `":`...)
	return append(append(b, raw...), ',')
}

// value appends JSON as one line. Invalid JSON or UTF-8 becomes a string of its
// text, as in the arguments of a record.
func value(b, raw []byte) []byte {
	switch {
	case len(raw) == 0:
		return append(b, "{}"...)
	case !json.Valid(raw) || !utf8.Valid(raw):
		return append(b, jsonrpc.Quote(string(raw))...)
	case !bytes.ContainsAny(raw, "\r\n"):
		return append(b, raw...)
	}
	line := bytes.NewBuffer(b)
	_ = json.Compact(line, raw) // it is valid
	return line.Bytes()
}

// obligations is the form of Record.Policy.Obligations.
type obligations struct {
	Approval *policy.Approval  `json:"approval,omitempty"`
	Limit    *policy.Limit     `json:"limit,omitempty"`
	Redact   []string          `json:"redact,omitempty"`
	Scopes   []string          `json:"scopes,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// EncodeObligations returns the Record.Policy.Obligations for d, nil when d has none.
func EncodeObligations(d *policy.Decision) json.RawMessage {
	if d.Approval == nil && d.Limit == nil && len(d.Redact)+len(d.Scopes) == 0 { // most decisions have labels at most
		if len(d.Labels) == 0 {
			return nil
		}
		b := append(make([]byte, 0, 256), `{"labels":{`...)
		var few [8]string
		names := few[:0]
		for name := range d.Labels {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			b, _ = jsontext.AppendQuote(b, name)
			b, _ = jsontext.AppendQuote(append(b, ':'), d.Labels[name])
			b = append(b, ',')
		}
		return append(b[:len(b)-1], `}}`...)
	}
	raw, _ := jsonv2.Marshal(obligations{d.Approval, d.Limit, d.Redact, d.Scopes, d.Labels}, policy.Durations) // texts and whole numbers
	return raw
}

// Decode returns the input that the policy judged and its decision, both equal to
// the originals. The error says why the call cannot be judged again: ErrNotAsked,
// ErrElsewhere, ErrExcerpt, ErrNoInput, or a fault of the record. With ErrKept, Decode
// returns both, and the input has the arguments as the record holds them.
func Decode(r *audit.Record) (*policy.Input, *policy.Decision, error) {
	switch {
	case r.Kind != audit.KindDecision && r.Kind != audit.KindOutcome && r.Kind != audit.KindTicket, r.Policy.Effect == "":
		return nil, nil, ErrNotAsked
	case r.ArgumentsBytes > 0:
		return nil, nil, ErrExcerpt
	case len(r.Input) == 0 && (r.Kind == audit.KindTicket || r.Kind == audit.KindOutcome && len(r.Arguments) == 0):
		return nil, nil, ErrElsewhere
	case len(r.Input) == 0:
		return nil, nil, ErrNoInput
	}
	in, err := input(r)
	if err != nil {
		return nil, nil, fmt.Errorf("reading what was judged: %w", err)
	}
	d, err := decision(r)
	if err != nil {
		return nil, nil, fmt.Errorf("reading what was decided: %w", err)
	}
	if r.ArgumentsKept != "" {
		return in, d, ErrKept
	}
	return in, d, nil
}

func input(r *audit.Record) (*policy.Input, error) {
	var more rest
	if err := policy.ReadStrict(r.Input, &more); err != nil { // a later version may have judged by other members
		return nil, err
	}
	in := &policy.Input{
		Action: more.Action, Resource: more.Resource, Prompt: more.Prompt, Server: more.Server, Usage: more.Usage,
		Principal: policy.Principal{Subject: r.Principal.Subject, Person: r.Principal.Person, Roles: r.Principal.Roles, Client: r.Principal.Client, Tenant: r.Principal.Tenant},
		Request:   policy.Request{ID: r.RequestID, Transport: r.Transport, Era: r.Era, TraceID: r.TraceID, Time: more.Request.Time, Tags: r.Tags},
	}
	if more.Principal != nil {
		in.Principal = *more.Principal
	}
	if in.Calls() != (more.Tool != nil) {
		return nil, errors.New("a tool is wanted for tools/call, and for that only")
	}
	if more.Tool != nil {
		in.Tool = more.Tool.of(r)
	}
	in.Arguments = more.Arguments
	if in.Arguments == nil {
		in.Arguments = r.Arguments
	}
	return in, plain(&in.Arguments, &in.Tool.Annotations)
}

// of returns the tool that was judged.
func (t *tool) of(r *audit.Record) policy.Tool {
	out := policy.Tool{
		Server: r.Server, Name: r.Tool, Exposed: r.Exposed, Fingerprint: r.Fingerprint, Risk: t.Risk, Annotations: t.Annotations,
	}
	for said, to := range map[*string]*string{t.Server: &out.Server, t.Name: &out.Name, t.Exposed: &out.Exposed, t.Fingerprint: &out.Fingerprint} {
		if said != nil {
			*to = *said
		}
	}
	return out
}

// plain restores JSON that was kept as a string. Bytes that were not UTF-8 are lost,
// which is an error.
func plain(values ...*json.RawMessage) error {
	for _, v := range values {
		if len(*v) == 0 || (*v)[0] != '"' {
			continue
		}
		text, ok := jsonrpc.Text(*v)
		if !ok || !json.Valid([]byte(text)) || strings.ContainsRune(text, utf8.RuneError) {
			return errors.New("what was kept as text is no JSON, or lost bytes that were no UTF-8")
		}
		*v = json.RawMessage(text)
	}
	return nil
}

func decision(r *audit.Record) (*policy.Decision, error) {
	d := &policy.Decision{
		Effect: policy.Effect(r.Policy.Effect), Rule: r.Policy.Rule, Reason: r.Policy.Reason, Remedy: r.Policy.Remedy, Revision: r.Policy.Revision,
	}
	var o obligations
	if len(r.Policy.Obligations) > 0 {
		if err := jsonv2.Unmarshal(r.Policy.Obligations, &o, policy.Durations, jsonv2.RejectUnknownMembers(true)); err != nil {
			return nil, fmt.Errorf("reading obligations: %w", err)
		}
	}
	d.Approval, d.Limit, d.Redact, d.Scopes, d.Labels = o.Approval, o.Limit, o.Redact, o.Scopes, o.Labels
	if o.Approval != nil && d.Effect == policy.Deny { // only a hold has an approval: what cannot wait for a person is denied
		d.Effect = policy.Hold
	}
	return d, nil
}
