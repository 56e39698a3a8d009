package proxy

import (
	"github.com/toolgate/toolgate/signal"
)

// source is who the road's errors and signals come from.
func (p *passage) source() signal.ModuleRef {
	function := p.stage
	if function == "" {
		function = "receive"
	}
	return signal.ModuleRef{Tier: 4, Module: "gate", Function: function}
}

// fail makes the failure for a kernel code, with the category, severity and
// retry rule that the code has everywhere. A code that is not known is a fault
// of ours and fails as one.
func (p *passage) fail(code, reason string) *Failure {
	message := reason
	if message == "" {
		message = code
	}
	kernel, err := signal.ErrorFor(code, message, p.source(), nil, nil)
	if err != nil {
		kernel, _ = signal.ErrorFor(signal.CodeInternal, err.Error(), p.source(), nil, nil)
	}
	return &Failure{Kernel: kernel, Reason: reason, DecisionID: p.decisionID, TraceID: p.traceID, Plain: p.method.action != ""}
}

// with adds a fact to the error's detail; an empty text is no fact.
func (f *Failure) with(key string, value any) *Failure {
	if value == "" {
		return f
	}
	if f.Kernel.Detail == nil {
		f.Kernel.Detail = map[string]any{}
	}
	f.Kernel.Detail[key] = value
	return f
}

// remedy says what would make the call pass.
func (f *Failure) remedy(text string) *Failure {
	f.Remedy = text
	return f
}
