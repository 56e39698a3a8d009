package proxy

import (
	"time"

	"github.com/toolgate/toolgate/signal"
)

// fail makes the failure for a kernel code, with the category, severity and
// retry rule that the code has everywhere. An unknown code fails as
// INTERNAL_ERROR.
func (c *call) fail(code, reason string) *Failure {
	message := reason
	if message == "" {
		message = code
	}
	kernel, err := signal.ErrorFor(code, message, c.source(), nil, nil)
	if err != nil {
		kernel, _ = signal.ErrorFor(signal.CodeInternal, err.Error(), c.source(), nil, nil)
	}
	return &Failure{Kernel: kernel, Reason: reason, DecisionID: c.decisionID, TraceID: c.traceID, Plain: c.method != ""}
}

// internal logs an error of a part of ours, and makes the failure that tells the
// caller its ids only.
func (c *call) internal(doing string, err error) *Failure {
	c.gate.opts.Log.Error(doing, "decision", c.decisionID, "tool", c.name, "ticket", c.ticket.ID, "error", err)
	return c.fail(signal.CodeInternal, "")
}

// wrap makes the failure of a lower tier's error, which stays its cause. The error
// has the category, severity and retry rule of code.
func (c *call) wrap(code string, inner *signal.KernelError, reason string) *Failure {
	f := c.fail(code, reason)
	if outer, err := signal.WrapError(code, inner, c.source(), f.Kernel.Message); err == nil {
		f.Kernel = outer
	}
	return f
}

// because adds the cause to a failure whose severity is not that of its cause.
func (f *Failure) because(cause *signal.KernelError) *Failure {
	f.Kernel.Cause = cause
	return f
}

// with adds a fact to the error's detail; an empty text adds nothing.
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

// after sets the time until which a retry is pointless.
func (f *Failure) after(wait time.Duration) *Failure {
	f.RetryAfter = wait
	return f
}

// remedy says what would make the call pass.
func (f *Failure) remedy(text string) *Failure {
	f.Remedy = text
	return f
}
