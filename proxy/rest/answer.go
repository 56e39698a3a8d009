package rest

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/wire"
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

// refuse sends p as problem details (RFC 7807).
func (h *Handler) refuse(w http.ResponseWriter, p problem) {
	body := append([]byte(`{"type":`), jsonrpc.Quote("urn:toolgate:problem:"+strings.ReplaceAll(strings.ToLower(p.code), "_", "-"))...)
	body = appendText(body, "title", http.StatusText(p.status))
	body = appendNumber(body, "status", int64(p.status))
	body = appendText(body, "detail", p.detail)
	h.write(w, p.status, problemType, append(appendText(body, "code", p.code), '}'))
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

// appendNumber appends an integer member to an object under construction.
func appendNumber(object []byte, key string, n int64) []byte {
	object = append(append(append(object, ',', '"'), key...), '"', ':')
	return strconv.AppendInt(object, n, 10)
}

// faultOf gives the fault that the decoder reported.
func faultOf(err error) *jsonrpc.Fault {
	var fault *jsonrpc.Fault
	if errors.As(err, &fault) {
		return fault
	}
	return &jsonrpc.Fault{Kind: jsonrpc.Parse, Reason: "the body cannot be read"}
}
