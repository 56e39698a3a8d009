package mcp

import "net/http"

// headerLast names the last event that a client has had, in canonical form.
const headerLast = "Last-Event-Id"

// listen serves the event stream of a session, or the one that Last-Event-ID
// continues, until the client goes, the session ends, a newer stream takes
// over, a write takes too long or the door closes.
func (d *Door) listen(w http.ResponseWriter, r *http.Request, route string) {
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	s, ok := d.requestedSession(w, r, route)
	if !ok {
		return
	}
	defer func() { s.touch(d.opts.Now()) }()
	last := r.Header[headerLast]
	if len(last) == 0 {
		d.follow(w, r, s, d.events.open(s, false))
		return
	}
	rd, how := d.events.resume(s, last)
	switch how {
	case unknown:
		problem(w, http.StatusBadRequest, "Last-Event-ID is none that can be continued: it is not of this session, or too old")
	case drained:
		w.WriteHeader(http.StatusNoContent) // by which event streams say: do not come back
	default:
		d.follow(w, r, s, rd)
	}
}

// follow sends what rd reads. Only the stream that belongs to no call ends with
// its session.
func (d *Door) follow(w http.ResponseWriter, r *http.Request, s *session, rd *reader) {
	defer rd.detach()
	c := connection{w: w, rc: http.NewResponseController(w), client: r.Context(), wake: s.changes.wake, flush: s.flushChanges}
	if !rd.stream.call {
		stream := s.openStream()
		if stream == nil {
			problem(w, http.StatusNotFound, "the session has ended")
			return
		}
		defer s.closeStream(stream)
		c.end = stream
	}
	beginEvents(w)
	_ = c.rc.Flush() // the head tells the client that it is being heard
	d.pump(c, rd)
}
