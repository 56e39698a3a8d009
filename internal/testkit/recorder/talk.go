package recorder

import (
	"encoding/json"
	"strconv"
	"strings"
)

// isRequest reports whether a message needs an answer.
func isRequest(body []byte) bool {
	var msg message
	return json.Unmarshal(body, &msg) != nil || msg.ID != nil && msg.Method != ""
}

// hear records a notification or an answer, and reports whether msg is a request.
func (e *engine) hear(session string, msg message) bool {
	switch {
	case msg.Method == "" && msg.ID != nil:
		e.come("answer " + session + " " + string(msg.ID))
	case msg.Method == "notifications/cancelled":
		var params struct{ RequestID json.RawMessage }
		_ = json.Unmarshal(msg.Params, &params) // only an object has members
		e.come("cancelled " + session + " " + string(params.RequestID))
	case msg.Method == "notifications/initialized" && e.cfg.OnInitialized != nil:
		go e.performOnInitialized(session)
	}
	return msg.Method != "" && msg.ID != nil
}

// come marks an event as having happened, before or after it is awaited.
func (e *engine) come(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.awaitedLocked(what)
	select {
	case <-c:
	default:
		close(c)
	}
}

// await waits until an event has happened.
func (e *engine) await(what string) {
	e.mu.Lock()
	c := e.awaitedLocked(what)
	e.mu.Unlock()
	select {
	case <-c:
	case <-e.stop:
	}
}

func (e *engine) awaitedLocked(what string) chan struct{} {
	c := e.awaited[what]
	if c == nil {
		c = make(chan struct{})
		e.awaited[what] = c
	}
	return c
}

// performOnInitialized performs the actions OnInitialized.
func (e *engine) performOnInitialized(session string) {
	if session != "" {
		e.await("stream " + session)
	}
	e.talk(session, message{}, callParams{}, e.cfg.OnInitialized, func(m string) { e.apart(session, m) })
}

// talk performs lines.
func (e *engine) talk(session string, msg message, params callParams, lines []string, send func(string)) {
	e.mu.Lock()
	e.seq++
	seq := strconv.Itoa(e.seq)
	e.mu.Unlock()
	fill := strings.NewReplacer("CALL", string(msg.ID), "TOKEN", string(params.Meta.Token), "ARGS", string(params.Arguments), "SEQ", seq)
	for _, line := range lines {
		line = fill.Replace(line)
		if line == "await cancelled" {
			e.await("cancelled " + session + " " + string(msg.ID))
		} else if id, ok := strings.CutPrefix(line, "await "); ok {
			e.await("answer " + session + " " + id)
		} else if apart, ok := strings.CutPrefix(line, "apart "); ok {
			e.apart(session, apart)
		} else {
			send(line)
		}
	}
}

// apart sends a message on the GET streams of a session.
func (h *httpServer) apart(session, message string) {
	h.engine.await("stream " + session)
	h.mu.Lock()
	defer h.mu.Unlock()
	for w, of := range h.streams {
		if of == session {
			w <- message
		}
	}
}

// offers returns the capabilities in the answer to initialize, and stores the
// client's.
func (e *engine) offers(session string, msg message) string {
	var params struct{ Capabilities json.RawMessage }
	_ = json.Unmarshal(msg.Params, &params) // only an object has capabilities
	e.mu.Lock()
	defer e.mu.Unlock()
	e.can[session] = params.Capabilities
	if e.cfg.Capabilities != nil {
		return string(e.cfg.Capabilities)
	}
	return `{"tools":{"listChanged":true}}`
}

// visibleLocked returns the tools that a client sees.
func (e *engine) visibleLocked(session string) []Tool {
	var can map[string]json.RawMessage
	_ = json.Unmarshal(e.can[session], &can) // a client without capabilities has none
	var out []Tool
	for _, t := range e.tools {
		if t.Needs == "" || can[t.Needs] != nil {
			out = append(out, t)
		}
	}
	return out
}
