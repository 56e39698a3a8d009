package websearch

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/tools/search"
)

// Bounds of a cache.
const (
	maxEntries = 1000
	maxBytes   = 4 << 20
)

// cache keeps results until they are too old, and the most recently used of them. It is
// safe for concurrent use. The zero value keeps nothing.
type cache struct {
	age time.Duration

	mu      sync.Mutex // protects the fields below
	entries map[string]*list.Element
	order   list.List // of *entry, the most recently used first
	bytes   int
}

type entry struct {
	key     string
	results []search.Result
	bytes   int
	until   time.Time
}

func (c *cache) get(key string, now time.Time) ([]search.Result, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.entries[key]
	if !ok {
		return nil, false
	}
	if !now.Before(at.Value.(*entry).until) {
		c.removeLocked(at)
		return nil, false
	}
	c.order.MoveToFront(at)
	return slices.Clone(at.Value.(*entry).results), true
}

func (c *cache) put(key string, results []search.Result, now time.Time) {
	if c.age <= 0 {
		return
	}
	e := &entry{key: key, results: slices.Clone(results), bytes: len(key), until: now.Add(c.age)}
	for _, r := range results {
		e.bytes += len(r.ID) + len(r.Title) + len(r.URL) + len(r.Snippet) + len(r.Source) + 128
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]*list.Element{}
	}
	if old, ok := c.entries[key]; ok {
		c.removeLocked(old)
	}
	c.entries[key] = c.order.PushFront(e)
	for c.bytes += e.bytes; c.bytes > maxBytes || len(c.entries) > maxEntries; {
		c.removeLocked(c.order.Back())
	}
}

func (c *cache) removeLocked(at *list.Element) {
	e := c.order.Remove(at).(*entry)
	delete(c.entries, e.key)
	c.bytes -= e.bytes
}
