package rego

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

// Where OPA's decision logs look, too.
const (
	maskPath = "data.system.log.mask"
	dropPath = "data.system.log.drop"
)

// Mask returns what the policy hides of an event of the decision log; the event, a
// JSON object, is its input. Mask fails closed: a rule that cannot be evaluated or
// read is an error, and then nothing of the event may be shipped. Errors name the
// place and quote nothing of the event.
func (e *Engine) Mask(ctx context.Context, event json.RawMessage) (m policy.Mask, err error) {
	input, err := argumentsTerm(event, nil, topdown.NewCancel())
	if err != nil {
		return m, fmt.Errorf("masking event: %w", err)
	}
	if m.Drop, err = ask(ctx, e, e.program.drop, input.Value, boolean); err != nil {
		return policy.Mask{}, fmt.Errorf("evaluating %s: %w", dropPath, quiet(err))
	}
	if m.Drop {
		return m, nil
	}
	if m.Rules, err = ask(ctx, e, e.program.mask, input.Value, maskRules); err != nil {
		return policy.Mask{}, fmt.Errorf("evaluating %s: %w", maskPath, quiet(err))
	}
	return m, nil
}

// ask evaluates a query and decodes the answer. Undefined is the zero T.
func ask[T any](ctx context.Context, e *Engine, q *query, input ast.Value, decode func(ast.Value) (T, error)) (out T, err error) {
	v, err := e.eval(ctx, q, e.program.kept, e.timeout, func(topdown.Cancel) (ast.Value, error) { return input, nil })
	if err == nil {
		return decode(v)
	}
	if errors.Is(err, errUndefined) {
		err = nil
	}
	return out, err
}

// quiet leaves out of OPA's errors what they quote: it may be what a mask hides.
func quiet(err error) error {
	var te *topdown.Error
	if errors.As(err, &te) && te.Location != nil {
		return fmt.Errorf("%s: %s", te.Location, te.Code)
	}
	return err
}

// maskRules reads a set or a list of rules.
func maskRules(v ast.Value) (rules []policy.MaskRule, err error) {
	err = eachElement(v, "a set of rules", func(t *ast.Term) error {
		r, err := maskRule(t.Value)
		rules = append(rules, r)
		return err
	})
	return rules, err
}

// maskRule reads a path, whose value is removed, or {op, path, value}.
func maskRule(v ast.Value) (r policy.MaskRule, err error) {
	if s, ok := v.(ast.String); ok {
		r.Path = string(s)
		return r, maskable(r.Path)
	}
	change := maskChange{Value: json.RawMessage("null")}
	if err := maskMembers.read(&change, v, "a rule"); err != nil {
		return r, err
	}
	r.Path = change.Path
	switch change.Op {
	case "upsert":
		r.Value = change.Value
	case "remove":
	default:
		return r, errors.New("a rule has neither the op remove nor upsert")
	}
	return r, maskable(r.Path)
}

// maskChange is a rule as a policy writes it, in words of OPA's decision logs.
type maskChange struct {
	Op, Path string
	Value    json.RawMessage
}

var maskMembers = members[maskChange]{
	"op":    into(func(c *maskChange) *string { return &c.Op }, stringOf[string]),
	"path":  into(func(c *maskChange) *string { return &c.Path }, stringOf[string]),
	"value": into(func(c *maskChange) *json.RawMessage { return &c.Value }, valueJSON),
}

func valueJSON(v ast.Value) (json.RawMessage, error) {
	x, err := ast.JSON(v)
	if err != nil {
		return nil, err
	}
	return json.Marshal(x)
}

// maskable refuses a path that leads to nothing which may be masked.
func maskable(path string) error {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !strings.HasPrefix(path, "/") || root != "input" && root != "result" && root != "nd_builtin_cache" {
		return errors.New("a path does not begin with /input, /result or /nd_builtin_cache")
	}
	return nil
}
