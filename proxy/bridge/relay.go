package bridge

import (
	"bytes"
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// message is one message of the endpoint, as far as the bridge must understand
// it. It is read loosely: what the endpoint may say to its client is not the
// bridge's to judge.
type message struct {
	line    []byte          // as it came, but on one line
	method  string          // "" in answers
	id      json.RawMessage // nil for none and null
	result  json.RawMessage // of an answer
	failure json.RawMessage // the error object of an answer
}

// read gives the messages of one JSON text: several in a batch, which only
// 2025-03-26 has. It reports false for what is no JSON or holds no messages.
func read(data []byte) ([]message, bool) {
	if !json.Valid(data) {
		return nil, false
	}
	line := bytes.TrimSpace(data)
	if bytes.ContainsAny(line, "\r\n") { // between tokens only, or it would not be valid
		line = bytes.Clone(line)
		for i, c := range line {
			if c == '\r' || c == '\n' {
				line[i] = ' '
			}
		}
	}
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

// relay passes on what one event or body holds; f is the request that it came
// for, nil for none.
func (t *talk) relay(f *flight, data []byte) {
	all, ok := read(data)
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

// claim finds the request that the answer m is for and frees its id before the
// client can use it again. It reports false for an answer that nobody waits
// for: a stream that is taken up again may repeat itself.
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
		t.establish(f, m.result)
	case f.method == "tools/list" && f.era.modern:
		t.learn(m.result)
	}
	return true
}
