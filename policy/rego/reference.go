package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/policy"
)

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
			c := ast.NewCompiler()
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
	return r.engine.close(r.engine.program.form.decode(v))
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
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encoding input: %w", err)
	}
	var document any
	if err := util.NewJSONDecoder(bytes.NewReader(raw)).Decode(&document); err != nil {
		return nil, fmt.Errorf("reading input: %w", err)
	}
	rs, err := rego.New(rego.Query(r.engine.program.form.query), rego.Compiler(compiler), rego.Store(r.store()),
		rego.StrictBuiltinErrors(true), rego.GenerateJSON(keepTerm), rego.Input(document)).Eval(ctx)
	if err != nil {
		return nil, err
	}
	return onlyValue(rs)
}
