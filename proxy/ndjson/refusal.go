package ndjson

import (
	"cmp"

	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
)

// failed puts a failure into the protocol's words: its fixed texts where it
// has one, else the canonical code and the reason.
func (d *Door) failed(x *exchange, f *proxy.Failure) []byte {
	row, err := wire.ByKernel(f.Kernel.Code)
	if err != nil {
		d.opts.Log.Error("answering a refusal", "decision", f.DecisionID, "error", err)
		return d.broken(x, f.DecisionID, f.TraceID)
	}
	reason := cmp.Or(f.Reason, f.Kernel.Message, row.Message)
	switch row.Code {
	case wire.InternalError:
		return d.broken(x, f.DecisionID, f.TraceID)
	case wire.ParseError:
		return ndjson.NewFailure(x.id(), ndjson.Malformed, nil)
	case wire.TooLarge:
		return ndjson.NewFailure(x.id(), ndjson.Oversized, nil)
	case wire.ToolNotFound:
		return ndjson.NewFailure(x.id(), ndjson.UnknownAction(x.action()), nil)
	case wire.InvalidToolInput:
		return ndjson.NewFailure(x.id(), ndjson.InvalidInput(x.action(), reason), inputIssues(x, f, row, reason))
	case wire.InvalidEnvelope:
		if x.fault != nil {
			return ndjson.NewFailure(x.id(), x.fault.Text, x.fault.Issues)
		}
		return ndjson.NewFailure(x.id(), ndjson.InvalidEnvelope, []ndjson.Issue{issue(x, f, row, reason)})
	}
	return ndjson.NewFailure(x.id(), string(row.Code)+": "+reason, []ndjson.Issue{issue(x, f, row, reason)})
}

// broken answers x when the gateway failed. It tells the ids and no more.
func (d *Door) broken(x *exchange, decision, trace string) []byte {
	text := "the gateway failed; its log has the cause"
	if decision != "" {
		text += " under decision " + decision + ", trace " + trace
	}
	return ndjson.NewFailure(x.id(), string(wire.InternalError)+": "+text,
		[]ndjson.Issue{{Code: string(wire.InternalError), Message: text, DecisionID: decision}})
}

// issue is a failure that is one fault.
func issue(x *exchange, f *proxy.Failure, row wire.Row, reason string) ndjson.Issue {
	pointer, ok := f.Kernel.Detail["pointer"].(string)
	if !ok {
		pointer = x.at
	}
	ticket, _ := f.Kernel.Detail["ticket"].(string)
	return ndjson.Issue{
		Code: string(row.Code), Message: reason, Path: x.path(pointer), Ticket: ticket,
		RetryAfterMS: wire.Milliseconds(f.RetryAfter), Remedy: f.Remedy, DecisionID: f.DecisionID,
	}
}

// inputIssues gives one issue for each fault of the input.
func inputIssues(x *exchange, f *proxy.Failure, row wire.Row, reason string) []ndjson.Issue {
	faults, _ := f.Kernel.Detail["faults"].([]schema.Fault)
	if len(faults) == 0 || x.req == nil {
		return []ndjson.Issue{issue(x, f, row, reason)}
	}
	out := make([]ndjson.Issue, len(faults))
	for i, fault := range faults {
		out[i] = ndjson.Issue{Code: string(row.Code), Message: fault.String(), Path: ndjson.Path(x.req.Input, fault.Pointer)}
	}
	return out
}
