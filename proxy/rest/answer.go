package rest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// Header values that every answer shares; never changed.
var (
	jsonType    = []string{"application/json"}
	problemType = []string{"application/problem+json"}
	eventType   = []string{"text/event-stream"}
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
)

// problem is a refusal of HTTP's own kind, one that is no row of the error
// table and leaves no record.
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
	h.write(w, p.status, problemType, append(body, '}'))
}

// failed sends a recorded refusal with its row's status.
func (h *Handler) failed(w http.ResponseWriter, f *proxy.Failure) {
	reply, err := wire.Problem(wire.Failure(*f))
	if err != nil {
		h.broken(w, err)
		return
	}
	if reply.Status == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="toolgate", error="invalid_token"`)
	}
	if reply.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(reply.RetryAfter))
	}
	h.write(w, reply.Status, problemType, reply.Body)
}

// broken answers when a part of ours contradicts itself: the log has why, the
// caller learns only that it happened.
func (h *Handler) broken(w http.ResponseWriter, err error) {
	h.opts.Log.Error("answering over rest", "error", err)
	h.refuse(w, problem{http.StatusInternalServerError, string(wire.InternalError), "Internal error"})
}

// retryAfter sets the header of that name, in seconds, when there is something
// to wait for.
func retryAfter(w http.ResponseWriter, d time.Duration) {
	if d > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10))
	}
}

// write sends body as the whole answer; a nil body is none.
func (h *Handler) write(w http.ResponseWriter, status int, media []string, body []byte) {
	head := w.Header()
	head["Cache-Control"] = noStore
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
	_ = rc.SetWriteDeadline(time.Time{}) // the connection goes on to its next request
}
