package schema

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
)

// maxCached bounds a Cache; upstreams with more distinct schemas than this
// only lose the saving.
const maxCached = 4096

// Cache compiles each distinct text once. It is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex // protects the fields below
	known map[[sha256.Size]byte]entry
}

// entry is what Compile gave.
type entry struct {
	schema *Schema
	err    error
}

// NewCache makes an empty cache.
func NewCache() *Cache { return &Cache{known: map[[sha256.Size]byte]entry{}} }

// Compile is the function of that name, remembered by the SHA-256 of raw;
// refusals are remembered too.
func (c *Cache) Compile(raw json.RawMessage) (*Schema, error) {
	key := sha256.Sum256(raw)
	if e, ok := c.lookup(key); ok {
		return e.schema, e.err
	}
	s, err := Compile(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxCached {
		clear(c.known)
	}
	c.known[key] = entry{s, err}
	return s, err
}

func (c *Cache) lookup(key [sha256.Size]byte) (entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.known[key]
	return e, ok
}
