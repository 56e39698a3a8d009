package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

var (
	keyAction    = ast.StringTerm("action")
	actionCall   = ast.StringTerm(policy.ActionCall)
	keyPrincipal = ast.StringTerm("principal")
	keyTool      = ast.StringTerm("tool")
	keyArguments = ast.StringTerm("arguments")
	keyRequest   = ast.StringTerm("request")

	keyID        = ast.StringTerm("id")
	keyTransport = ast.StringTerm("transport")
	keyEra       = ast.StringTerm("era")
	keyTraceID   = ast.StringTerm("trace_id")
	keyTime      = ast.StringTerm("time")
	keyUsage     = ast.StringTerm("usage")
)

// member is one member of an object under construction.
func member(key *ast.Term, value string) [2]*ast.Term {
	return [2]*ast.Term{key, ast.StringTerm(value)}
}

// termOf returns v as a policy sees it, in its form as JSON.
func termOf(v any, stop topdown.Cancel) (*ast.Term, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding input: %w", err)
	}
	return readJSON(raw, stop)
}

func requestTerm(r *policy.Request) *ast.Term {
	return ast.ObjectTerm(member(keyID, r.ID), member(keyTransport, r.Transport), member(keyEra, r.Era),
		member(keyTraceID, r.TraceID), member(keyTime, r.Time.UTC().Format(time.RFC3339Nano)))
}

// inputTerm returns in as a policy sees it. known holds the terms of the principal
// and the tool; it is nil for a request that calls no tool.
func inputTerm(in *policy.Input, known *pair, stop topdown.Cancel) (ast.Value, error) {
	args, err := argumentsTerm(in.Arguments, stop)
	if err != nil {
		return nil, err
	}
	if known == nil {
		about := 0
		for _, there := range [...]bool{in.Resource != nil, in.Prompt != nil, in.Server != nil} {
			if there {
				about++
			}
		}
		if about != 1 {
			return nil, errors.New("neither one resource nor one prompt nor one server")
		}
		t, err := termOf(in, stop)
		if err != nil {
			return nil, err
		}
		return t.Value, nil
	}
	members := append(make([][2]*ast.Term, 0, 6), [2]*ast.Term{keyArguments, args}, [2]*ast.Term{keyRequest, requestTerm(&in.Request)},
		[2]*ast.Term{keyAction, actionCall}, [2]*ast.Term{keyPrincipal, known.principalTerm}, [2]*ast.Term{keyTool, known.toolTerm})
	if in.Usage != nil {
		usage, err := termOf(in.Usage, stop)
		if err != nil {
			return nil, err
		}
		members = append(members, [2]*ast.Term{keyUsage, usage})
	}
	return ast.NewObject(members...), nil
}

// argumentsTerm reads the judged bytes; absent arguments are no members. It ends
// with an error when stop fires.
func argumentsTerm(raw json.RawMessage, stop topdown.Cancel) (*ast.Term, error) {
	if len(raw) == 0 {
		return ast.ObjectTerm(), nil
	}
	t, err := readJSON(raw, stop)
	if err != nil {
		return nil, fmt.Errorf("reading arguments: %w", err)
	}
	if _, ok := t.Value.(ast.Object); !ok {
		return nil, errors.New("reading arguments: not a JSON object")
	}
	return t, nil
}

var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(bytes.NewReader(nil)) }}

// readJSON makes a term of exactly one JSON value, until stop fires. Numbers keep
// their text, so that no digit is lost; a name that is there twice is an error.
func readJSON(raw []byte, stop topdown.Cancel) (*ast.Term, error) {
	d := decoders.Get().(*jsontext.Decoder)
	d.Reset(bytes.NewBuffer(raw))
	defer decoders.Put(d)
	r := jsonReader{Decoder: d, stop: stop}
	t, err := r.value()
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return t, nil
}

// jsonReader makes terms of JSON. Objects are filled member by member, so that
// stop is heard even while keys of equal hashes are compared.
type jsonReader struct {
	*jsontext.Decoder
	stop topdown.Cancel
}

func (r *jsonReader) value() (*ast.Term, error) {
	if r.stop.Cancelled() {
		return nil, errTimeout
	}
	token, err := r.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return r.object()
	case '[':
		return r.array()
	case '"':
		return ast.StringTerm(token.String()), nil
	case '0':
		return numberTerm(token.String())
	case 't':
		return ast.InternedTerm(true), nil
	case 'f':
		return ast.InternedTerm(false), nil
	}
	return ast.NullTerm(), nil
}

// maxNumberLength bounds the characters of a number: arithmetic takes more than
// linear time in its digits.
const maxNumberLength = 10_000

func numberTerm(text string) (*ast.Term, error) {
	if len(text) > maxNumberLength {
		return nil, fmt.Errorf("a number has more than %d characters", maxNumberLength)
	}
	n, err := ast.NumberChecked(text)
	if err != nil {
		return nil, err
	}
	return ast.NewTerm(n), nil
}

func (r *jsonReader) object() (*ast.Term, error) {
	out := ast.NewObject()
	for r.PeekKind() != '}' {
		key, err := r.ReadToken()
		if err != nil {
			return nil, err
		}
		name := ast.StringTerm(key.String())
		value, err := r.value()
		if err != nil {
			return nil, err
		}
		out.Insert(name, value)
	}
	_, err := r.ReadToken()
	return ast.NewTerm(out), err
}

func (r *jsonReader) array() (*ast.Term, error) {
	var elements []*ast.Term
	for r.PeekKind() != ']' {
		value, err := r.value()
		if err != nil {
			return nil, err
		}
		elements = append(elements, value)
	}
	_, err := r.ReadToken()
	return ast.ArrayTerm(elements...), err
}
