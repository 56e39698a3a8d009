package rego

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
)

// query is one question to a policy, compiled once. OPA's topdown answers it, as it
// does below OPA's package rego, but data is served without a transaction for each
// evaluation, and what rules come to is remembered in memory that is used again.
// A query is safe for concurrent use.
type query struct {
	prepared   topdown.Query
	invariants *invariants
}

// answer is the variable of a query whose value answers it.
const answer = ast.Var("answer")

// compileQuery compiles the question for the value of what. Rules in keep, which are of
// c, are not evaluated where run knows their values.
func (p *program) compileQuery(c *ast.Compiler, patterns cache.InterQueryValueCache, keep *invariants, what string) (*query, error) {
	body, err := ast.ParseBody(string(answer) + " = " + what)
	if err != nil {
		return nil, err
	}
	qc := c.QueryCompiler()
	if body, err = qc.Compile(body); err != nil {
		return nil, err
	}
	return &query{invariants: keep, prepared: *topdown.NewQuery(body).WithQueryCompiler(qc).WithCompiler(c).
		WithStore(p.store).WithTransaction(p.txn).WithBaseCache(document{p.data}).WithInterQueryBuiltinValueCache(patterns).
		WithStrictBuiltinErrors(true).WithMetrics(metrics.NoOp()).WithRequestMetadata(map[string]any{})}, nil // no metadata, or each run makes a map
}

// run evaluates q until stop fires. Known are values of its invariants. An undefined
// answer is errUndefined.
func (q *query) run(ctx context.Context, input ast.Value, known kept, stop topdown.Cancel, options ...func(*topdown.Query)) (ast.Value, error) {
	m := memos.Get().(*memo)
	m.invariants, m.kept, m.query = q.invariants, known, q.prepared
	m.query.WithInput(ast.NewTerm(input)).WithCancel(stop).WithVirtualCache(m)
	for _, o := range options {
		o(&m.query)
	}
	err := m.query.Iter(ctx, m.take)
	v := m.answer
	m.forget()
	memos.Put(m)
	if err == nil && v == nil {
		err = errUndefined
	}
	return v, err
}

// document is the data of a policy. Topdown finds in it what it would keep of its store
// for the time of one evaluation, and asks the store for all else: what is not there,
// and members named by numbers.
type document struct{ whole ast.Value }

// Get implements topdown.BaseCache.
func (d document) Get(ref ast.Ref) ast.Value {
	if len(ref) == 1 {
		return nil // the store leaves out data.system
	}
	v, _ := d.whole.Find(ref[1:]) // an error comes with nil
	return v
}

// Put implements topdown.BaseCache: it is all there.
func (document) Put(ast.Ref, ast.Value) {}

// memo is the memory of one evaluation, which the next one uses again: its query, and what
// rules and functions have come to. The first results stand in a list; an evaluation with
// more of them, or with the keyword with, goes on with OPA's own cache.
type memo struct {
	topdown.VirtualCache // OPA's own; nil = the list
	results              []result
	keys                 []*ast.Term // of results, one after the other
	invariants           *invariants
	kept                 kept // of invariants
	replaced             int  // how many times the keyword with has replaced something
	query                topdown.Query
	answer               ast.Value
	take                 func(topdown.QueryResult) error // gives answer its value
}

// result is what the rule with the name keys[from:to] has come to; nil = undefined.
type result struct {
	from, to int
	value    *ast.Term
}

// mostListed bounds the results that are compared one by one.
const mostListed = 48

var memos = sync.Pool{New: func() any {
	m := new(memo)
	m.take = func(r topdown.QueryResult) error {
		if m.answer != nil {
			return errors.New("more than one result")
		}
		m.answer = r[answer].Value
		return nil
	}
	return m
}}

func (m *memo) forget() {
	clear(m.results)
	clear(m.keys)
	*m = memo{results: m.results[:0], keys: m.keys[:0], take: m.take}
}

// find returns the position of ref in the list, or -1. Names of rules and values of
// arguments differ at the end.
func (m *memo) find(ref ast.Ref) int {
	last := len(ref) - 1
	return slices.IndexFunc(m.results, func(r result) bool {
		return r.to-r.from == len(ref) && m.keys[r.to-1].Equal(ref[last]) && slices.EqualFunc(m.keys[r.from:r.to], ref, (*ast.Term).Equal)
	})
}

// Get implements topdown.VirtualCache.
func (m *memo) Get(ref ast.Ref) (value *ast.Term, undefined bool) {
	if m.replaced == 0 {
		if value = m.invariants.find(m.kept, ref); value == undefinedTerm {
			return nil, true
		} else if value != nil {
			return value, false
		}
	}
	if m.VirtualCache != nil {
		value, undefined = m.VirtualCache.Get(ref)
	} else if i := m.find(ref); i >= 0 {
		value, undefined = m.results[i].value, m.results[i].value == nil
	}
	return value, undefined
}

// Put implements topdown.VirtualCache. A result that is not ground panics, which denies
// the call; NewCompiler says what else would happen.
func (m *memo) Put(ref ast.Ref, value *ast.Term) {
	if value != nil && !value.IsGround() {
		panic(fmt.Sprintf("the result of %v is not ground", ref))
	}
	if len(m.results) == mostListed {
		m.leave()
	}
	if m.VirtualCache != nil {
		m.VirtualCache.Put(ref, value)
	} else if i := m.find(ref); i >= 0 {
		m.results[i].value = value
	} else {
		m.results = append(m.results, result{len(m.keys), len(m.keys) + len(ref), value})
		m.keys = append(m.keys, ref...)
	}
}

// Push implements topdown.VirtualCache.
func (m *memo) Push() {
	m.leave()
	m.replaced++
	m.VirtualCache.Push()
}

// Pop implements topdown.VirtualCache.
func (m *memo) Pop() {
	m.replaced--
	m.VirtualCache.Pop()
}

// leave goes on with OPA's own cache.
func (m *memo) leave() {
	if m.VirtualCache != nil {
		return
	}
	m.VirtualCache = topdown.NewVirtualCache()
	for _, r := range m.results {
		m.VirtualCache.Put(ast.Ref(m.keys[r.from:r.to]), r.value)
	}
}
