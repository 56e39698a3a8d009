package rego

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

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

// newPair returns the pair of copies of p and t.
func newPair(p *policy.Principal, t *policy.Tool) (k *pair, err error) {
	k = &pair{principal: *p, tool: *t}
	k.principal.Roles, k.tool.Annotations = append([]string{}, p.Roles...), bytes.Clone(t.Annotations)
	if k.principalTerm, err = termOf(k.principal, topdown.NewCancel()); err == nil {
		k.toolTerm, err = termOf(k.tool, topdown.NewCancel())
	}
	return k, err
}

// pairs is a cache of at most size pairs, in two generations: when the young
// one is full, it becomes the old one and the old one is dropped. Pairs are found
// by a hash of everything that the policy can tell apart, and then compared, so
// that equal hashes cost an evaluation and never mix up decisions. It is safe for
// concurrent use.
//
// A policy that reads input.principal.client makes the key something that
// callers choose. One principal then adds at most an ownerShare of a generation;
// its other pairs are evaluated whole at every call, so that no caller can flush
// what is known of others.
type pairs struct {
	seed  maphash.Seed
	reads reads
	size  int

	mu         sync.Mutex // protects the fields below
	young, old map[uint64]*pair
	owners     map[uint64]int // :: principal without client ⇒ its young pairs; only where the policy reads the client
}

const ownerShare = 8

func newPairs(size int, r reads) *pairs {
	return &pairs{seed: maphash.MakeSeed(), reads: r, size: size, young: make(map[uint64]*pair), owners: make(map[uint64]int)}
}

// find returns the pair of p and t, from the cache or made.
func (c *pairs) find(p *policy.Principal, t *policy.Tool) (*pair, error) {
	var h maphash.Hash
	h.SetSeed(c.seed)
	parts := [...]string{t.Server, t.Exposed, t.Fingerprint, "", "", ""}
	if c.reads.subject {
		parts[3] = p.Subject
	}
	if c.reads.client {
		parts[4] = p.Client
	}
	if c.reads.tenant {
		parts[5] = p.Tenant
	}
	for _, s := range parts {
		_, _ = h.WriteString(s) // never fails
		_ = h.WriteByte(0)
	}
	if c.reads.roles {
		for _, r := range p.Roles {
			_, _ = h.WriteString(r)
			_ = h.WriteByte(0)
		}
	}
	hash := h.Sum64()
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.young[hash]; known != nil && c.same(known, p, t) {
		return known, nil
	}
	if known := c.old[hash]; known != nil && c.same(known, p, t) {
		c.add(hash, known)
		return known, nil
	}
	known, err := newPair(p, t)
	if err != nil {
		return nil, err
	}
	known.forgotten = !c.add(hash, known)
	return known, nil
}

// add makes k young, unless its owner has its share. The caller must hold c.mu.
func (c *pairs) add(hash uint64, k *pair) bool {
	generation := max(1, c.size/2)
	if len(c.young) >= generation {
		c.young, c.old = make(map[uint64]*pair), c.young
		clear(c.owners)
	}
	if c.reads.client {
		owner := maphash.String(c.seed, k.principal.Subject+"\x00"+k.principal.Tenant)
		if c.owners[owner] >= max(1, generation/ownerShare) {
			return false
		}
		c.owners[owner]++
	}
	c.young[hash] = k
	return true
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
