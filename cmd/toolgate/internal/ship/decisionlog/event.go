package decisionlog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
)

// Event is one decision in the form of OPA's decision logs, version 1: EventV1 of
// its plugin for them. That type is not used here because it would link the plugin
// with OPA's server, 3 MB; the tests hold the two equal.
type Event struct {
	Labels      map[string]string   `json:"labels"`      // who decided
	DecisionID  string              `json:"decision_id"` // of the record in the trail; a repeat has the same
	TraceID     string              `json:"trace_id,omitempty"`
	Bundles     map[string]Bundle   `json:"bundles,omitempty"`
	Path        string              `json:"path,omitempty"`
	Input       json.RawMessage     `json:"input,omitempty"`  // as the policy saw it, masked
	Result      json.RawMessage     `json:"result,omitempty"` // as the policy answered, masked
	Erased      []string            `json:"erased,omitempty"` // paths that the mask removed
	Masked      []string            `json:"masked,omitempty"` // paths that the mask replaced
	RequestedBy string              `json:"requested_by,omitempty"`
	Timestamp   time.Time           `json:"timestamp"`
	RuleLabels  []map[string]string `json:"rule_labels,omitempty"` // of the rule that decided
	Custom      map[string]string   `json:"custom,omitempty"`
}

// Bundle identifies the policy that made a decision.
type Bundle struct {
	Revision string `json:"revision,omitempty"`
}

// result is a decision as the policy returned it.
type result struct {
	Effect string `json:"effect"`
	Rule   string `json:"rule,omitempty"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	terms
}

// terms are the parts of a decision that bind the call.
type terms struct {
	Approval json.RawMessage `json:"approval,omitempty"`
	Limit    json.RawMessage `json:"limit,omitempty"`
	Redact   json.RawMessage `json:"redact,omitempty"`
}

// eventOf returns the event of a decision. When the record's input cannot be decoded,
// the event has no input and says why; arguments are as the record has them.
func eventOf(r *audit.Record, labels map[string]string) (*Event, error) {
	e := &Event{
		Labels: map[string]string{"id": r.Instance}, DecisionID: r.DecisionID, TraceID: r.TraceID, Path: "toolgate/decision", // the query, in the form of OPA's API
		Timestamp: r.Time.UTC(),
	}
	maps.Copy(e.Labels, labels)
	if r.Policy.Revision != "" {
		e.Bundles = map[string]Bundle{"toolgate": {r.Policy.Revision}}
	}
	var o struct { // what a record keeps next to its verdict
		terms
		Labels map[string]string `json:"labels"`
	}
	if len(r.Policy.Obligations) > 0 {
		if err := json.Unmarshal(r.Policy.Obligations, &o); err != nil {
			return nil, fmt.Errorf("reading the obligations of decision %s: %w", r.DecisionID, err)
		}
	}
	if len(o.Labels) > 0 {
		e.RuleLabels = []map[string]string{o.Labels}
	}
	judged := result{r.Policy.Effect, r.Policy.Rule, r.Policy.Reason, r.Policy.Remedy, o.terms}
	in, d, err := judgement.Decode(r)
	if err != nil {
		e.Custom = map[string]string{"input": err.Error()}
	}
	if in != nil {
		judged.Effect, e.RequestedBy = string(d.Effect), in.Principal.Subject
		if e.Input, err = encode(in); err != nil {
			return nil, fmt.Errorf("writing the input of decision %s: %w", r.DecisionID, err)
		}
	}
	if e.Result, err = encode(judged); err != nil {
		return nil, fmt.Errorf("writing the result of decision %s: %w", r.DecisionID, err)
	}
	return e, nil
}

// A Masker returns which parts of event, a JSON object, are removed before the
// event is shipped. Several goroutines call it. After an error only the decision's
// id is shipped.
type Masker func(ctx context.Context, event json.RawMessage) (policy.Mask, error)

// masked returns e as it is shipped, nil when the policy drops it. It fails closed:
// when the mask fails, the event has only its id, its time and a note of the failure,
// and the error says why.
func masked(ctx context.Context, mask Masker, e *Event) ([]byte, error) {
	whole, err := encode(e)
	if err != nil {
		return nil, fmt.Errorf("writing an event: %w", err)
	}
	m, err := mask(ctx, whole)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && m.Drop:
		return nil, nil
	case err == nil && len(m.Rules) == 0:
		return whole, nil
	case err == nil:
		err = e.hide(m.Rules)
	}
	if err != nil {
		e = &Event{
			Labels: e.Labels, DecisionID: e.DecisionID, Timestamp: e.Timestamp, Erased: []string{"/input", "/result"},
			Custom: map[string]string{"mask": "it failed, so nothing else of this decision is shipped"},
		}
	}
	body, fault := encode(e)
	if fault != nil {
		return nil, fmt.Errorf("writing a masked event: %w", fault)
	}
	return body, err
}

// encode returns v as one line of JSON without HTML escapes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	w.SetEscapeHTML(false)
	if err := w.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}
