package rest

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// unauthenticatedBytes bounds the body that is read of an unauthenticated
// request. The record shows the call that was refused.
const unauthenticatedBytes = 64 << 10

// skippedBytes is how much of a body beyond the limit is read for the id of its envelope,
// which many clients write last.
const skippedBytes = 64 << 20

// intake is one POST with its body, not yet decoded.
type intake struct {
	call            proxy.Call     // for the road; its message is set later
	unauthenticated *proxy.Failure // why there is no principal; nil = there is one
	body            []byte
	long            *jsonrpc.Outline // of a body beyond the limit, nil for any other
	id              json.RawMessage  // of the envelope; nil = unknown
	limits          jsonrpc.Limits
	claim           share.Claim // of the body and of the answer
	traceparent     string      // the header; "" = none, or invalid
	begun           time.Time
}

// readRequest reads one POST:
//
//	media -> identify -> room -> body
//
// It reports false when it has answered the request, with refuse if there is no room for the
// body. After true the caller releases the claim.
func (h *Handler) readRequest(w http.ResponseWriter, r *http.Request, refuse func(*intake, *proxy.Failure)) (*intake, bool) {
	if !guard.JSONBody(r.Header) {
		h.refuse(w, problem{http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE", "send application/json in UTF-8"})
		return nil, false
	}
	if !h.reads(w, r, wire.JSONType) {
		return nil, false
	}
	in := &intake{begun: h.opts.Now(), limits: h.opts.Envelope.Limits}
	in.call = proxy.Call{Transport: "rest", Trace: span.FromHeader(r.Header)}
	in.call.Principal, in.call.Credential, in.unauthenticated = h.identify(r)
	if f := in.unauthenticated; f != nil && f.Kernel.Code != signal.CodeUnauthenticated {
		h.refuseCaller(w, &in.call.Credential, f)
		return nil, false
	}
	in.call.Session = sessionOf(in.call.Principal)
	in.traceparent, in.call.TraceID = traceOf(r.Header)
	further := skippedBytes
	if in.unauthenticated != nil {
		in.limits.Bytes, further = min(in.limits.Bytes, unauthenticatedBytes), 0
	}
	size := int64(in.limits.Bytes)
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength)
	}
	if !h.opts.Budget.Take(&in.claim, share.Owner{Subject: in.call.Principal.Subject, Tenant: in.call.Principal.Tenant}, size) {
		refuse(in, proxy.OverBudget())
		return nil, false
	}
	in.call.Bytes = &in.claim
	var err error
	if in.body, in.long, err = jsonrpc.ReadBounded(r.Body, r.ContentLength, in.limits.Bytes, further); err != nil {
		in.claim.Release()
		h.refuse(w, problem{http.StatusBadRequest, "BODY_INCOMPLETE", "the body ended early"})
		return nil, false
	}
	in.claim.Shrink(int64(len(in.body)))
	return in, true
}

// sessionOf returns the key of the upstream connections of a principal whose
// requests have no session. Principals never share connections (isolation
// session).
func sessionOf(who policy.Principal) string {
	if !who.Valid() {
		return ""
	}
	return "rest:" + url.QueryEscape(who.Tenant) + ":" + url.QueryEscape(who.Subject)
}

// identify returns the principal of the headers, or a failure without ids:
// unauthenticated requests have no record.
func (h *Handler) identify(r *http.Request) (policy.Principal, identity.Credential, *proxy.Failure) {
	c := identity.FromRequest(r, resource)
	who, failure := h.opts.Gate.Identify(r.Context(), c)
	switch {
	case failure == nil && who.Valid() && !c.Malformed:
		return who, c, nil
	case failure != nil && failure.Kernel.Code != signal.CodeUnauthenticated:
		return policy.Principal{}, c, failure
	}
	reason := "missing or unknown bearer token"
	if failure != nil { // fails closed
		reason = cmp.Or(failure.Reason, reason)
	}
	source := signal.ModuleRef{Tier: 0, Module: "gateway", Function: "identify"}
	kernel, _ := signal.ErrorFor(signal.CodeUnauthenticated, reason, source, nil, nil) // the code has a row
	return policy.Principal{}, c, &proxy.Failure{Kernel: kernel, Reason: reason}
}

// authenticated wraps a handler for authenticated callers.
func (h *Handler) authenticated(serve func(http.ResponseWriter, *http.Request, policy.Principal, identity.Credential)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, shown, why := h.identify(r)
		if why != nil {
			h.refuseCaller(w, &shown, why)
			return
		}
		serve(w, r, who, shown)
	}
}

// recordUnauthenticated returns the failure for a request without a principal.
// Only tool calls are recorded: an anonymous flood of anything else leaves no
// trace in the audit trail.
func (h *Handler) recordUnauthenticated(r *http.Request, in *intake, isCall bool) *proxy.Failure {
	if !isCall {
		return in.unauthenticated
	}
	return h.opts.Refuser.Refuse(r.Context(), &in.call, signal.CodeUnauthenticated, in.unauthenticated.Reason)
}

// refuseCaller answers an unauthenticated request.
func (h *Handler) refuseCaller(w http.ResponseWriter, shown *identity.Credential, f *proxy.Failure) {
	if f.Kernel.Code != signal.CodeUnauthenticated {
		if f.Kernel.Code == signal.CodeRateLimited {
			w.Header().Set("Connection", "close") // the next guess has to connect again
		}
		h.failed(w, f)
		return
	}
	w.Header().Set("WWW-Authenticate", h.opts.Challenges.Challenge(shown))
	if f.DecisionID == "" {
		h.refuse(w, problem{http.StatusUnauthorized, string(wire.Unauthenticated), f.Reason})
		return
	}
	h.failed(w, f)
}

// reads reports whether the caller accepts media, and answers 406 otherwise.
func (h *Handler) reads(w http.ResponseWriter, r *http.Request, media []string) bool {
	ok := guard.Accepts(r.Header, media[0])
	if !ok {
		h.refuse(w, problem{http.StatusNotAcceptable, "NOT_ACCEPTABLE", "accept " + media[0]})
	}
	return ok
}

// traceparentForm matches the header traceparent (W3C Trace Context). It also
// matches ids of zeros only.
var traceparentForm = regexp.MustCompile(`^(?:[0-9a-e][0-9a-f]|f[0-9a-e])-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

// traceOf reads the header traceparent. It returns the header and its trace id,
// or "" and a new id without a valid header.
func traceOf(head http.Header) (traceparent, id string) {
	if lines := head["Traceparent"]; len(lines) == 1 {
		if ids := traceparentForm.FindStringSubmatch(lines[0]); ids != nil && strings.Trim(ids[1], "0") != "" && strings.Trim(ids[2], "0") != "" {
			return lines[0], ids[1]
		}
	}
	return "", signal.NewID("trc_")
}

// setCall makes the request tools/call that the road judges. The bytes of arguments
// are inserted unchanged: the road judges the bytes that the caller sent.
func (h *Handler) setCall(in *intake, name string, arguments json.RawMessage) {
	params := append([]byte(`{"name":`), jsonrpc.Quote(name)...)
	params = append(append(params, `,"arguments":`...), arguments...)
	if in.traceparent != "" { // upstreams continue the trace too
		params = append(append(params, `,"_meta":{"traceparent":`...), jsonrpc.Quote(in.traceparent)...)
		params = append(params, '}')
	}
	envelope := h.opts.Envelope
	envelope.Limits = in.limits
	envelope.Limits.Bytes = math.MaxInt // the body was bounded when it was read
	in.setMessage(envelope.CreateRequest("tools/call", append(params, '}'), "req"))
}

// setMessage sets the result of the decoder: a message or a fault.
func (in *intake) setMessage(m *jsonrpc.Message, err error) {
	in.call.Message = m
	if err != nil {
		in.call.Message, in.call.Fault = nil, jsonrpc.FaultOf(err)
	}
}

// problem is a refusal of the HTTP layer, which has no row in the error table
// and leaves no record.
type problem struct {
	status       int
	code, detail string
}

var shuttingDown = problem{http.StatusServiceUnavailable, "SHUTTING_DOWN", "shutting down"}

// refuser is the origin of the listener's own refusals.
var refuser = signal.ModuleRef{Tier: 0, Module: "gateway", Function: "refuse"}

// refuse sends p as problem details (RFC 7807).
func (h *Handler) refuse(w http.ResponseWriter, p problem) {
	kernel := signal.InputError(p.detail, refuser, nil)
	switch p.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		kernel = signal.PolicyError(p.detail, refuser, nil)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		kernel = signal.ResourceError(p.detail, refuser, nil)
	case http.StatusInternalServerError:
		kernel = signal.ProcessingError(p.detail, refuser, nil, nil)
	}
	details := signal.ErrorToProblemDetails(kernel, 0)
	details.Status = p.status
	body, _ := details.MarshalJSON() // never fails
	body = append(append(body[:len(body)-1], `,"code":`...), jsonrpc.Quote(p.code)...)
	h.write(w, p.status, wire.ProblemType, append(body, '}'))
}

// failed sends a recorded refusal with its row's status.
func (h *Handler) failed(w http.ResponseWriter, f *proxy.Failure) {
	reply, err := wire.Problem(wire.Failure(*f))
	if err != nil {
		h.broken(w, err)
		return
	}
	if reply.Status == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", h.opts.Challenges.Challenge(&identity.Credential{Malformed: true, At: resource}))
	}
	if reply.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(reply.RetryAfter))
	}
	h.write(w, reply.Status, wire.ProblemType, reply.Body)
}

// stepUp says which scopes the token of a caller has to have, where a token would do.
func (h *Handler) stepUp(w http.ResponseWriter, shown *identity.Credential, f *proxy.Failure) {
	if f.Scopes != nil {
		w.Header().Set("WWW-Authenticate", h.opts.Challenges.StepUp(shown, f.Scopes))
	}
}

// broken answers when toolgate itself is at fault. The log has the cause; the
// answer has none.
func (h *Handler) broken(w http.ResponseWriter, err error) {
	h.opts.Log.Error("answering over rest", "error", err)
	h.refuse(w, problem{http.StatusInternalServerError, string(wire.InternalError), "Internal error"})
}

// retryAfter sets the header Retry-After, in seconds, for a wait above 0.
func retryAfter(w http.ResponseWriter, d time.Duration) {
	if d > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10))
	}
}

// write sends body as the whole answer. A nil body sends none.
func (h *Handler) write(w http.ResponseWriter, status int, media []string, body []byte) {
	head := w.Header()
	head["Cache-Control"] = wire.NoStore
	if body != nil {
		head["Content-Type"] = media
		head["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(h.opts.IOTimeout)) // a writer without deadlines has no network
	w.WriteHeader(status)
	if _, err := w.Write(body); err == nil {
		_ = rc.Flush() // under the deadline, not after it
	}
	_ = rc.SetWriteDeadline(time.Time{}) // for the next request of the connection
}
