package mcp

import (
	"encoding/json"
	"time"
)

// Canonical is canonical.
func Canonical(value json.RawMessage) string { return string(canonical(value)) }

// Idle is how many parties have no work.
func (d *Door) Idle() int {
	d.stateless.groups.mu.Lock()
	defer d.stateless.groups.mu.Unlock()
	idle := 0
	for _, g := range d.stateless.groups.byKey {
		if !g.busy(false) {
			idle++
		}
	}
	return idle
}

// MaxNamed is maxNamed.
const MaxNamed = maxNamed

// Within is within.
func Within(uri, own string) bool { return within(uri, own) }

// Notary is a notary, with claims as their parts.
type Notary struct{ n *stateSigner }

// NewNotary makes a Notary with a key of its own.
func NewNotary() Notary { return Notary{newStateSigner(nil)} }

// Sign spells a claim.
func (n Notary) Sign(call [16]byte, round uint32, until time.Time, binding [32]byte) string {
	return n.n.sign(claim{Call: call, Round: round, Until: until.UnixMilli(), Binding: binding})
}

// Read reads a claim back.
func (n Notary) Read(text string) (call [16]byte, round uint32, until time.Time, binding [32]byte, err error) {
	c, err := n.n.read(text)
	if err == nil {
		until = time.UnixMilli(c.Until)
	}
	return c.Call, c.Round, until, c.Binding, err
}

// RereadRecord reads the record of a session and writes it again.
func RereadRecord(data []byte) ([]byte, bool) {
	s := sessionOf(data)
	if s == nil {
		return nil, false
	}
	return s.record(), true
}
