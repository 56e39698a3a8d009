package mcp

import (
	"net/http"
	"time"
)

// listen serves the event stream of a session until the client goes, the
// session ends, a newer stream takes over, a write takes too long or the door
// closes. It holds no queue: at most one change is waiting to be told.
func (d *Door) listen(w http.ResponseWriter, r *http.Request, route string) {
	if _, events := accepts(r.Header); !events {
		problem(w, http.StatusNotAcceptable, "accept text/event-stream")
		return
	}
	s, ok := d.own(w, r, route)
	if !ok {
		return
	}
	stream := s.openStream()
	if stream == nil {
		problem(w, http.StatusNotFound, "the session has ended")
		return
	}
	defer s.closeStream(stream)
	defer d.sessions.touch(s)
	rc := http.NewResponseController(w)
	beginEvents(w)
	_ = rc.Flush() // the head tells the client that it is being heard
	d.stream(w, r, s, stream)
}

// stream writes events and heartbeats.
func (d *Door) stream(w http.ResponseWriter, r *http.Request, s *session, stream chan struct{}) {
	rc := http.NewResponseController(w)
	beat := time.NewTicker(d.opts.Heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case <-d.streams:
			return
		case <-stream:
			return
		case <-s.wake:
			_ = rc.SetWriteDeadline(time.Now().Add(d.opts.IOTimeout)) // a writer without deadlines has no network
			err = writeEvent(w, rc, d.changed)
		case <-beat.C:
			_ = rc.SetWriteDeadline(time.Now().Add(d.opts.IOTimeout)) // as above
			err = writeComment(w, rc)
		}
		if err != nil {
			return
		}
	}
}

// writeComment keeps a silent stream alive.
func writeComment(w http.ResponseWriter, rc *http.ResponseController) error {
	if _, err := w.Write([]byte(": heartbeat\n\n")); err != nil {
		return err
	}
	return rc.Flush()
}
