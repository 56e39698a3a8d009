package rego_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"

	"github.com/toolgate/toolgate/policy"
)

// placement says where a case's input, data and literals stand.
type placement struct {
	name     string
	input    func(key string, i int) ast.Ref // of member i of the input
	whole    ast.Ref                         // the input as a whole
	lendData func(i int) bool                // member i of the data comes with the arguments
	lend     func(i int) bool                // literal i comes with the arguments
}

var (
	inArguments = ast.MustParseRef("input.arguments.input")
	inTool      = ast.MustParseRef("input.tool.annotations")
	inData      = ast.MustParseRef("data.tg_case.input")
	inBoth      = ast.MustParseRef("data.tg_half.whole")
	dataLent    = ast.MustParseRef("input.arguments.data")
	literalLent = ast.MustParseRef("input.arguments.literals")
)

const bothModule = "package tg_half\n\nwhole := object.union(input.tool.annotations, input.arguments.input)\n"

func always(int) bool      { return true }
func never(int) bool       { return false }
func sometimes(i int) bool { return i%2 == 0 }

var placements = []placement{
	{"all in arguments", func(key string, _ int) ast.Ref { return inArguments.Append(ast.StringTerm(key)) }, inArguments, always, never},
	{"all in data", func(key string, _ int) ast.Ref { return inData.Append(ast.StringTerm(key)) }, inData, never, never},
	{"half known", func(key string, i int) ast.Ref {
		if i%2 == 0 {
			return inTool.Append(ast.StringTerm(key))
		}
		return inArguments.Append(ast.StringTerm(key))
	}, inBoth, sometimes, never},
	{"half of the literals in arguments", func(key string, _ int) ast.Ref { return inArguments.Append(ast.StringTerm(key)) }, inArguments, sometimes, sometimes},
	{"literals in arguments", func(key string, _ int) ast.Ref { return inArguments.Append(ast.StringTerm(key)) }, inArguments, always, always},
}

// writer writes one case under one placement.
type writer struct {
	placement
	inputKeys []string // of the input, when it is an object
	dataKeys  []string // of the data that no module has a package in
	literals  map[string]json.RawMessage
	seen      int  // literals
	lentKeys  bool // see written
	failed    error
}

// Names that stand for input and data in what is already rewritten.
const (
	inputDone = ast.Var("tg_input")
	dataDone  = ast.Var("tg_data")
)

// write makes the policy and the call of c; the error says why it cannot.
func (c opaCase) write(p placement) (*written, error) {
	input, data, err := c.documents()
	if err != nil {
		return nil, err
	}
	w := &writer{placement: p, literals: map[string]json.RawMessage{}}
	members, isObject := input.(map[string]any)
	if isObject {
		w.inputKeys = slices.Sorted(maps.Keys(members))
	} else if slices.Equal(p.whole, inBoth) {
		w.placement = placements[0]
	}
	out := &written{modules: map[string]string{"half.rego": bothModule}}
	modules, err := c.parse()
	if err != nil {
		return nil, err
	}
	for key := range data {
		if !slices.ContainsFunc(modules, func(m *ast.Module) bool {
			return len(m.Package.Path) < 2 || m.Package.Path[1].Equal(ast.StringTerm(key))
		}) {
			w.dataKeys = append(w.dataKeys, key)
		}
	}
	slices.Sort(w.dataKeys)
	for i, m := range modules {
		if out.modules[fmt.Sprintf("case%d.rego", i)], err = w.rewrite(m); err != nil {
			return nil, err
		}
	}
	return out, w.call(out, input, data)
}

// decidingPackage is the package of the module that decides by a case's query.
var decidingPackage = ast.MustParseRef("data.toolgate")

// parse reads the modules of c and, last, one that decides by its query.
func (c opaCase) parse() ([]*ast.Module, error) {
	var out []*ast.Module
	texts := c.Modules
	body, err := ast.ParseBody(c.Query)
	if err != nil {
		return nil, errors.New("the query does not parse")
	}
	vars := ast.NewVarVisitor().WithParams(ast.VarVisitorParams{SkipRefHead: true, SkipClosures: true})
	vars.WalkBody(body)
	var names []string
	for v := range vars.Vars() {
		if !v.IsWildcard() && !v.IsGenerated() && !ast.RootDocumentNames.Contains(ast.NewTerm(v)) {
			names = append(names, string(v))
		}
	}
	slices.Sort(names)
	texts = append(slices.Clone(texts), fmt.Sprintf("package toolgate\n\nanswers contains [%s] if { %s }\n\ndecision := {\"effect\": \"allow\", \"reason\": sprintf(\"%%v\", [answers])} if count(answers) > 0\n",
		strings.Join(names, ", "), c.Query))
	for _, text := range texts {
		m, err := ast.ParseModuleWithOpts("case.rego", text, ast.ParserOptions{ProcessAnnotation: true})
		if err != nil {
			return nil, errors.New("a module or the query does not parse")
		}
		out = append(out, m.Copy()) // the parser's own terms are shared by all modules
	}
	return out, nil
}

// documents are the input and the data of c.
func (c opaCase) documents() (input any, data map[string]any, err error) {
	if c.Data != nil {
		data = *c.Data
	}
	switch {
	case c.InputTerm != nil:
		term, err := ast.ParseTerm(*c.InputTerm)
		if err != nil {
			return nil, nil, err
		}
		if input, err = ast.JSON(term.Value); err != nil || ast.Compare(ast.MustInterfaceToValue(input), term.Value) != 0 {
			return nil, nil, errors.New("the input is no JSON")
		}
	case c.Input != nil:
		input = *c.Input
	}
	return input, data, nil
}

// rewrite gives m as text, with everything at its place.
func (w *writer) rewrite(m *ast.Module) (string, error) {
	for i := range m.Imports {
		if ast.RootDocumentNames.Contains(m.Imports[i].Path.Value.(ast.Ref)[0]) {
			m.Imports[i] = w.pass(m.Imports[i]).(*ast.Import)
		}
	}
	for i, r := range m.Rules {
		if !m.Package.Path.Equal(decidingPackage) {
			w.lendRule(r)
		}
		m.Rules[i] = w.pass(r).(*ast.Rule)
	}
	if w.failed != nil {
		return "", w.failed
	}
	text, err := format.Ast(m)
	if err != nil {
		return "", fmt.Errorf("the rewritten module cannot be written")
	}
	return string(text), nil
}

// pass puts references to input and data at their places: first those with a
// path, then the bare input, and last the names that stood for what was done.
func (w *writer) pass(x any) any {
	for _, f := range []func(any) (any, error){
		func(x any) (any, error) {
			if ref, ok := x.(ast.Ref); ok && len(ref) > 0 {
				return w.ref(ref), nil
			}
			return x, nil
		},
		func(x any) (any, error) {
			if v, ok := x.(ast.Var); ok && v == "input" {
				return done(w.whole), nil
			}
			return x, nil
		},
		func(x any) (any, error) {
			switch x {
			case inputDone:
				return ast.Var("input"), nil
			case dataDone:
				return ast.Var("data"), nil
			}
			return x, nil
		},
	} {
		var err error
		if x, err = ast.Transform(transformer(f), x); err != nil {
			w.failed = errors.New("the case cannot be rewritten")
			return x
		}
	}
	return x
}

type transformer func(any) (any, error)

// Transform implements ast.Transformer. It visits the symbols of some itself, as
// ast.Transform does not.
func (f transformer) Transform(x any) (any, error) {
	some, ok := x.(*ast.SomeDecl)
	if !ok {
		return f(x)
	}
	for i, symbol := range some.Symbols {
		v, err := ast.Transform(f, symbol.Value)
		if err != nil {
			return nil, err
		}
		some.Symbols[i] = ast.NewTerm(v.(ast.Value))
	}
	return some, nil
}

// done is ref with a head that no later pass takes for the case's own.
func done(ref ast.Ref) ast.Ref {
	out := ref.Copy()
	out[0] = ast.NewTerm(map[string]ast.Var{"input": inputDone, "data": dataDone}[string(ref[0].Value.(ast.Var))])
	return out
}

func (w *writer) ref(ref ast.Ref) ast.Ref {
	head, _ := ref[0].Value.(ast.Var)
	key := ""
	if len(ref) > 1 {
		if s, ok := ref[1].Value.(ast.String); ok {
			key = string(s)
		}
	}
	switch {
	case head == "input" && slices.Contains(w.inputKeys, key):
		return done(w.input(key, slices.Index(w.inputKeys, key))).Concat(ref[2:])
	case head == "input":
		return done(w.whole).Concat(ref[1:])
	case head == "data" && slices.Contains(w.dataKeys, key) && w.lendData(slices.Index(w.dataKeys, key)):
		return done(dataLent).Concat(ref[1:])
	}
	return ref
}

// lendRule moves literals of r to the arguments.
func (w *writer) lendRule(r *ast.Rule) {
	if r.Default {
		return
	}
	for ; r != nil; r = r.Else {
		if r.Head.Value != nil {
			r.Head.Value = w.lendTerm(r.Head.Value)
		}
		w.lendBody(r.Body)
	}
}

func (w *writer) lendBody(b ast.Body) {
	for _, e := range b {
		switch terms := e.Terms.(type) {
		case []*ast.Term:
			for i := 1; i < len(terms); i++ {
				if i > 1 || !e.IsAssignment() {
					terms[i] = w.lendTerm(terms[i])
				}
			}
		case *ast.SomeDecl:
			if call, ok := terms.Symbols[0].Value.(ast.Call); ok {
				call[len(call)-1] = w.lendTerm(call[len(call)-1])
			}
		case *ast.Every:
			terms.Domain = w.lendTerm(terms.Domain)
			w.lendBody(terms.Body)
		}
	}
}

// lendTerm is t with literals that come with the arguments.
func (w *writer) lendTerm(t *ast.Term) *ast.Term {
	switch v := t.Value.(type) {
	case ast.String, ast.Number, ast.Boolean, ast.Null:
		w.seen++
		if !w.lend(w.seen) {
			return t
		}
		key := fmt.Sprintf("k%d", w.seen)
		w.literals[key] = json.RawMessage(v.String())
		return ast.NewTerm(done(literalLent).Append(ast.StringTerm(key)))
	case *ast.Array:
		out := make([]*ast.Term, v.Len())
		for i := range out {
			out[i] = w.lendTerm(v.Elem(i))
		}
		return ast.ArrayTerm(out...)
	case ast.Set:
		var out []*ast.Term
		for _, e := range v.Slice() {
			out = append(out, w.lendTerm(e))
		}
		return ast.SetTerm(out...)
	case ast.Object:
		var out [][2]*ast.Term
		for _, k := range v.Keys() {
			key := w.lendTerm(k)
			w.lentKeys = w.lentKeys || !key.Equal(k)
			out = append(out, [2]*ast.Term{key, w.lendTerm(v.Get(k))})
		}
		return ast.ObjectTerm(out...)
	case ast.Ref:
		for i := 1; i < len(v); i++ {
			if call, ok := v[i].Value.(ast.Call); ok {
				w.lendTerm(ast.NewTerm(call))
			}
		}
	case ast.Call:
		for i := 1; i < len(v); i++ {
			v[i] = w.lendTerm(v[i])
		}
	case *ast.ArrayComprehension:
		w.lendBody(v.Body)
	case *ast.SetComprehension:
		w.lendBody(v.Body)
	case *ast.ObjectComprehension:
		w.lendBody(v.Body)
	}
	return t
}

// call fills in the data and the call of out.
func (w *writer) call(out *written, input any, data map[string]any) error {
	arguments := map[string]any{"input": input, "literals": w.literals}
	known, annotations, kept := map[string]any{"input": input}, map[string]any{}, map[string]any{}
	if slices.Equal(w.whole, inBoth) {
		rest := map[string]any{}
		for i, key := range w.inputKeys {
			to := rest
			if w.input(key, i).HasPrefix(inTool) {
				to = annotations
			}
			to[key] = input.(map[string]any)[key]
		}
		arguments["input"] = rest
	}
	if !slices.Equal(w.whole, inData) {
		known = map[string]any{}
	} else {
		delete(arguments, "input")
	}
	lent := map[string]any{}
	for key, v := range data {
		if i := slices.Index(w.dataKeys, key); i >= 0 && w.lendData(i) {
			lent[key] = v
		} else {
			kept[key] = v
		}
	}
	arguments["data"], kept["tg_case"] = lent, known
	raw, err := json.Marshal(kept)
	args, aerr := json.Marshal(arguments)
	tool, terr := json.Marshal(annotations)
	if err := errors.Join(err, aerr, terr); err != nil {
		return err
	}
	out.data, out.literals, out.lentKeys = raw, w.literals, w.lentKeys
	out.input = &policy.Input{
		Principal: policy.Principal{Subject: "a", Roles: []string{"r"}},
		Tool:      policy.Tool{Server: "s", Name: "t", Exposed: "t", Annotations: tool},
		Arguments: args,
		Request:   policy.Request{ID: "1", Time: time.Unix(1, 0)},
	}
	return nil
}
