package websearch

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/toolgate/toolgate/tools/search"
)

// Bounds of a cache.
const (
	maxEntries = 1000
	maxBytes   = 4 << 20
)

// cache keeps results until they are too old, and the most recently used of them. It is
// safe for concurrent use.
type cache struct {
	age time.Duration // 0 = nothing is kept

	mu    sync.Mutex // protects the fields below
	lru   *simplelru.LRU[string, entry]
	bytes int
}

type entry struct {
	results []search.Result
	bytes   int
	until   time.Time
}

func newCache(age time.Duration) *cache {
	c := &cache{age: age}
	c.lru, _ = simplelru.NewLRU(maxEntries, func(_ string, e entry) { c.bytes -= e.bytes }) // fails only for a size below 1
	return c
}

func (c *cache) get(key string, now time.Time) ([]search.Result, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.lru.Get(key)
	if ok && !now.Before(e.until) {
		c.lru.Remove(key)
		ok = false
	}
	if !ok {
		return nil, false
	}
	return slices.Clone(e.results), true
}

func (c *cache) put(key string, results []search.Result, now time.Time) {
	if c.age <= 0 {
		return
	}
	e := entry{results: slices.Clone(results), bytes: len(key), until: now.Add(c.age)}
	for _, r := range results {
		e.bytes += len(r.ID) + len(r.Title) + len(r.URL) + len(r.Snippet) + len(r.Source) + 128
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(key)
	c.lru.Add(key, e)
	for c.bytes += e.bytes; c.bytes > maxBytes; {
		c.lru.RemoveOldest()
	}
}
