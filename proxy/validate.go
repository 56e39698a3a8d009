package proxy

import (
	"context"

	"github.com/toolgate/toolgate/signal"
)

// validate checks the arguments against the tool's schema. Where that only warns, a call
// that breaks it is made, and a validator that fails counts as a fault. Elsewhere either
// refuses the call.
func (t *toolCall) validate(context.Context) *Failure {
	if t.tool.Input == nil {
		return t.fail(signal.CodeToolQuarantined, "the tool has no usable schema").remedy(useAnother)
	}
	check := t.tool.Input.Validate
	if t.in.Message.Vouches(t.body) { // it was read strictly
		check = t.tool.Input.ValidateAccepted
	}
	faults, err := check(t.body)
	warns := t.tool.InputMode == "warn"
	t.warnings = nil // of an earlier judgement
	switch {
	case err != nil && warns:
		t.gate.opts.Log.Error("validating arguments", "decision", t.decisionID, "error", err)
		t.warn(signal.CodeSchemaMismatch, "the arguments could not be validated against the tool's schema")
		return nil
	case err != nil:
		return t.internal("validating arguments", err)
	case len(faults) == 0:
		return nil
	}
	reason := argumentFault(faults[0])
	if warns {
		t.warn(signal.CodeSchemaMismatch, "the arguments break the tool's schema: "+reason)
		return nil
	}
	return t.fail(signal.CodeSchemaMismatch, reason).because(signal.InputError(reason, validator, nil)).with("faults", faults).
		remedy(correct(faults[1:], "correct the arguments and call again"))
}

// validator is the origin of errors about arguments.
var validator = signal.ModuleRef{Tier: 0, Module: "validation", Function: "validate"}
