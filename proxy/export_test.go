package proxy

import (
	"maps"
	"slices"
)

// The tables, for the test that holds them to the specification.

func Methods() []string {
	return append(slices.Sorted(maps.Keys(methods)), slices.Sorted(maps.Keys(lists))...)
}
func Questions() []string     { return slices.Sorted(maps.Keys(questions)) }
func ClientNotices() []string { return slices.Sorted(maps.Keys(clientNotices)) }
func ServerNotices() []string { return slices.Sorted(maps.Keys(serverNotices)) }

// Free gives the methods that cost no quota, lists but for that of tasks aside.
func Free() map[string]bool {
	out := map[string]bool{}
	for _, table := range []map[string]method{methods, lists, questions} {
		for name, m := range table {
			if m.free {
				out[name] = true
			}
		}
	}
	return out
}

const MaxListingBytes = maxListingBytes

// KeptListBytes is what the kept lists are counted at.
func (g *Gate) KeptListBytes() int {
	g.listings.mu.Lock()
	defer g.listings.mu.Unlock()
	return g.listings.bytes
}
