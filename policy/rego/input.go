package rego

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego/builtin"
)

var (
	isCall = [2]*ast.Term{ast.StringTerm("action"), ast.StringTerm(policy.ActionCall)}

	keyPrincipal   = ast.StringTerm("principal")
	keyTool        = ast.StringTerm("tool")
	keyAnnotations = ast.StringTerm("annotations")
	keyArguments   = ast.StringTerm("arguments")
	keyRequest     = ast.StringTerm("request")
	keyTags        = ast.StringTerm("tags")
	keyFacts       = ast.StringTerm("facts")
	keyUsage       = ast.StringTerm("usage")
	keyCalls       = ast.StringTerm("calls")
	keySum         = ast.StringTerm("sum")

	toolNames    = ast.MustParseTerm(`["server", "name", "exposed", "risk", "fingerprint"]`).Value.(*ast.Array)
	requestNames = ast.MustParseTerm(`["id", "transport", "era", "trace_id", "time"]`).Value.(*ast.Array)
)

// textMembers returns members of an object with room for one more.
func textMembers(names *ast.Array, texts ...string) [][2]*ast.Term {
	terms, out := make([]ast.Term, len(texts)), make([][2]*ast.Term, len(texts), len(texts)+1)
	for i, s := range texts {
		terms[i].Value = ast.String(s)
		out[i] = [2]*ast.Term{names.Elem(i), &terms[i]}
	}
	return out
}

// termOf returns v as a policy sees it, in its form as JSON.
func termOf(v any, stop topdown.Cancel) (*ast.Term, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding input: %w", err)
	}
	return readJSON(raw, nil, stop)
}

func principalTerm(p policy.Principal) (*ast.Term, error) {
	p.Roles, p.Scopes = append([]string{}, p.Roles...), append([]string{}, p.Scopes...) // never null
	return termOf(p, topdown.NewCancel())
}

func toolTerm(t *policy.Tool) (*ast.Term, error) {
	members := textMembers(toolNames, t.Server, t.Name, t.Exposed, t.Risk, t.Fingerprint)
	if len(t.Annotations) > 0 {
		annotations, err := readJSON(t.Annotations, nil, topdown.NewCancel())
		if err != nil {
			return nil, fmt.Errorf("encoding input: %w", err)
		}
		members = append(members, [2]*ast.Term{keyAnnotations, annotations})
	}
	return ast.ObjectTerm(members...), nil
}

func requestTerm(r *policy.Request) *ast.Term {
	members := textMembers(requestNames, r.ID, r.Transport, r.Era, r.TraceID, r.Time.UTC().Format(time.RFC3339Nano))
	if len(r.Tags) > 0 {
		tags := ast.NewObjectWithCapacity(len(r.Tags))
		for key, value := range r.Tags {
			tags.Insert(ast.StringTerm(key), ast.StringTerm(value))
		}
		members = append(members, [2]*ast.Term{keyTags, ast.NewTerm(tags)})
	}
	return ast.ObjectTerm(members...)
}

func usageTerm(usage map[string]policy.Reading) (*ast.Term, error) {
	members := make([][2]*ast.Term, 0, len(usage))
	for name, r := range usage {
		sum, err := numberTerm(cmp.Or(string(r.Sum), "0"))
		if err != nil {
			return nil, fmt.Errorf("encoding input: %w", err)
		}
		members = append(members, [2]*ast.Term{ast.StringTerm(name), ast.ObjectTerm([2]*ast.Term{keyCalls, ast.InternedTerm(r.Calls)}, [2]*ast.Term{keySum, sum})})
	}
	return ast.ObjectTerm(members...), nil
}

// inputTerm returns in as the policy sees it. known holds the terms of the principal
// and the tool; it is nil for a request that calls no tool. input.request of a call is left
// out where no rule reads it.
func (p *program) inputTerm(in *policy.Input, known *pair, stop topdown.Cancel) (ast.Value, error) {
	args, err := argumentsTerm(in.Arguments, p.names, stop)
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
	members := append(make([][2]*ast.Term, 0, 7), isCall, [2]*ast.Term{keyArguments, args})
	if p.reads.request {
		members = append(members, [2]*ast.Term{keyRequest, requestTerm(&in.Request)})
	}
	if known.facts != nil {
		facts, err := readJSON(known.facts.Of(in.Arguments), p.names, stop)
		if err != nil {
			return nil, fmt.Errorf("reading facts: %w", err)
		}
		members = append(members, [2]*ast.Term{keyFacts, facts})
	}
	if in.Usage != nil {
		usage, err := usageTerm(in.Usage)
		if err != nil {
			return nil, err
		}
		members = append(members, [2]*ast.Term{keyUsage, usage})
	}
	return known.input(members...), nil
}

// argumentsTerm reads the judged bytes; absent arguments are no members. It ends
// with an error when stop fires.
func argumentsTerm(raw json.RawMessage, names map[string]*ast.Term, stop topdown.Cancel) (*ast.Term, error) {
	if len(raw) == 0 {
		return ast.ObjectTerm(), nil
	}
	t, err := readJSON(raw, names, stop)
	if err != nil {
		return nil, fmt.Errorf("reading arguments: %w", err)
	}
	if _, ok := t.Value.(ast.Object); !ok {
		return nil, errors.New("reading arguments: not a JSON object")
	}
	return t, nil
}

var readers = sync.Pool{New: func() any { return &jsonReader{decoder: jsontext.NewDecoder(new(bytes.Buffer))} }}

// readJSON makes a term of exactly one JSON value, until stop fires. Numbers keep
// their text, so that no digit is lost; a name that is there twice is an error. Members
// called as in names, which are JSON strings, share the terms of their names.
func readJSON(raw []byte, names map[string]*ast.Term, stop topdown.Cancel) (*ast.Term, error) {
	r := readers.Get().(*jsonReader)
	defer readers.Put(r)
	r.names, r.stop, r.bytes = names, stop, *bytes.NewBuffer(raw)
	r.decoder.Reset(&r.bytes)
	t, err := r.value()
	if err != nil {
		return nil, err
	}
	return t, atEnd(r.decoder)
}

// atEnd returns an error unless d has read all there is.
func atEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// jsonReader makes terms of JSON. Objects are filled member by member, so that
// stop is heard even while keys of equal hashes are compared.
type jsonReader struct {
	decoder *jsontext.Decoder
	bytes   bytes.Buffer // which decoder reads
	names   map[string]*ast.Term
	stop    topdown.Cancel
}

func (r *jsonReader) value() (*ast.Term, error) {
	if r.stop.Cancelled() {
		return nil, errTimeout
	}
	token, err := r.decoder.ReadToken()
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

func numberTerm(text string) (*ast.Term, error) {
	if builtin.Digits(text) > builtin.MaxDigits {
		return nil, fmt.Errorf("a number has more than %d digits", builtin.MaxDigits)
	}
	n, err := ast.NumberChecked(text)
	if err != nil {
		return nil, err
	}
	return ast.NewTerm(n), nil
}

func (r *jsonReader) object() (*ast.Term, error) {
	out := ast.NewObjectWithCapacity(4) // most have few members
	for r.decoder.PeekKind() != '}' {
		key, err := r.decoder.ReadValue()
		if err != nil {
			return nil, err
		}
		name := r.names[string(key)]
		if name == nil {
			text, _ := jsonrpc.Text(json.RawMessage(key)) // it is a string
			name = ast.StringTerm(text)
		}
		value, err := r.value()
		if err != nil {
			return nil, err
		}
		out.Insert(name, value)
	}
	_, err := r.decoder.ReadToken()
	return ast.NewTerm(out), err
}

func (r *jsonReader) array() (*ast.Term, error) {
	var elements []*ast.Term
	for r.decoder.PeekKind() != ']' {
		value, err := r.value()
		if err != nil {
			return nil, err
		}
		elements = append(elements, value)
	}
	_, err := r.decoder.ReadToken()
	return ast.ArrayTerm(elements...), err
}
