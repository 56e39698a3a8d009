package ndjson

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// noNotice is the boundary notice of actions without one: every response has a
// notice.
const noNotice = "No boundary notice is given for this action."

// actions returns the data of list_actions. Schemas are the bytes of the
// upstreams.
func actions(tools []*registry.Tool) json.RawMessage {
	out := []byte(`{"actions":[`)
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendAction(out, t)
	}
	return append(out, `]}`...)
}

func appendAction(out []byte, t *registry.Tool) []byte {
	description, _ := jsonrpc.TextAt(t.Definition, "description")
	out = fmt.Appendf(out, `{"action":%s,"description":%s,"boundaryNotice":%s`, jsonrpc.Quote(t.Exposed), jsonrpc.Quote(description), jsonrpc.Quote(notice(t)))
	for _, name := range []string{"inputSchema", "outputSchema"} {
		if value, ok := jsonrpc.Get(t.Definition, name); ok {
			out = fmt.Appendf(out, `,%q:%s`, name, value)
		}
	}
	return append(out, '}')
}

// notice returns the boundary notice of a tool: that of its definition,
// otherwise the configured one.
func notice(t *registry.Tool) string {
	if t == nil {
		return noNotice
	}
	own, _ := jsonrpc.TextAt(t.Definition, "_meta", "boundaryNotice")
	return cmp.Or(own, t.Notice, noNotice)
}

// replied returns the response to a call that the road answered. A tool's own
// error and a pending call are failures here, because the protocol knows
// answers and failures only.
func (d *Door) replied(x *exchange, reply *proxy.Reply) []byte {
	e := signal.Compose(reply.Kernel).Stop
	if e == nil {
		return ndjson.NewSuccess(x.id(), answer(x.action(), reply))
	}
	code := wire.ToolFailed
	if row, err := wire.ByKernel(e.Code); err == nil {
		code = row.Code
	}
	return ndjson.NewFailure(x.id(), string(code)+": "+e.Message, []ndjson.Issue{{
		Code: string(code), Message: e.Message, Ticket: reply.Ticket,
		RetryAfterMS: wire.Milliseconds(reply.RetryAfter), DecisionID: reply.DecisionID,
	}})
}

// answer returns the data of a successful invoke. Well-formed members that the
// action reports about itself take precedence.
func answer(name string, reply *proxy.Reply) json.RawMessage {
	own := claims(reply.Result)
	boundary, _ := jsonrpc.Text(own["boundaryNotice"])
	uncertain, _ := jsonrpc.Text(own["uncertainty"])
	if !slices.Contains(uncertainties, uncertain) {
		uncertain = cmp.Or(uncertainty[reply.Kernel.Status], "high")
	}
	var assumed []string
	if err := jsonv2.Unmarshal(own["assumptions"], &assumed); err != nil || assumed == nil {
		assumed = assumptions(reply)
	}
	list, _ := jsonv2.Marshal(assumed, jsontext.AllowInvalidUTF8(true))
	return slices.Concat(
		[]byte(`{"action":`), jsonrpc.Quote(name),
		[]byte(`,"boundaryNotice":`), jsonrpc.Quote(cmp.Or(boundary, notice(reply.Tool))),
		[]byte(`,"uncertainty":`), jsonrpc.Quote(uncertain),
		[]byte(`,"assumptions":`), list,
		[]byte(`,"output":`), output(reply), []byte(`}`),
	)
}

// claims returns what a tool result reports about itself.
func claims(result json.RawMessage) map[string]json.RawMessage {
	own, _ := jsonrpc.At(result, "_meta", ndjson.MetaAction)
	return maps.Collect(jsonrpc.Members(own))
}

// uncertainties are the three levels of the protocol.
var uncertainties = []string{"low", "medium", "high"}

// uncertainty is the level for how a call went; any other call has "high".
var uncertainty = map[signal.Status]string{signal.StatusOK: "low", signal.StatusPartial: "medium"}

// assumptions returns the rule that the call passed and, for a held call, the
// approval.
func assumptions(reply *proxy.Reply) []string {
	by := "the policy"
	if reply.Decision.Rule != "" {
		by = "policy rule " + reply.Decision.Rule
	}
	if reply.Decision.Revision != "" {
		by += ", revision " + reply.Decision.Revision
	}
	out := []string{"Allowed by " + by}
	if reply.Decision.Effect == policy.Hold {
		out = []string{"Held by " + by, "Approved by a person, ticket " + reply.Ticket}
	}
	if reply.Kernel.Metrics.CacheHit {
		out = append(out, "This is the stored result of the one call that was made under ticket "+reply.Ticket)
	}
	return out
}

// output returns the structured content of the result, otherwise the Result of
// the call.
func output(reply *proxy.Reply) json.RawMessage {
	if structured, ok := jsonrpc.Get(reply.Result, "structuredContent"); ok && len(structured) > 0 && structured[0] == '{' {
		return structured
	}
	return signal.Full(reply.Kernel)
}

// failed returns the response to a failed call: a fixed text of the protocol
// where it has one, otherwise the canonical code and the reason.
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

// broken returns the response when toolgate itself failed. It has the ids only.
func (d *Door) broken(x *exchange, decision, trace string) []byte {
	text := "the gateway failed; its log has the cause"
	if decision != "" {
		text += " under decision " + decision + ", trace " + trace
	}
	return ndjson.NewFailure(x.id(), string(wire.InternalError)+": "+text,
		[]ndjson.Issue{{Code: string(wire.InternalError), Message: text, DecisionID: decision}})
}

// issue returns a failure as one fault.
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

// inputIssues returns one issue for each fault of the input.
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
