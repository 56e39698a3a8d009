package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Remedies of several refusals.
const (
	callLater  = "call again a little later"
	mayHaveRun = "find out whether the call took effect before making it again"
	useAnother = "use another tool"
)

// OverBudget is the failure of a request whose body has no room in the budget of messages, and
// is not read. It has no ids, because what is not read is not recorded.
func OverBudget() *Failure {
	const reason = "too many bytes of messages are in flight, so the body was not read"
	kernel, _ := signal.ErrorFor(signal.CodeOverloaded, reason, gateway, nil, nil) // the code has a row
	return &Failure{Kernel: kernel, Reason: reason, Remedy: callLater, RetryAfter: time.Second, Plain: true, Status: http.StatusServiceUnavailable}
}

// maxRolesSaid is the most roles that a refusal names.
const maxRolesSaid = 5

// whoIs names a principal to its own model: "agent-7 with role observer".
func whoIs(p *policy.Principal) string {
	switch n := len(p.Roles); {
	case n == 0:
		return p.Subject + " without a role"
	case n == 1:
		return p.Subject + " with role " + p.Roles[0]
	case n > maxRolesSaid:
		return fmt.Sprintf("%s with roles %s and %d more", p.Subject, strings.Join(p.Roles[:maxRolesSaid], ", "), n-maxRolesSaid)
	}
	return p.Subject + " with roles " + strings.Join(p.Roles, ", ")
}

// errorForm is how the error of a tool call is shown, as the first of these says: the
// credential, the server, the client's profile; "" = as the route does. It is "" too for
// what the transport or the authentication refuses.
func (c *call) errorForm() string {
	stage := c.source.Function
	if c.method != "" || stage == "receive" || stage == "identify" || c.in.Transport != "http" && c.in.Transport != "stdio" {
		return ""
	}
	s := c.gate.settings.Load()
	return cmp.Or(c.principal.Shape.Errors, s.Shapes[cmp.Or(c.server, c.in.Route)].Errors, s.profile(c.principal.Client, c.in.Transport).Errors)
}

// deniedCall refuses a tool call for the decision's rule. The caller sees the tool, so
// it also learns what its schema refuses: a policy often denies what is only misspelled.
func (t *toolCall) deniedCall() *Failure {
	f := t.denied(t.decision.Reason)
	if t.tool.Input == nil {
		return f
	}
	faults, err := t.tool.Input.Validate(t.body)
	if err != nil {
		t.gate.opts.Log.Error("validating arguments of a denied call", "decision", t.decisionID, "error", err)
	}
	if len(faults) == 0 {
		return f
	}
	return f.with("schema", faults).remedy(correct(faults, f.Remedy))
}

// maxFaultsSaid is the most faults of arguments that a remedy names; the detail has all.
const maxFaultsSaid = 3

// correct puts faults of arguments before a remedy.
func correct(faults []schema.Fault, remedy string) string {
	if len(faults) == 0 {
		return remedy
	}
	said := make([]string, 0, maxFaultsSaid)
	for _, f := range faults[:min(len(faults), maxFaultsSaid)] {
		said = append(said, argumentFault(f))
	}
	text := "the arguments also break the tool's schema: " + strings.Join(said, "; ")
	if more := len(faults) - len(said); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if remedy == "" {
		return text
	}
	return text + "; " + remedy
}

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

// unknownTool refuses a name that no tool has which the caller sees. What is hidden from
// the caller is never suggested.
func (t *toolCall) unknownTool(ctx context.Context) *Failure {
	f, remedy := t.fail(signal.CodeToolNotFound, fmt.Sprintf("unknown tool %q", t.name)), "list the tools with tools/list"
	if near := t.nearestTool(ctx); near != "" {
		remedy = fmt.Sprintf("did you mean %q? if not, %s", near, remedy)
	}
	return f.remedy(remedy)
}

// maxNameCompared bounds the names for which the nearest tool is looked for, in bytes.
const maxNameCompared = 128

// nearestTool returns the name of the tool that the caller probably means: one that
// differs in a few letters, or one whose own name is meant, without its server's prefix
// or with another. It returns "" when there is none.
func (t *toolCall) nearestTool(ctx context.Context) string {
	if len(t.name) > maxNameCompared {
		return ""
	}
	best, least := "", max(3, len(t.name)/4+1)
	for _, tool := range t.gate.Listing(ctx, t.in, t.principal).Tools {
		name := tool.Exposed
		if t.in.Route != "" {
			name = tool.Name
		}
		if endsIn(t.name, tool.Name) {
			return name
		}
		if far := len(name) - len(t.name); max(far, -far) >= least {
			continue
		}
		if d := levenshtein.ComputeDistance(t.name, name); d < least && d < len(name) {
			best, least = name, d
		}
	}
	return best
}

// endsIn reports whether name is own, or own behind a prefix such as "web__" or "web.".
func endsIn(name, own string) bool {
	prefix, ok := strings.CutSuffix(name, own)
	return ok && (prefix == "" || strings.ContainsAny(prefix[len(prefix)-1:], "_.-/:"))
}

// forwardError reads why an upstream gave no result. An unknown error may have
// come after the request was sent.
func forwardError(err error) *registry.ForwardError {
	if fe, ok := errors.AsType[*registry.ForwardError](err); ok {
		return fe
	}
	return &registry.ForwardError{Kind: registry.Failed, Sent: true, Err: err}
}

// upstreamFailure says why an upstream gave no result; late is the reason of a
// timeout.
func (c *call) upstreamFailure(ctx context.Context, fe *registry.ForwardError, late string) *Failure {
	switch fe.Kind {
	case registry.Timeout:
		return c.fail(signal.CodeToolTimeout, late).because(upstreamError("no answer before the deadline", nil)).remedy(mayHaveRun)
	case registry.Cancelled:
		return c.cancelled(ctx, fe.Sent, "the caller cancelled the call")
	case registry.Unavailable:
		down := signal.ExternalError("nothing was sent", upstreams, true, nil)
		return c.wrap(signal.CodeUpstreamUnavailable, down, "server "+c.server+" is not available").
			remedy("call again later; other servers are not affected")
	case registry.Unconnected: // the server did nothing
		if missing, ok := errors.AsType[*registry.Missing](fe); ok {
			return c.unconnected(missing)
		}
		return c.unconnected(&registry.Missing{Reason: "the server refuses the caller's credential", Connects: true})
	case registry.Quarantined:
		return c.fail(signal.CodeToolQuarantined, "the server offers another definition of this tool than the one that was accepted").
			remedy(useAnother)
	case registry.TooLarge:
		if !fe.Sent {
			return c.fail(signal.CodeToolFailed, "the call is larger than the server takes, and was not sent").remedy("call with less")
		}
		long := &mcpclient.AnswerError{Reason: "an answer that is too large"}
		errors.As(fe, &long)
		return c.fail(signal.CodeToolFailed, "server "+c.server+" sent "+long.Reason).remedy("ask the tool for less, if it only reads")
	}
	if fault, ok := errors.AsType[*jsonrpc.Fault](fe); ok {
		return c.fail(signal.CodeToolFailed, "server "+c.server+" sent an invalid answer: "+fault.Error()).
			because(upstreamError(fault.Reason, map[string]any{"pointer": fault.Pointer}))
	}
	if bad, ok := errors.AsType[*mcpclient.AnswerError](fe); ok {
		return c.fail(signal.CodeToolFailed, "server "+c.server+" sent an invalid answer: "+bad.Reason).because(upstreamError(bad.Reason, nil))
	}
	if fe.RPC == nil {
		what := "the connection to server " + c.server
		if errors.Is(fe, mcpclient.ErrEnded) {
			what = "server " + c.server
		}
		return c.fail(signal.CodeToolFailed, what+" ended during the call; whether it took effect is unknown").
			because(upstreamError("the connection ended before the answer", nil)).remedy(mayHaveRun)
	}
	code, _ := jsonrpc.Get(fe.RPC, "code")
	f := c.fail(signal.CodeToolFailed, upstreamMessage(fe.RPC)).because(upstreamError(upstreamMessage(fe.RPC), map[string]any{"code": code}))
	f.Upstream = fe.RPC
	return f
}
