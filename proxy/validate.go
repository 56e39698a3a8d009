package proxy

import (
	"context"

	"github.com/toolgate/toolgate/signal"
)

// validate checks the arguments against the tool's schema. A validator that
// fails refuses the call.
func (t *toolCall) validate(context.Context) *Failure {
	if t.tool.Input == nil {
		return t.fail(signal.CodeToolQuarantined, "the tool has no usable schema")
	}
	faults, err := t.tool.Input.Validate(t.body)
	if err != nil {
		t.gate.opts.Log.Error("validating arguments", "decision", t.decisionID, "tool", t.subject.Exposed, "error", err)
		return t.fail(signal.CodeInternal, "")
	}
	if len(faults) == 0 {
		return nil
	}
	return t.fail(signal.CodeSchemaMismatch, faults[0].String()).with("faults", faults).
		remedy("correct the arguments at the pointers given and call again")
}
