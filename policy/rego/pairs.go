package rego

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/toolgate/toolgate/policy"
)

// pairs remembers at most size pairs, the most recently used ones. A pair is
// found by hash and compared whole in everything the policy can tell apart, so
// that two alike hashes cost an evaluation and never mix up decisions.
type pairs struct {
	seed  maphash.Seed
	reads reads
	size  int

	mu     sync.Mutex // protects the fields below
	slots  map[uint64]*slot
	recent slot // root of a ring: next is the least recently used
}

type slot struct {
	hash       uint64
	pair       *pair
	prev, next *slot
}

func newPairs(size int, r reads) *pairs {
	c := &pairs{seed: maphash.MakeSeed(), reads: r, size: size, slots: make(map[uint64]*slot)}
	c.recent.prev, c.recent.next = &c.recent, &c.recent
	return c
}

func (c *pairs) hash(p *policy.Principal, t *policy.Tool) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	write := func(s string) {
		h.WriteString(s)
		h.WriteByte(0)
	}
	if c.reads.subject {
		write(p.Subject)
	}
	if c.reads.client {
		write(p.Client)
	}
	if c.reads.tenant {
		write(p.Tenant)
	}
	if c.reads.roles {
		for _, r := range p.Roles {
			write(r)
		}
	}
	write(t.Server)
	write(t.Exposed)
	write(t.Fingerprint)
	return h.Sum64()
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

func (c *pairs) put(hash uint64, k *pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[hash]
	switch {
	case s != nil:
		s.unlink()
	case len(c.slots) >= c.size:
		s = c.recent.next
		s.unlink()
		delete(c.slots, s.hash)
	default:
		s = new(slot)
	}
	s.hash, s.pair = hash, k
	c.slots[hash] = s
	s.linkBefore(&c.recent)
}

func (s *slot) unlink() { s.prev.next, s.next.prev = s.next, s.prev }

func (s *slot) linkBefore(at *slot) {
	s.prev, s.next = at.prev, at
	at.prev.next, at.prev = s, s
}

func clonePrincipal(p *policy.Principal) policy.Principal {
	out := *p
	out.Roles = slices.Clone(p.Roles)
	return out
}

func cloneTool(t *policy.Tool) policy.Tool {
	out := *t
	out.Annotations = bytes.Clone(t.Annotations)
	return out
}
