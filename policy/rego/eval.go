package rego

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/fact"
)

// Rules of denials that no policy wrote.
const (
	RuleError     = "policy_error"     // the policy failed: Decide returns the error too
	RuleUndefined = "policy_undefined" // the policy says nothing about the call
)

var errUndefined = errors.New("undefined")

// late counts the evaluations of the process that go on beyond their time: OPA cannot
// cancel a built-in function. Nothing is evaluated while there are maxLate.
var late atomic.Int32

const maxLate = 4

// errTimeout reports an evaluation that took longer than the engine's timeout;
// one that the caller's context stopped gives the context's error.
var errTimeout = errors.New("evaluation took too long")

// Decide judges in. The Decision is always usable and belongs to the caller;
// an error, which is for logs, comes only with a denial whose rule is
// RuleError. A policy that says nothing denies with RuleUndefined and no error.
//
// The first call of a principal and a tool is evaluated whole, and what is left
// of its time then serves to find out whether every call gets the same verdict.
// If not, the second call evaluates the rules that have the same value in every call.
// Either takes well below a millisecond once, which is less than handing it to somebody
// else would need in code to own, stop and wait for.
func (e *Engine) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	if in == nil || !in.Principal.Valid() {
		return e.failed(errors.New("no principal"))
	}
	if !in.Calls() {
		d, _, err := e.judge(ctx, in, nil)
		return d, err
	}
	known, err := e.pairs.find(&in.Principal, &in.Tool)
	if err != nil {
		return e.failed(err)
	}
	looked := known.constant.Load()
	if looked != nil && looked.verdict != nil {
		return cloneDecision(looked.verdict), nil
	}
	d, took, err := e.judge(ctx, in, known)
	switch within := e.timeout - took; {
	case within <= 0 || known.forgotten:
	case looked == nil:
		_, _ = e.constantOf(ctx, known, within) // what it finds is for later calls
	case known.kept.Load() == nil:
		e.keepFor(ctx, known, within)
	}
	return d, err
}

// Independent reports whether the verdict on in, a call of a tool, is the same whatever
// values the named members of its arguments have; no name stands for all arguments. False
// also means that nobody knows: of a policy that fails, that reads the arguments whole, or
// that reads the facts of a tool that has some.
func (e *Engine) Independent(ctx context.Context, in *policy.Input, members ...string) bool {
	if !in.Principal.Valid() || !in.Calls() {
		return false
	}
	known, err := e.pairs.find(&in.Principal, &in.Tool)
	if err != nil {
		return false
	}
	t := &readTracer{reads: func(x any) bool {
		return mentionsInput(x, func(ref ast.Ref) bool {
			switch {
			case !isString(ref[1]):
				return false
			case ref[1].Equal(keyFacts):
				return known.facts == nil
			case !ref[1].Equal(keyArguments):
				return true
			}
			name, ok := ast.String(""), len(ref) > 2 && len(members) > 0
			if ok {
				name, ok = ref[2].Value.(ast.String)
			}
			return ok && !slices.Contains(members, string(name))
		})
	}}
	_, err = e.trace(ctx, t, e.timeout, func(c topdown.Cancel) (ast.Value, error) { return e.program.inputTerm(in, known, c) })
	return err == nil || errors.Is(err, errUndefined)
}

// judge evaluates in; see evaluate.
func (e *Engine) judge(ctx context.Context, in *policy.Input, known *pair) (policy.Decision, time.Duration, error) {
	begin := time.Now()
	d, err := e.close(e.evaluate(ctx, in, known, e.timeout))
	took := time.Since(begin)
	e.observe(took)
	return d, took, err
}

// Meters returns the meters of calls of t, data.usage[exposed], in the order of their
// names; nil for none. The slice is shared and must not be written to.
func (e *Engine) Meters(t policy.Tool) []policy.Meter { return e.program.meters[t.Exposed] }

// Visible reports whether p may see t, and so may ask to call it. The rule
// data.toolgate.visible decides, evaluated with input {principal, tool} once for
// each pair: undefined and false hide. When the rule fails or is no boolean,
// Visible returns false and an error; it asks again the next time.
//
// A policy without that rule shows every tool but those whose constant verdict
// is a denial.
func (e *Engine) Visible(ctx context.Context, p policy.Principal, t policy.Tool) (bool, error) {
	if !p.Valid() {
		return false, errors.New("judging visibility: no principal")
	}
	known, err := e.pairs.find(&p, &t)
	if err == nil && known.shown.Load() == nil {
		var shown bool
		if shown, err = e.show(ctx, known); err == nil {
			known.shown.Store(&shown)
		}
	}
	if err != nil {
		return false, fmt.Errorf("judging visibility: %w", err)
	}
	return *known.shown.Load(), nil
}

// DefinesVisible reports whether the policy has the rule data.toolgate.visible.
func (e *Engine) DefinesVisible() bool { return e.program.visible != nil }

func (e *Engine) show(ctx context.Context, known *pair) (bool, error) {
	if e.program.visible == nil {
		c, err := e.constantOf(ctx, known, e.timeout)
		return err == nil && (c.verdict == nil || c.verdict.Effect != policy.Deny), err
	}
	shown, err := ask(ctx, e, e.program.visible, known.input(), boolean)
	if err != nil {
		return false, fmt.Errorf("%s: %w", visiblePath, err)
	}
	return shown, nil
}

// close makes the denial of what did not come to a decision.
func (e *Engine) close(d policy.Decision, err error) (policy.Decision, error) {
	switch {
	case errors.Is(err, errUndefined):
		return policy.Decision{Effect: policy.Deny, Rule: RuleUndefined, Revision: e.revision,
			Reason: "the policy allows nothing of this kind"}, nil
	case err != nil:
		return e.failed(err)
	}
	d.Revision, d.Labels = e.revision, e.program.labels[d.Rule]
	return d, nil
}

// failed is the denial for err. The reason is for the agent: it names no cause.
func (e *Engine) failed(err error) (policy.Decision, error) {
	return policy.Decision{Effect: policy.Deny, Rule: RuleError, Revision: e.revision,
		Reason: "the policy could not judge this call"}, fmt.Errorf("judging call: %w", err)
}

// evaluate judges in by evaluating the whole policy; known is nil for a request
// that calls no tool. Reading the arguments counts as evaluation.
func (e *Engine) evaluate(ctx context.Context, in *policy.Input, known *pair, within time.Duration) (policy.Decision, error) {
	q, k := e.program.decision, &pairKept{values: e.program.kept}
	if known != nil && known.kept.Load() != nil {
		if k = known.kept.Load(); k.verdicts != nil {
			q = e.program.rest
		}
	}
	v, err := e.eval(ctx, q, k.values, within, func(c topdown.Cancel) (ast.Value, error) {
		return e.program.inputTerm(in, known, c)
	})
	if err != nil {
		return policy.Decision{}, err
	}
	return e.program.form.decode(v, k.verdicts)
}

// eval evaluates one query, with the input that read gives and values of its
// invariants, in at most the time within. A value that comes later is an error.
func (e *Engine) eval(ctx context.Context, q *query, known kept, within time.Duration,
	read func(topdown.Cancel) (ast.Value, error), options ...func(*topdown.Query)) (v ast.Value, err error) {
	err = bounded(ctx, within, func(c topdown.Cancel) error {
		input, err := read(c)
		if err != nil {
			return err
		}
		v, err = q.run(ctx, input, known, c, options...)
		return err
	})
	return v, err
}

// bounded runs f with a cancel that fires after the time within or when ctx
// ends, and turns a panic of f into an error. What f returns after that time is
// errTimeout, and so is everything while maxLate others have not returned in theirs.
func bounded(ctx context.Context, within time.Duration, f func(topdown.Cancel) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("evaluation panicked: %v", p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	if n := late.Load(); n >= maxLate {
		return fmt.Errorf("%w: %d others go on beyond their time", errTimeout, n)
	}
	b := bounds.Get().(*bound)
	b.ctx = ctx
	begin := time.Now()
	b.timer.Reset(within)
	defer b.end()
	err = f(b)
	switch {
	case ctx.Err() != nil && topdown.IsCancel(err):
		return ctx.Err()
	case time.Since(begin) >= within || topdown.IsCancel(err):
		return fmt.Errorf("%w: more than %v", errTimeout, within)
	}
	return err
}

// bound is the topdown.Cancel of one evaluation.
type bound struct {
	ctx       context.Context
	cancelled atomic.Bool
	timer     *time.Timer // calls expire
}

// bounds are used again, each with its timer.
var bounds = sync.Pool{New: func() any {
	b := new(bound)
	b.timer = time.AfterFunc(time.Hour, b.expire)
	return b
}}

// Cancel implements topdown.Cancel.
func (b *bound) Cancel() { b.cancelled.Store(true) }

// Cancelled implements topdown.Cancel.
func (b *bound) Cancelled() bool { return b.cancelled.Load() || b.ctx.Err() != nil }

func (b *bound) expire() {
	late.Add(1)
	b.Cancel()
}

// end says that the evaluation has returned. One whose time was over has a timer that may
// still cancel, so nobody uses its bound again.
func (b *bound) end() {
	if !b.timer.Stop() {
		late.Add(-1)
		return
	}
	b.ctx = nil
	b.cancelled.Store(false)
	bounds.Put(b)
}

// cloneDecision copies what d points to, so that no caller can change what the
// next one is served.
func cloneDecision(d *policy.Decision) policy.Decision {
	out := *d
	if d.Approval != nil {
		a := *d.Approval
		a.Roles, a.Each = slices.Clone(a.Roles), maps.Clone(a.Each)
		out.Approval = &a
	}
	if d.Limit != nil {
		l := *d.Limit
		out.Limit = &l
	}
	out.Redact, out.Scopes = append([]string(nil), d.Redact...), append([]string(nil), d.Scopes...)
	return out
}

// pair is one principal and one tool, with what is known of them before any
// call. Its fields are written before it is shared; the atomic ones once each.
type pair struct {
	principal, tool *ast.Term
	facts           *fact.Set                // of the tool; nil = it has none
	constant        atomic.Pointer[constant] // nil = nobody has looked
	kept            atomic.Pointer[pairKept] // what keepFor has found; nil = nobody has looked
	shown           atomic.Pointer[bool]     // the answer of Visible; nil = nobody has asked
	forgotten       bool                     // it is not in the cache: nothing found is of use later
}

func newPair(p *policy.Principal, t *policy.Tool, facts map[string]*fact.Set) (*pair, error) {
	principal, err := principalTerm(*p)
	if err != nil {
		return nil, err
	}
	tool, err := toolTerm(t)
	return &pair{principal: principal, tool: tool, facts: facts[t.Exposed]}, err
}

// input is what a policy knows of every call of k, and more.
func (k *pair) input(more ...[2]*ast.Term) ast.Object {
	return ast.NewObject(append(more, [2]*ast.Term{keyPrincipal, k.principal}, [2]*ast.Term{keyTool, k.tool})...)
}

// pairs is a cache of at most size pairs, in two generations: when the young
// one is full, it becomes the old one and the old one is dropped. Pairs are found
// by everything that the policy can tell apart. It is safe for concurrent use.
//
// A policy that reads input.principal.client makes the key something that
// callers choose. One principal then adds at most an ownerShare of a generation;
// its other pairs are evaluated whole at every call, so that no caller can flush
// what is known of others.
type pairs struct {
	reads reads
	facts map[string]*fact.Set // by exposed name of a tool
	size  int

	mu         sync.Mutex // protects the fields below
	young, old map[string]*pair
	owners     map[string]int // :: principal without client ⇒ its young pairs; only where the policy reads the client
}

const ownerShare = 8

func newPairs(size int, p *program) *pairs {
	return &pairs{reads: p.reads, facts: p.facts, size: size, young: make(map[string]*pair), owners: make(map[string]int)}
}

// find returns the pair of p and t, from the cache or made.
func (c *pairs) find(p *policy.Principal, t *policy.Tool) (known *pair, err error) {
	var room [512]byte // most keys are shorter
	key := c.reads.appendRights(room[:0], p)
	key = appendTexts(key, true, t.Server, t.Name, t.Exposed, t.Risk, t.Fingerprint)
	key = append(key, t.Annotations...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known = c.young[string(key)]; known != nil {
		return known, nil
	}
	if known = c.old[string(key)]; known != nil {
		c.add(string(key), known, p)
		return known, nil
	}
	if known, err = newPair(p, t, c.facts); err == nil {
		known.forgotten = !c.add(string(key), known, p)
	}
	return known, err
}

// add makes k young, unless its principal has its share. The caller must hold c.mu.
func (c *pairs) add(key string, k *pair, p *policy.Principal) bool {
	generation := max(1, c.size/2)
	if len(c.young) >= generation {
		c.young, c.old = make(map[string]*pair), c.young
		clear(c.owners)
	}
	if c.reads.client {
		owner := p.Subject + "\x00" + p.Tenant
		if c.owners[owner] >= max(1, generation/ownerShare) {
			return false
		}
		c.owners[owner]++
	}
	c.young[key] = k
	return true
}

// constant is what one look at a pair has found: the verdict of every call, or
// nil when the verdict may depend on the call.
type constant struct{ verdict *policy.Decision }

var errDepends = errors.New("the verdict depends on the call")

// constantOf returns what is known of every call of a pair, and looks for at
// most within if nobody has. Only an ended context is an error; what it cuts
// short is not remembered.
//
// The policy is evaluated once, whole, without arguments, facts, request and usage,
// under a tracer, with rule indexing off, because an index reads the input
// without an event, and without early exit, which passes over rules that a call
// can reach. If no expression that is evaluated mentions anything of a
// call, no call can take another way through the policy: an expression that
// was reached has the same value in every call, and one that was not reached is
// reached in none. The policy is then evaluated once more as calls are, and has
// to answer the same. A failing policy has no constant verdict.
func (e *Engine) constantOf(ctx context.Context, known *pair, within time.Duration) (*constant, error) {
	if c := known.constant.Load(); c != nil {
		return c, nil
	}
	begin := time.Now()
	c := new(constant)
	found, err := e.traceConstant(ctx, known, within)
	if err == nil {
		var whole policy.Decision
		whole, err = e.close(e.evaluate(ctx, &policy.Input{}, known, within-time.Since(begin)))
		if err == nil && reflect.DeepEqual(found, whole) {
			c.verdict = &whole
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	known.constant.Store(c)
	return c, nil
}

// traceConstant evaluates the policy without a call. An error means that the
// verdict is not known to be constant.
func (e *Engine) traceConstant(ctx context.Context, known *pair, within time.Duration) (policy.Decision, error) {
	input := known.input(isCall)
	v, err := e.trace(ctx, &readTracer{reads: mentionsCall}, within, func(topdown.Cancel) (ast.Value, error) { return input, nil })
	if err != nil {
		return e.close(policy.Decision{}, err)
	}
	return e.close(e.program.form.decode(v, nil))
}

// trace evaluates the whole policy under t. It returns errDepends when t has found a read.
func (e *Engine) trace(ctx context.Context, t *readTracer, within time.Duration, input func(topdown.Cancel) (ast.Value, error)) (ast.Value, error) {
	v, err := e.eval(ctx, e.program.decision, e.program.kept, within, func(c topdown.Cancel) (ast.Value, error) {
		t.cancel = c
		return input(c)
	}, func(q *topdown.Query) { q.WithIndexing(false).WithEarlyExit(false).WithQueryTracer(t) })
	if t.depends {
		return nil, errDepends
	}
	return v, err
}

// readTracer finds out whether an evaluation reads what it should not depend on, and
// ends the evaluation when it does.
type readTracer struct {
	reads   func(x any) bool // of an expression or the head of a rule
	depends bool
	cancel  topdown.Cancel
}

// Enabled implements topdown.QueryTracer.
func (t *readTracer) Enabled() bool { return !t.depends }

// Config implements topdown.QueryTracer.
func (t *readTracer) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

// TraceEvent implements topdown.QueryTracer.
func (t *readTracer) TraceEvent(ev topdown.Event) {
	if t.depends {
		return
	}
	switch node := ev.Node.(type) {
	case *ast.Rule:
		t.depends = ev.Op == topdown.EnterOp && t.reads(node.Head)
	case *ast.Expr:
		t.depends = ev.Op == topdown.EvalOp && t.reads(node)
	}
	if t.depends {
		t.cancel.Cancel()
	}
}

// knownBeforeCall are the members of input that are the same in every call of
// a pair, those included that no call has.
var knownBeforeCall = inputMembers{
	ast.String("action"): true, ast.String("principal"): true, ast.String("tool"): true,
	ast.String("resource"): true, ast.String("prompt"): true, ast.String("server"): true,
}

// mentionsCall reports whether x, or anything within it, mentions a member of
// input that is not known before a call, or input with a member that is not
// written out.
func mentionsCall(x any) bool { return mentionsInput(x, knownBeforeCall.has) }

// inputMembers are names of members of input.
type inputMembers map[ast.Value]bool

// has reports whether ref, which is longer than input, begins with one of m.
func (m inputMembers) has(ref ast.Ref) bool { return isString(ref[1]) && m[ref[1].Value] }

// mentionsInput reports whether x mentions input other than by references, longer than
// input, for which but is true.
func mentionsInput(x any, but func(ast.Ref) bool) bool {
	found := false
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Var:
			found = found || x == "input"
		case ast.Ref:
			if x[0].Equal(ast.InputRootDocument) {
				found = found || len(x) == 1 || !but(x)
				for _, t := range x[1:] {
					found = found || mentionsInput(t, but)
				}
				return true
			}
		}
		return found
	}).Walk(x)
	return found
}

// appendRights appends to b what of p is read. Two principals have the same rights
// exactly when the policy cannot tell them apart.
func (r reads) appendRights(b []byte, p *policy.Principal) []byte {
	b = appendTexts(b, r.subject, p.Subject)
	b = appendTexts(b, r.client, p.Client)
	b = appendTexts(b, r.tenant, p.Tenant)
	b = appendTexts(b, r.roles, p.Roles...)
	b = appendTexts(b, r.facts, p.Person, p.Issuer, p.ClientID)
	b = appendTexts(b, r.facts, p.Actors...)
	b = appendTexts(b, r.facts, p.Scopes...)
	return appendTexts(b, r.facts, p.MayAct...)
}

// appendTexts appends texts with their lengths, or that there are none unless they count.
func appendTexts(b []byte, count bool, texts ...string) []byte {
	if !count {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(texts)))
	for _, s := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}
