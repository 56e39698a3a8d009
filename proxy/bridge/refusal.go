package bridge

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

const (
	// maxRefusal bounds what is read of a refusal, in bytes.
	maxRefusal = 64 << 10
	// maxReason bounds what is told of it, in bytes.
	maxReason = 1000
)

// refusal is a failure of the bridge itself.
func refusal(code, reason string) wire.Failure {
	source := signal.ModuleRef{Tier: 4, Module: "bridge", Function: "exchange"}
	kernel, err := signal.ErrorFor(code, reason, source, nil, nil)
	if err != nil { // a code that is not known is told as INTERNAL_ERROR
		kernel = &signal.KernelError{Code: signal.CodeInternal}
	}
	return wire.Failure{Kernel: kernel, Reason: reason}
}

// errorObject writes a failure in dialect gateway, as the stdio door does.
func errorObject(w wire.Failure) json.RawMessage {
	reply, err := wire.Answer(wire.Gateway, w)
	if err != nil || reply.Error == nil { // every code used here has a row
		return wire.Internal
	}
	return reply.Error
}

// A problem is the body of a refusal: a JSON-RPC answer, problem details (RFC
// 9457) with toolgate's members, or neither.
type problem struct {
	rpc *message

	Title, Detail, Reason, Remedy, Code string
	DecisionID                          string          `json:"decision_id"`
	TraceID                             string          `json:"trace_id"`
	RetryAfterMS                        float64         `json:"retry_after_ms"`
	Details                             json.RawMessage `json:"details"`
}

func readProblem(res *http.Response) problem {
	var p problem
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1)) // the status says enough
	if got, ok := readMessages(text); ok && len(got) == 1 && got[0].method == "" {
		return problem{rpc: &got[0]}
	}
	if len(text) > maxRefusal || !strings.HasSuffix(mcpclient.Media(res), "json") || json.Unmarshal(text, &p) != nil {
		return problem{}
	}
	return p
}

// reason returns the endpoint's reason for a refusal, or its status.
func (p problem) reason(res *http.Response) string {
	if p.rpc != nil {
		raw, _ := jsonrpc.Get(p.rpc.failure, "message")
		p.Detail, _ = jsonrpc.Text(raw)
	}
	for _, text := range []string{p.Reason, p.Detail, p.Title} {
		if text != "" {
			return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
		}
	}
	said := "the endpoint answered with status " + strconv.Itoa(res.StatusCode)
	if media := mcpclient.Media(res); res.StatusCode/100 == 2 && media != "" {
		said += " and content type " + media
	}
	return said
}

// refuse answers f, whose POST came back with anything but an answer:
//
//	404 in a session         -> SESSION_LOST, and the session is forgotten
//	a JSON-RPC answer        -> as it came, under the id of the request
//	problem details with one of our codes -> that code
//	anything else            -> by its status
func (t *talk) refuse(f *flight, res *http.Response, s session) {
	p := readProblem(res)
	if f.era.stateless {
		s = session{}
	}
	if !t.settled(f) {
		t.log.Warn("the endpoint refused a message", "method", f.method, "status", res.StatusCode, "reason", p.reason(res), "hint", hint(res.StatusCode))
	}
	switch {
	case t.sessionLost(res, p.rpc, s, f.id):
		t.fail(f, refusal(signal.CodeSessionLost, lostReason))
	case p.rpc != nil:
		t.relay(f, p.rpc.line)
		t.conclude(f, p.rpc.line)
	default:
		t.fail(f, p.failure(res))
	}
}

// hint returns what may help against a status.
func hint(status int) string {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "say who asks with --token or TOOLGATE_TOKEN"
	case status/100 == 3:
		return "redirects are not followed: connect to the address itself, if you trust it"
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return "does --connect name an MCP endpoint, or on a toolgate /mcp?"
	}
	return ""
}

// failure returns the failure for a refusal that is not JSON-RPC.
func (p problem) failure(res *http.Response) wire.Failure {
	reason := p.reason(res)
	code := codeOfStatus(res.StatusCode)
	if row, err := wire.Lookup(wire.Code(p.Code)); err == nil && row.Form != wire.AsNothing {
		code = row.Kernel
	} else if code == signal.CodeToolFailed {
		reason += ": " + unknownEffect
	}
	w := refusal(code, reason)
	w.Kernel.RetryEligible = w.Kernel.RetryEligible && (p.Code != "" || mcpclient.Passing(res.StatusCode))
	w.Remedy, w.DecisionID, w.TraceID = p.Remedy, p.DecisionID, p.TraceID
	if w.Remedy == "" {
		w.Remedy = hint(res.StatusCode)
	}
	w.RetryAfter = time.Duration(p.RetryAfterMS) * time.Millisecond
	if s, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil && w.RetryAfter <= 0 {
		w.RetryAfter = time.Duration(s) * time.Second
	}
	w.Kernel.Detail = map[string]any{"status": res.StatusCode}
	if len(p.Details) > len("{}") && p.Details[0] == '{' {
		w.Kernel.Detail["details"] = p.Details
	}
	return w
}

// statusCodes are the kernel codes of statuses that say why.
var statusCodes = map[int]string{
	http.StatusUnauthorized: signal.CodeUnauthenticated, http.StatusForbidden: signal.CodeUnauthenticated,
	http.StatusRequestEntityTooLarge: signal.CodeEnvelopeTooLarge, http.StatusTooManyRequests: signal.CodeRateLimited,
	http.StatusServiceUnavailable: signal.CodeUpstreamUnavailable,
}

// codeOfStatus returns the kernel code of a status without further detail. A
// status that another server behind the endpoint may have caused is a failure;
// any other refusal means that the request reached nobody.
func codeOfStatus(status int) string {
	if status/100 == 3 || status/100 == 4 {
		return cmp.Or(statusCodes[status], signal.CodeUpstreamUnavailable)
	}
	return cmp.Or(statusCodes[status], signal.CodeToolFailed)
}
