package rego

import (
	"context"
	"errors"
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
	prepared topdown.Query
	kept     kept
}

// answer is the variable of a query whose value answers it.
const answer = ast.Var("answer")

// compileQuery compiles the question for the value of what. The rules in keep, of c and
// the data of p, are not evaluated.
func (p *program) compileQuery(c *ast.Compiler, patterns cache.InterQueryValueCache, keep kept, what string) (*query, error) {
	body, err := ast.ParseBody(string(answer) + " = " + what)
	if err != nil {
		return nil, err
	}
	qc := c.QueryCompiler()
	if body, err = qc.Compile(body); err != nil {
		return nil, err
	}
	return &query{kept: keep, prepared: *topdown.NewQuery(body).WithQueryCompiler(qc).WithCompiler(c).
		WithStore(p.store).WithTransaction(p.txn).WithBaseCache(document{p.data}).WithInterQueryBuiltinValueCache(patterns).
		WithStrictBuiltinErrors(true).WithMetrics(metrics.NoOp()).WithRequestMetadata(map[string]any{})}, nil // no metadata, or each run makes a map
}

// run evaluates q until stop fires. An undefined answer is errUndefined.
func (q *query) run(ctx context.Context, input ast.Value, stop topdown.Cancel, options ...func(*topdown.Query)) (ast.Value, error) {
	m, t := memos.Get().(*memo), q.prepared
	m.kept = q.kept
	t.WithInput(ast.NewTerm(input)).WithCancel(stop).WithVirtualCache(m)
	for _, o := range options {
		o(&t)
	}
	var v ast.Value
	err := t.Iter(ctx, func(r topdown.QueryResult) error {
		if v != nil {
			return errors.New("more than one result")
		}
		v = r[answer].Value
		return nil
	})
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

// memo remembers what rules and functions have come to within one evaluation. The
// first results stand in a list, whose memory the next evaluation uses again; an
// evaluation with more of them, or with the keyword with, goes on with OPA's own cache.
type memo struct {
	topdown.VirtualCache // OPA's own; nil = the list
	results              []result
	keys                 []*ast.Term // of results, one after the other
	kept                 kept
	replaced             int // how many times the keyword with has replaced something
}

// result is what the rule with the name keys[from:to] has come to; nil = undefined.
type result struct {
	from, to int
	value    *ast.Term
}

// mostListed bounds the results that are compared one by one.
const mostListed = 48

var memos = sync.Pool{New: func() any { return new(memo) }}

func (m *memo) forget() {
	clear(m.results)
	clear(m.keys)
	*m = memo{results: m.results[:0], keys: m.keys[:0]}
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
	if m.VirtualCache != nil {
		value, undefined = m.VirtualCache.Get(ref)
	} else if i := m.find(ref); i >= 0 {
		value, undefined = m.results[i].value, m.results[i].value == nil
	}
	if value == nil && !undefined && m.replaced == 0 {
		value = m.kept.find(ref)
	}
	return value, undefined
}

// Put implements topdown.VirtualCache.
func (m *memo) Put(ref ast.Ref, value *ast.Term) {
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
