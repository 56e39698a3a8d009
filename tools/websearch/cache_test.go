package websearch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/tools/search"
)

// The cache keeps at most maxEntries searches and maxBytes bytes, and drops the least recently used.
func TestCacheIsBounded(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct{ size, keeps int }{"searches": {1, maxEntries}, "bytes": {64 << 10, maxBytes / (64<<10 + 200)}} {
		kept := newCache(time.Hour)
		results := []search.Result{{Snippet: strings.Repeat("x", c.size)}}
		for i := range 2 * maxEntries {
			kept.put(fmt.Sprint(i), results, now)
			kept.put(fmt.Sprint(i), results, now) // in place of itself
			if _, ok := kept.get("0", now); !ok {
				t.Fatalf("%s: what was used last is lost after %d", name, i)
			}
		}
		if n := kept.lru.Len(); n < c.keeps-2 || n > c.keeps+2 || kept.bytes > maxBytes {
			t.Errorf("%s: %d searches of %d bytes are kept, want about %d", name, n, kept.bytes, c.keeps)
		}
		for _, key := range kept.lru.Keys() {
			kept.lru.Remove(key)
		}
		if kept.bytes != 0 {
			t.Errorf("%s: %d bytes are counted in an empty cache", name, kept.bytes)
		}
	}
	none := newCache(0)
	if none.put("x", nil, now); none.lru.Len() != 0 {
		t.Error("a cache without an age keeps results")
	}
}
