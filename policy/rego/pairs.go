package rego

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/toolgate/toolgate/policy"
)

// pair is one principal and one tool, with what is known of them before any
// call. Its fields are written before it is shared; the atomic ones once each.
type pair struct {
	principal     policy.Principal
	tool          policy.Tool
	principalTerm *ast.Term
	toolTerm      *ast.Term
	constant      atomic.Pointer[constant] // nil = nobody has looked
	shown         atomic.Pointer[bool]     // the answer of Visible; nil = nobody has asked
	forgotten     bool                     // it is not in the cache: nothing found is of use later
}

// pairs is a cache of at most size pairs that drops the least recently used
// one. Pairs are found by a hash of everything that the policy can tell apart,
// and then compared, so that equal hashes cost an evaluation and never mix up
// decisions. It is safe for concurrent use.
//
// A policy that reads input.principal.client makes the key something that
// callers choose. One principal then holds at most size/ownerShare pairs;
// others of that principal are evaluated whole at every call, so that no caller
// can flush what is known of others.
type pairs struct {
	seed  maphash.Seed
	reads reads
	size  int

	mu     sync.Mutex // protects the fields below
	slots  map[uint64]*slot
	owners map[uint64]int // :: principal without client ⇒ its slots; only where the policy reads the client
	recent slot           // root of a ring: next is the least recently used
}

const ownerShare = 8

type slot struct {
	hash, owner uint64
	pair        *pair
	prev, next  *slot
}

func newPairs(size int, r reads) *pairs {
	c := &pairs{seed: maphash.MakeSeed(), reads: r, size: size, slots: make(map[uint64]*slot), owners: make(map[uint64]int)}
	c.recent.prev, c.recent.next = &c.recent, &c.recent
	return c
}

// find returns the pair of p and t, from the cache or made.
func (c *pairs) find(p *policy.Principal, t *policy.Tool) (*pair, error) {
	hash := c.hash(p, t)
	if known := c.get(hash, p, t); known != nil {
		return known, nil
	}
	known := &pair{principal: *p, tool: *t, principalTerm: principalTerm(p)}
	known.principal.Roles, known.tool.Annotations = slices.Clone(p.Roles), bytes.Clone(t.Annotations)
	var err error
	if known.toolTerm, err = toolTerm(t); err != nil {
		return nil, err
	}
	known.forgotten = !c.put(hash, c.owner(p), known)
	return known, nil
}

func (c *pairs) hash(p *policy.Principal, t *policy.Tool) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	if c.reads.subject {
		writePart(&h, p.Subject)
	}
	if c.reads.client {
		writePart(&h, p.Client)
	}
	if c.reads.tenant {
		writePart(&h, p.Tenant)
	}
	if c.reads.roles {
		for _, r := range p.Roles {
			writePart(&h, r)
		}
	}
	writePart(&h, t.Server)
	writePart(&h, t.Exposed)
	writePart(&h, t.Fingerprint)
	return h.Sum64()
}

// owner is the hash of what identity says of p.
func (c *pairs) owner(p *policy.Principal) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	writePart(&h, p.Subject)
	writePart(&h, p.Tenant)
	return h.Sum64()
}

func writePart(h *maphash.Hash, s string) {
	_, _ = h.WriteString(s) // never fails
	_ = h.WriteByte(0)
}

// same reports whether k answers for p and t.
func (c *pairs) same(k *pair, p *policy.Principal, t *policy.Tool) bool {
	return (!c.reads.subject || k.principal.Subject == p.Subject) &&
		(!c.reads.client || k.principal.Client == p.Client) &&
		(!c.reads.tenant || k.principal.Tenant == p.Tenant) &&
		(!c.reads.roles || slices.Equal(k.principal.Roles, p.Roles)) &&
		k.tool.Server == t.Server && k.tool.Name == t.Name && k.tool.Exposed == t.Exposed &&
		k.tool.Risk == t.Risk && k.tool.Fingerprint == t.Fingerprint &&
		bytes.Equal(k.tool.Annotations, t.Annotations)
}

func (c *pairs) get(hash uint64, p *policy.Principal, t *policy.Tool) *pair {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[hash]
	if s == nil || !c.same(s.pair, p, t) {
		return nil
	}
	s.unlink()
	s.linkBefore(&c.recent)
	return s.pair
}

// put adds k unless its owner has its share.
func (c *pairs) put(hash, owner uint64, k *pair) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads.client && c.owners[owner] >= max(1, c.size/ownerShare) {
		return false
	}
	if s := c.slots[hash]; s != nil {
		c.drop(s)
	}
	if len(c.slots) >= c.size {
		c.drop(c.recent.next)
	}
	s := &slot{hash: hash, owner: owner, pair: k}
	c.slots[hash] = s
	s.linkBefore(&c.recent)
	if c.reads.client {
		c.owners[owner]++
	}
	return true
}

// drop removes a slot; the caller must hold c.mu.
func (c *pairs) drop(s *slot) {
	s.unlink()
	delete(c.slots, s.hash)
	if c.owners[s.owner]--; c.owners[s.owner] <= 0 {
		delete(c.owners, s.owner)
	}
}

func (s *slot) unlink() { s.prev.next, s.next.prev = s.next, s.prev }

func (s *slot) linkBefore(at *slot) {
	s.prev, s.next = at.prev, at
	at.prev.next, at.prev = s, s
}
