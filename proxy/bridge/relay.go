package bridge

import (
	"bytes"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// A message is one message of the endpoint, read only as far as the bridge must
// understand it.
type message struct {
	line    []byte          // as it came, but on one line
	method  string          // "" in answers
	id      json.RawMessage // nil for none and null
	result  json.RawMessage // of an answer
	failure json.RawMessage // the error object of an answer
}

// readMessages returns the messages of one JSON text: several for a batch,
// which only 2025-03-26 has. It reports false for text that is not JSON or
// holds no messages.
func readMessages(data []byte) ([]message, bool) {
	if !json.Valid(data) {
		return nil, false
	}
	line := jsonrpc.OneLine(bytes.TrimSpace(data))
	if line[0] != '[' {
		m, ok := readOne(line)
		return []message{m}, ok
	}
	var all []message
	for part := range jsonrpc.Elements(line) {
		m, ok := readOne(part)
		if !ok {
			return nil, false
		}
		all = append(all, m)
	}
	return all, len(all) > 0
}

func readOne(line []byte) (message, bool) {
	m := message{line: line}
	raw, _ := jsonrpc.Get(line, "method")
	m.method, _ = jsonrpc.Text(raw)
	m.id, _ = jsonrpc.Get(line, "id")
	if string(m.id) == "null" {
		m.id = nil
	}
	if m.method == "" {
		m.result, _ = jsonrpc.Get(line, "result")
		m.failure, _ = jsonrpc.Get(line, "error")
	}
	if len(m.failure) > 0 && m.failure[0] != '{' {
		m.failure = nil
	}
	return m, m.method != "" || m.result != nil || m.failure != nil
}

// relay passes on the messages of one event or body. They came in answer to f,
// nil for none.
func (t *talk) relay(f *flight, data []byte) {
	all, ok := readMessages(data)
	if !ok {
		t.log.Warn("the endpoint sent what is no message", "bytes", len(data))
		return
	}
	for _, m := range all {
		if m.method != "" || t.claim(f, m) {
			t.out.Send(m.line)
		}
	}
}

// claim settles the request that m answers, before the client can use its id
// again. It reports false for an answer that nobody waits for, because a
// continued stream may repeat itself.
func (t *talk) claim(from *flight, m message) bool {
	t.mu.Lock()
	f := t.flights[jsonrpc.Key(m.id)]
	if f == nil || f.answered {
		t.mu.Unlock()
		t.log.Debug("the endpoint answered what was not asked, or not any more")
		return false
	}
	f.answered = true
	t.dropLocked(f)
	t.mu.Unlock()
	if f != from {
		f.cancel() // its own exchange has nothing to wait for
	}
	switch {
	case m.result == nil:
	case f.method == "initialize":
		t.establishSession(f, m.result)
	case f.method == "tools/list" && f.era.stateless:
		t.learnParameters(m.result)
	}
	return true
}
