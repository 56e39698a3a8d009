package jsonrpc

import (
	"encoding/json"
	"sync"
)

// Pool holds values by JSON-RPC id: requests that wait for their responses, or
// responses that wait to be asked for (seed 000, match_response_to_request).
// Ids are compared as Key does. The zero Pool is empty and ready; a Pool is
// safe for concurrent use and must not be copied after first use.
type Pool[T any] struct {
	mu    sync.Mutex // protects the fields below
	byKey map[string]T
}

// Put adds v under id. It reports false, and changes nothing, when id is no
// valid id or is taken: two requests with one id could not be told apart.
func (p *Pool[T]) Put(id json.RawMessage, v T) bool {
	key := Key(id)
	if key == "" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.byKey[key]; taken {
		return false
	}
	if p.byKey == nil {
		p.byKey = make(map[string]T)
	}
	p.byKey[key] = v
	return true
}

// Match removes the value of id that ok accepts, any value where ok is nil. It
// reports false when there is none, or not yet. ok must not call back into p.
func (p *Pool[T]) Match(id json.RawMessage, ok func(T) bool) (T, bool) {
	key := Key(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	v, found := p.byKey[key]
	if !found || ok != nil && !ok(v) {
		var none T
		return none, false
	}
	delete(p.byKey, key)
	return v, true
}

// Peek gives the value of id and leaves it where it is.
func (p *Pool[T]) Peek(id json.RawMessage) (T, bool) {
	key := Key(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	v, found := p.byKey[key]
	return v, found
}

// Len returns how many values wait.
func (p *Pool[T]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byKey)
}
