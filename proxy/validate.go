package proxy

import (
	"context"
	"strings"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/signal"
)

// validate checks the arguments against the tool's schema. A validator that
// fails refuses the call.
func (t *toolCall) validate(context.Context) *Failure {
	if t.tool.Input == nil {
		return t.fail(signal.CodeToolQuarantined, "the tool has no usable schema")
	}
	var faults []schema.Fault
	var err error
	if judged := t.in.Message.Judged("arguments"); judged.Is(t.body) { // decoded by the door
		faults, err = t.tool.Input.ValidateValue(judged.Value())
	} else {
		faults, err = t.tool.Input.Validate(t.body)
	}
	if err != nil {
		return t.internal("validating arguments", err)
	}
	if len(faults) == 0 {
		return nil
	}
	reason := argumentFault(faults[0])
	return t.fail(signal.CodeSchemaMismatch, reason).because(signal.InputError(reason, validator, nil)).with("faults", faults).
		remedy("correct the arguments at the pointers given and call again")
}

// validator is the origin of errors about arguments.
var validator = signal.ModuleRef{Tier: 0, Module: "validation", Function: "validate"}

// argumentFault says what is wrong with the arguments.
func argumentFault(f schema.Fault) string {
	name, missing := strings.CutPrefix(f.Want, "member ")
	if f.Keyword != "required" || !missing {
		return f.String()
	}
	if f.Pointer != "" {
		name += " in " + f.Pointer
	}
	return "missing required argument " + name
}
