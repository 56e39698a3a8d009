package rego

import (
	"context"
	"encoding/json"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// LoadUntried is Load without the trial on samples.
func LoadUntried(ctx context.Context, o Options) (*Engine, error) { return build(ctx, o) }

// DecideFully is Decide without what was worked out before the call.
func (e *Engine) DecideFully(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	known := &pair{principalTerm: principalTerm(&in.Principal)}
	var err error
	if known.toolTerm, err = toolTerm(&in.Tool); err != nil {
		return e.failed(err)
	}
	d, err := e.evaluate(ctx, in, known)
	return e.close(d, err)
}

// Constant reports whether the verdict on p and t was worked out once for all calls.
func (e *Engine) Constant(ctx context.Context, p policy.Principal, t policy.Tool) bool {
	known, err := e.pair(ctx, &p, &t)
	return err == nil && known.verdict != nil
}

// Remembered is the number of pairs in memory.
func (e *Engine) Remembered() int {
	e.pairs.mu.Lock()
	defer e.pairs.mu.Unlock()
	return len(e.pairs.slots)
}

// Bounded runs f as an evaluation.
func (e *Engine) Bounded(ctx context.Context, f func()) error {
	return e.bounded(ctx, func(topdown.Cancel) error { f(); return nil })
}

// RoundTrip parses one JSON value as arguments are parsed and writes it again.
func RoundTrip(raw json.RawMessage) (json.RawMessage, error) {
	t, err := parseJSON(raw)
	if err != nil {
		return nil, err
	}
	v, err := ast.ValueToInterface(t.Value, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// ReadTable gives the inputs of a decision table.
func ReadTable(content []byte) ([]*policy.Input, error) {
	cases, err := readTable(content)
	var out []*policy.Input
	for _, c := range cases {
		out = append(out, c.input)
	}
	return out, err
}

// Served says what a call is decided by.
type Served string

// The ways to a decision of a call.
const (
	ByMemory        Served = "memory"
	ByTree          Served = "tree"
	ByTreeThenWhole Served = "tree, then whole" // the tree could not answer
	Whole           Served = "whole"
)

// panicking is a step that panics.
type panicking struct{}

func (panicking) fails() bool      { return true }
func (panicking) run(*state) error { panic("boom") }

// ServesPanicking is Serves with a tree that panics.
func (e *Engine) ServesPanicking(ctx context.Context, in *policy.Input) Served {
	known := &pair{principalTerm: principalTerm(&in.Principal), tree: &tree{decision: &group{kind: sinkValue, chains: []chain{{panicking{}}}}}}
	if _, _, ok := e.decideQuickly(ctx, in, known); ok {
		return ByTree
	}
	return ByTreeThenWhole
}

// Serves says how Decide decides in.
func (e *Engine) Serves(ctx context.Context, in *policy.Input) Served {
	known, err := e.pair(ctx, &in.Principal, &in.Tool)
	switch {
	case err != nil || known.verdict == nil && known.tree == nil:
		return Whole
	case known.verdict != nil:
		return ByMemory
	}
	if _, _, ok := e.decideQuickly(ctx, in, known); ok {
		return ByTree
	}
	return ByTreeThenWhole
}
