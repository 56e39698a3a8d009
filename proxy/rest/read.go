package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// tools answers with the tools that are visible to who. Exactly the listed
// tools can be called: list and call evaluate the same rule.
func (h *Handler) tools(w http.ResponseWriter, r *http.Request, who policy.Principal, _ identity.Credential) {
	if !h.reads(w, r, wire.JSONType) {
		return
	}
	name, filtered, ok := toolsQuery(r.URL)
	if !ok {
		h.refuse(w, problem{http.StatusBadRequest, "BAD_QUERY", "the one parameter is name, given once"})
		return
	}
	body := []byte(`{"tools":[`)
	first := true
	for _, t := range h.opts.Gate.List(r.Context(), &proxy.Call{Transport: "rest"}, who) {
		if filtered && t.Exposed != name {
			continue
		}
		io, err := h.opts.ToolIO(t.Exposed)
		if errors.Is(err, registry.ErrUnknownTool) {
			continue // the tool was removed after the list was made
		}
		if err != nil {
			h.broken(w, err)
			return
		}
		if !first {
			body = append(body, ',')
		}
		body, first = appendTool(body, t, io), false
	}
	h.write(w, http.StatusOK, wire.JSONType, append(body, "]}"...))
}

// toolsQuery reads the query of a list. Unknown parameters are refused, because
// ignoring a filter would show too much.
func toolsQuery(u *url.URL) (name string, filtered, ok bool) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", false, false
	}
	for key, values := range query {
		if key != "name" || len(values) != 1 {
			return "", false, false
		}
		name, filtered = values[0], true
	}
	return name, filtered, true
}

// appendTool appends one tool. Title, annotations and schemas are the bytes of
// the upstream.
func appendTool(body []byte, t *registry.Tool, io *registry.ToolIO) []byte {
	body = fmt.Appendf(body, `{"name":%s,"server":%s,"tool":%s`, jsonrpc.Quote(t.Exposed), jsonrpc.Quote(t.Server), jsonrpc.Quote(t.Name))
	if title, ok := jsonrpc.TextAt(t.Definition, "title"); ok {
		body = fmt.Appendf(body, `,"title":%s`, jsonrpc.Quote(title))
	}
	description, _ := jsonrpc.TextAt(t.Definition, "description")
	annotations := t.Annotations
	if len(annotations) == 0 || annotations[0] != '{' {
		annotations = []byte("{}")
	}
	return fmt.Appendf(body, `,"description":%s,"risk":%s,"annotations":%s,"fingerprint":%s,"input_schema":%s,"output_schema":%s}`,
		jsonrpc.Quote(description), jsonrpc.Quote(t.Risk), annotations, jsonrpc.Quote(t.Fingerprint), io.Input, io.Output)
}

// artifact answers with the bytes of one artifact, whole or in ranges, if it
// was granted to who. For other callers it does not exist. The bytes come from
// third parties: the headers keep browsers from running them.
func (h *Handler) artifact(w http.ResponseWriter, r *http.Request, who policy.Principal, _ identity.Credential) {
	found, file, err := h.opts.Artifacts.Get(r.Context(), who, strings.TrimPrefix(r.URL.Path, artifactPath))
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		h.refuse(w, problem{http.StatusNotFound, "ARTIFACT_NOT_FOUND", "there is no such artifact, or it is not yours to see"})
		return
	case err != nil:
		h.broken(w, err)
		return
	}
	defer file.Close()
	head := w.Header()
	head.Set("Content-Type", cmp.Or(found.Type, artifact.OctetStream)) // otherwise net/http would guess
	head.Set("Content-Disposition", "attachment")
	head.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "private, no-cache") // the grant is checked each time
	head.Set("Etag", `"`+found.ID+`"`)
	paced := &pacedWriter{ResponseWriter: w, h: h, rc: http.NewResponseController(w)}
	http.ServeContent(paced, r, "", found.Created, file)
	_ = paced.rc.Flush()                       // under the deadline, not after it
	_ = paced.rc.SetWriteDeadline(time.Time{}) // for the next request of the connection
}

// pacedWriter drops a reader that reads nothing for IOTimeout, and replaces the
// refusal of http.ServeContent by problem details.
type pacedWriter struct {
	http.ResponseWriter
	h       *Handler
	rc      *http.ResponseController
	refused bool // the refusal has been sent
}

// Unwrap lets http.ResponseController reach the connection.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteHeader sends the status, or the whole answer to an invalid range.
func (p *pacedWriter) WriteHeader(status int) {
	if status != http.StatusRequestedRangeNotSatisfiable {
		p.ResponseWriter.WriteHeader(status)
		return
	}
	p.refused = true
	p.h.refuse(p.ResponseWriter, problem{status, "RANGE_NOT_SATISFIABLE", "the artifact is shorter than that"})
}

// Write sends one piece, within IOTimeout.
func (p *pacedWriter) Write(piece []byte) (int, error) {
	if p.refused {
		return len(piece), nil
	}
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.h.opts.IOTimeout)) // a writer without deadlines has no network
	return p.ResponseWriter.Write(piece)
}

// signals streams the signals of who's own calls as server-sent events until
// the client disconnects, is too slow or is no longer authenticated, or the
// handler closes. A reader that is too slow is notified and dropped: no call
// waits for a reader.
func (h *Handler) signals(w http.ResponseWriter, r *http.Request, who policy.Principal, shown identity.Credential) {
	if !h.reads(w, r, wire.EventType) {
		return
	}
	sub, err := h.opts.Bus.Subscribe(who)
	if err != nil {
		h.refuseStream(w, err)
		return
	}
	defer sub.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.streams, cancel)()
	s := &stream{h: h, w: w, rc: http.NewResponseController(w), credential: shown, who: who}
	s.run(ctx, sub)
}

// refuseStream refuses a listener with the error of the bus.
func (h *Handler) refuseStream(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, bus.ErrTooMany):
		h.refuse(w, problem{http.StatusTooManyRequests, string(wire.Overloaded), "too many event streams are open"})
	case errors.Is(err, bus.ErrClosed):
		h.refuse(w, shuttingDown)
	default:
		h.broken(w, err)
	}
}

// stream is one open event stream. One goroutine uses it.
type stream struct {
	h          *Handler
	w          http.ResponseWriter
	rc         *http.ResponseController
	credential identity.Credential
	who        policy.Principal
}

// run writes events and heartbeats until the stream ends.
func (s *stream) run(ctx context.Context, sub *bus.Subscription) {
	head := s.w.Header()
	head["Content-Type"], head["Cache-Control"] = wire.EventType, wire.NoStore
	head.Set("X-Accel-Buffering", "no") // proxies must not buffer events
	s.w.WriteHeader(http.StatusOK)
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }() // for the next request of the connection
	if s.send([]byte(": listening\n\n")) != nil {             // the header shows the client that the stream is open
		return
	}
	asked := time.Now()
	for {
		n, err := s.next(ctx, sub)
		if ctx.Err() != nil {
			return
		}
		if time.Since(asked) >= s.h.opts.Heartbeat {
			if !s.stillKnown(ctx) {
				return
			}
			asked = time.Now()
		}
		switch {
		case err == nil:
			err = s.send(event(n))
		case errors.Is(err, context.DeadlineExceeded):
			err = s.send([]byte(": heartbeat\n\n"))
		case errors.Is(err, bus.ErrDropped):
			_ = s.send([]byte(dropped)) // the stream ends in any case
		}
		if err != nil {
			return
		}
	}
}

// dropped is the last event of a reader that was too slow.
const dropped = "event: dropped\ndata: {\"reason\":\"signals came faster than they were read; the ones after the last event are lost\"}\n\n"

// next waits for a signal, for at most one heartbeat.
func (s *stream) next(ctx context.Context, sub *bus.Subscription) (signal.JSONRPCNotification, error) {
	ctx, stop := context.WithTimeout(ctx, s.h.opts.Heartbeat)
	defer stop()
	return sub.Next(ctx)
}

// stillKnown reports whether the credential of the stream still authenticates
// the same principal. A revoked or expired token ends the stream.
func (s *stream) stillKnown(ctx context.Context) bool {
	who, failure := s.h.opts.Gate.Identify(ctx, s.credential)
	return failure == nil && who.Subject == s.who.Subject && who.Tenant == s.who.Tenant
}

// send writes one piece of the stream, within IOTimeout.
func (s *stream) send(piece []byte) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.h.opts.IOTimeout)) // a writer without deadlines has no network
	if _, err := s.w.Write(piece); err != nil {
		return err
	}
	return s.rc.Flush()
}

// event returns a notification as a server-sent event with the id of its
// signal.
func event(n signal.JSONRPCNotification) []byte {
	message := jsonrpc.NewNotification(n.Method, n.Params)
	out := make([]byte, 0, len(message)+80)
	if id, ok := jsonrpc.TextAt(n.Params, "signal", "id"); ok {
		out = append(append(append(out, "id: "...), id...), '\n')
	}
	out = append(out, "event: signal\ndata: "...)
	out = append(out, jsonrpc.OneLine(message)...)
	return append(out, "\n\n"...)
}
