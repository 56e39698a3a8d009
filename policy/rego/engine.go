// Package rego judges calls with Open Policy Agent, embedded, which is the only
// evaluator of Rego: every decision is OPA's evaluation of the whole policy, for
// one input (package policy), with strict built-in errors and within one timeout.
// A policy answers with the rule data.toolgate.decision, or with the sets
// data.toolgate.deny, hold and allow, which the engine orders.
//
// Most decisions are the same for every call of a principal and a tool. One
// traced evaluation without a call finds that out, and they are then served from
// memory.
//
// The engine fails closed: undefined, an error, a timeout, a panic, a shape
// that is not a decision, all are a denial.
package rego

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/policy"
)

// Defaults of Options.
const (
	DefaultTimeout   = 250 * time.Millisecond
	DefaultCacheSize = 10_000
)

// Options says which policy to load and what it may cost.
type Options struct {
	// Path is a directory or a bundle archive (.tar.gz) on this machine. Empty
	// means the embedded default. Files named *_test.rego and hidden files are no
	// part of a policy; data.json and data.yaml are data at the path of their
	// folder, as in every OPA bundle.
	Path string
	// Name is what errors call the policy; "" = Path.
	Name string
	// Data is one JSON object that is added to the data of the policy, object by
	// object; empty = nothing is added. A path that both set is an error.
	Data json.RawMessage
	// DataAt says for errors where a path of Data was written; nil = "the overlay".
	DataAt func(path []string) string
	// Keys verify the signature of the policy, by key id. When there is one, a
	// policy is refused unless one of them signed every file that it consists of.
	Keys map[string]Key
	// KeyID is the key that must have signed; "" = the one that the signature names.
	KeyID string
	// Scope is what the signature must say it is for; "" = what its key says.
	Scope string
	// Timeout bounds one evaluation, reading its input included; 0 =
	// DefaultTimeout. A decision that comes later is a denial.
	Timeout time.Duration
	// CacheSize bounds the pairs of principal and tool that are remembered;
	// 0 = DefaultCacheSize.
	CacheSize int
}

// Key verifies signatures of bundles.
type Key struct {
	Algorithm string // of JWS (RFC 7518): RS256, PS256, ES256, HS256 and their kin
	Key       string // a public key or certificate in PEM; with HS256 and its kin the secret
	Scope     string // what its signatures must say they are for; "" = nothing
}

// Engine is one policy with its data. It is immutable and safe for concurrent
// use: a changed policy is a new Engine.
type Engine struct {
	program  *program
	sources  *sources // of program
	timeout  time.Duration
	revision string
	pairs    *pairs
	sights   atomic.Pointer[sights]
	findings []Finding
	observe  func(time.Duration) // see Observe
}

// Load reads, compiles and tries a policy. When the policy cannot serve, Load
// returns an error that says what to fix; a caller with an older Engine keeps it.
func Load(ctx context.Context, o Options) (*Engine, error) {
	e, err := LoadUntried(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := e.Try(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// LoadUntried is Load without the trial. The caller must not let the Engine judge calls
// before Try has returned nil.
func LoadUntried(ctx context.Context, o Options) (*Engine, error) {
	f, unchecked, err := o.read()
	if err != nil {
		return nil, err
	}
	from := o.dataAt()
	s, err := parse(f, from)
	if err != nil {
		return nil, err
	}
	if err := f.checkPublished(s, from); err != nil {
		return nil, err
	}
	p, err := s.compile(ctx)
	if err != nil {
		return nil, f.overRule(err, from)
	}
	found, typos := f.lintData(p.compiler, s, from)
	if err := typos.errorOf("reading policy data"); err != nil {
		return nil, err
	}
	found = slices.Concat(lint(s.modules), found, p.unusedRules())
	if unchecked {
		found = append(found, Finding{Level: LevelWarning, Code: "signature-not-verified", File: signatures,
			Message: "the policy is signed, and no key is configured that would verify it", Hint: "name the keys of its signers"})
	}
	e := &Engine{
		program:  p,
		sources:  s,
		timeout:  cmp.Or(max(o.Timeout, 0), DefaultTimeout),
		revision: f.revision(),
		pairs:    newPairs(cmp.Or(max(o.CacheSize, 0), DefaultCacheSize), p),
		findings: found,
		observe:  func(time.Duration) {},
	}
	e.sights.Store(newSights())
	return e, nil
}

func (o Options) dataAt() func(path []string) string {
	if o.DataAt != nil {
		return o.DataAt
	}
	return func([]string) string { return "the overlay" }
}

// Observe has f called with the time of every evaluation for Decide. Verdicts that are
// the same for all calls of a principal and a tool are not evaluated again. Observe must
// not be called once the Engine judges calls.
func (e *Engine) Observe(f func(took time.Duration)) { e.observe = f }

// Revision is "sha256:<hex>" over the names and contents of the policy's files
// and the data that was added: the same have the same revision, wherever they
// came from.
func (e *Engine) Revision() string { return e.revision }

// Warnings says what serves but should be mended, one line each. Check finds
// more.
func (e *Engine) Warnings() []string {
	var out []string
	for _, f := range e.findings {
		if f.Level == LevelWarning {
			text := f.String()
			if f.Hint != "" { // on one line
				text = strings.Replace(text, "\nhint: ", " (hint: ", 1) + ")"
			}
			out = append(out, text)
		}
	}
	return out
}

// Roles are the keys of data.roles, sorted.
func (e *Engine) Roles() []string { return slices.Sorted(maps.Keys(e.program.roles)) }

// Tools are the tools that data.roles names, by their exposed names, sorted.
// Patterns of names are left out.
func (e *Engine) Tools() []string {
	names := make(map[string]bool)
	for role := range e.program.roles {
		for _, tool := range e.toolsGranted(role) {
			if !strings.Contains(tool, "*") {
				names[tool] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

const (
	tryTimeout  = 5 * time.Second // for one sample: the first runs are the slow ones
	triedRoles  = 50
	triedTools  = 3 // of each role, besides one that nobody knows
	unknownTool = "toolgate-sample__unknown"
	sampleRole  = "toolgate-sample-role" // has no rights
)

// sampleTime is a Monday noon of a year that the library accepts for schedules.
var sampleTime = time.Date(2024, time.January, 1, 12, 0, 0, 0, time.UTC)

// odd are arguments as nobody should send them: a policy must answer them too.
var odd = []json.RawMessage{
	nil,
	json.RawMessage(`{"action":null,"amount":null,"model":null,"path":null,"query":null}`),
	json.RawMessage(`{"action":true,"amount":"5000","model":[],"path":{},"query":1}`),
	json.RawMessage(`{"action":"transfer","amount":[5000],"model":{"v":1},"path":0}`),
	json.RawMessage(`{"action":"transfer","amount":1e3,"model":"","path":"/","query":""}`),
}

// Try evaluates sample calls and other requests of the roles in data.roles, and of a
// role that has no rights, on all cores. Each must come to a decision or to undefined.
// Calls come with odd arguments, other requests only from the role without rights. Samples
// that no rule can tell apart are evaluated once. The error is that of the first role that
// fails.
func (e *Engine) Try(ctx context.Context) error {
	roles := e.Roles()
	roles = append([]string{sampleRole}, roles[:min(len(roles), triedRoles)]...)
	s, err := e.program.samples()
	if err != nil {
		return fmt.Errorf("trying policy: %w", err)
	}
	faults := make([]error, len(roles))
	var trials sync.WaitGroup
	cores := runtime.GOMAXPROCS(0)
	for first := range cores { // not one goroutine a role: each would grow a stack for the evaluations
		trials.Go(func() {
			for i := first; i < len(roles); i += cores {
				faults[i] = e.tryRole(ctx, roles[i], s)
			}
		})
	}
	trials.Wait()
	return cmp.Or(faults...)
}

// tryRole evaluates the samples of one role.
func (e *Engine) tryRole(ctx context.Context, role string, s samples) error {
	requests := slices.Clone(s.others)
	for _, tool := range slices.Concat(some(e.toolsGranted(role)), some(slices.Sorted(maps.Keys(e.program.meters))), []string{unknownTool}) {
		requests = append(requests, policy.Input{
			Tool: policy.Tool{Server: "toolgate-sample", Name: tool, Exposed: tool}, Usage: policy.Unused(e.program.meters[tool]),
		})
	}
	for _, in := range requests {
		in.Principal = policy.Principal{Subject: "toolgate-sample", Roles: []string{role}}
		in.Request = policy.Request{ID: "1", Transport: "http", TraceID: "trc_sample", Time: sampleTime}
		arguments := s.arguments
		switch {
		case in.Calls() && e.program.facts[in.Tool.Exposed] != nil: // they are read from the arguments
			arguments = odd
		case !in.Calls() && role != sampleRole:
			arguments = odd[:1]
		}
		if err := e.tryOne(ctx, role, &in, arguments); err != nil {
			return fmt.Errorf("trying policy: %w", err)
		}
	}
	return nil
}

// tryOne evaluates one sample with each of arguments.
func (e *Engine) tryOne(ctx context.Context, role string, in *policy.Input, arguments []json.RawMessage) (err error) {
	var known *pair
	what, hint := "asks for "+in.Action, "look at input.action, and test the type of an argument before using it"
	if in.Calls() {
		what, hint = fmt.Sprintf("calls %q", in.Tool.Exposed), "test the type of an argument before using it"
		if known, err = newPair(&in.Principal, &in.Tool, e.program.facts); err != nil {
			return err
		}
	}
	for _, raw := range arguments {
		in.Arguments = raw
		v, err := e.eval(ctx, e.program.decision, e.program.kept, max(tryTimeout, e.timeout), func(c topdown.Cancel) (ast.Value, error) {
			return e.program.inputTerm(in, known, c)
		})
		if err == nil {
			_, err = e.program.form.decode(v, nil)
		}
		if err != nil && !errors.Is(err, errUndefined) {
			return fmt.Errorf("role %q %s with %s: %s (hint: %s)", role, what, raw, Cause(err), hint)
		}
	}
	return nil
}

// others are what a policy is asked about besides calls.
var others = []policy.Input{
	{Action: "resources/read", Resource: &policy.Resource{Server: "toolgate-sample", URI: "file:///"}},
	{Action: "prompts/get", Prompt: &policy.Prompt{Server: "toolgate-sample", Name: "sample"}},
	{Action: "completion/complete", Prompt: &policy.Prompt{Server: "toolgate-sample", Name: "sample"}},
	{Action: "logging/setLevel", Server: &policy.Server{Name: "toolgate-sample", Tools: []string{unknownTool}}},
	{Action: "tasks/get", Server: &policy.Server{Name: "toolgate-sample", Tools: []string{unknownTool}}},
	{Action: "sampling/createMessage", Server: &policy.Server{Name: "toolgate-sample", Asks: "sampling/createMessage"}},
	{Action: "elicitation/create", Server: &policy.Server{Name: "toolgate-sample", Asks: "elicitation/create"}},
	{Action: "roots/list", Server: &policy.Server{Name: "toolgate-sample", Asks: "roots/list"}},
	{Action: "toolgate-sample/thing", Server: &policy.Server{Name: "toolgate-sample"}},
}

// some gives the first of names that are tried.
func some(names []string) []string { return names[:min(len(names), triedTools)] }

// toolsGranted gives the tools that data.roles names for role, sorted.
func (e *Engine) toolsGranted(role string) []string {
	r, _ := e.program.roles[role].(map[string]any)
	tools, _ := r["tools"].(map[string]any)
	return slices.Sorted(maps.Keys(tools))
}

// Reference gives second opinions on the decisions of an Engine. Each decision is a
// new query to OPA: on the JSON of the input, with a compiler and a store that the
// engine does not use, without prepared queries, constants or caches. Engine and
// Reference share the policy's source and the code that reads OPA's answer as a
// decision. Reference is safe for concurrent use.
type Reference struct {
	engine  *Engine
	compile func() (*ast.Compiler, error)
	store   func() storage.Store
}

// Reference returns the reference of e. The first decision compiles the policy.
func (e *Engine) Reference() *Reference {
	return &Reference{
		engine: e,
		compile: sync.OnceValues(func() (*ast.Compiler, error) {
			c := NewCompiler()
			if c.Compile(e.sources.modules); c.Failed() {
				return nil, c.Errors
			}
			return c, nil
		}),
		store: sync.OnceValue(func() storage.Store { return inmem.NewFromObject(e.sources.data) }),
	}
}

// Revision returns the revision of the engine's policy.
func (r *Reference) Revision() string { return r.engine.Revision() }

// Meters returns the engine's meters of t.
func (r *Reference) Meters(t policy.Tool) []policy.Meter { return r.engine.Meters(t) }

// Decide judges in as Engine.Decide does, but for the timeout: only ctx bounds it.
func (r *Reference) Decide(ctx context.Context, in *policy.Input) (policy.Decision, error) {
	if in == nil || !in.Principal.Valid() {
		return r.engine.failed(errors.New("no principal"))
	}
	v, err := r.ask(ctx, in)
	if err != nil {
		return r.engine.close(policy.Decision{}, err)
	}
	return r.engine.close(r.engine.program.form.decode(v, nil))
}

// ask evaluates the whole policy once. A panic of OPA is an error.
func (r *Reference) ask(ctx context.Context, in *policy.Input) (v ast.Value, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("evaluation panicked: %v", p)
		}
	}()
	compiler, err := r.compile()
	if err != nil {
		return nil, fmt.Errorf("compiling policy: %w", err)
	}
	if len(in.Arguments) > 0 {
		if _, err := readJSON(in.Arguments, nil, topdown.NewCancel()); err != nil { // numbers have the bound that they have in calls
			return nil, err
		}
	}
	raw, err := json.Marshal(r.engine.program.withFacts(in))
	if err != nil {
		return nil, fmt.Errorf("encoding input: %w", err)
	}
	var document any
	if err := util.NewJSONDecoder(bytes.NewReader(raw)).Decode(&document); err != nil {
		return nil, fmt.Errorf("reading input: %w", err)
	}
	rs, err := rego.New(rego.Query(r.engine.program.form.query(func(ast.Ref) bool { return false })), rego.Compiler(compiler), rego.Store(r.store()),
		rego.StrictBuiltinErrors(true), rego.GenerateJSON(keepTerm), rego.Input(document)).Eval(ctx)
	if err != nil {
		return nil, err
	}
	if len(rs) == 0 {
		return nil, errUndefined
	}
	return rs[0].Expressions[0].Value.(*ast.Term).Value, nil
}

// keepTerm keeps results as OPA's own terms: decisions are read from those.
func keepTerm(t *ast.Term, _ *rego.EvalContext) (any, error) { return t, nil }
