package rego

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/toolgate/toolgate/policy"
)

var (
	keyAction    = ast.StringTerm("action")
	keyResource  = ast.StringTerm("resource")
	keyPrompt    = ast.StringTerm("prompt")
	keyTools     = ast.StringTerm("tools")
	keyAsks      = ast.StringTerm("asks")
	actionCall   = ast.StringTerm(policy.ActionCall)
	keyPrincipal = ast.StringTerm("principal")
	keyTool      = ast.StringTerm("tool")
	keyArguments = ast.StringTerm("arguments")
	keyRequest   = ast.StringTerm("request")

	keyURI         = ast.StringTerm("uri")
	keySubject     = ast.StringTerm("subject")
	keyRoles       = ast.StringTerm("roles")
	keyClient      = ast.StringTerm("client")
	keyTenant      = ast.StringTerm("tenant")
	keyServer      = ast.StringTerm("server")
	keyName        = ast.StringTerm("name")
	keyExposed     = ast.StringTerm("exposed")
	keyRisk        = ast.StringTerm("risk")
	keyAnnotations = ast.StringTerm("annotations")
	keyFingerprint = ast.StringTerm("fingerprint")
	keyID          = ast.StringTerm("id")
	keyTransport   = ast.StringTerm("transport")
	keyEra         = ast.StringTerm("era")
	keyTraceID     = ast.StringTerm("trace_id")
	keyTime        = ast.StringTerm("time")
	keyUsage       = ast.StringTerm("usage")
	keyCalls       = ast.StringTerm("calls")
	keySum         = ast.StringTerm("sum")
)

// member is one member of an object under construction.
func member(key *ast.Term, value string) [2]*ast.Term {
	return [2]*ast.Term{key, ast.StringTerm(value)}
}

func principalTerm(p *policy.Principal) *ast.Term {
	members := append(make([][2]*ast.Term, 0, 4), member(keySubject, p.Subject),
		[2]*ast.Term{keyRoles, textsTerm(p.Roles)})
	if p.Client != "" {
		members = append(members, member(keyClient, p.Client))
	}
	if p.Tenant != "" {
		members = append(members, member(keyTenant, p.Tenant))
	}
	return ast.ObjectTerm(members...)
}

func toolTerm(t *policy.Tool) (*ast.Term, error) {
	members := append(make([][2]*ast.Term, 0, 6), member(keyServer, t.Server), member(keyName, t.Name),
		member(keyExposed, t.Exposed), member(keyRisk, t.Risk), member(keyFingerprint, t.Fingerprint))
	if len(t.Annotations) > 0 {
		v, err := parseJSON(t.Annotations)
		if err != nil {
			return nil, fmt.Errorf("reading annotations: %w", err)
		}
		members = append(members, [2]*ast.Term{keyAnnotations, v})
	}
	return ast.ObjectTerm(members...), nil
}

// subjectMember is what a request that calls no tool is about.
func subjectMember(in *policy.Input) ([2]*ast.Term, error) {
	switch {
	case in.Resource != nil && in.Prompt == nil && in.Server == nil:
		return [2]*ast.Term{keyResource, ast.ObjectTerm(member(keyServer, in.Resource.Server), member(keyURI, in.Resource.URI))}, nil
	case in.Prompt != nil && in.Resource == nil && in.Server == nil:
		return [2]*ast.Term{keyPrompt, ast.ObjectTerm(member(keyServer, in.Prompt.Server), member(keyName, in.Prompt.Name))}, nil
	case in.Server != nil && in.Resource == nil && in.Prompt == nil:
		return [2]*ast.Term{keyServer, serverTerm(in.Server)}, nil
	}
	return [2]*ast.Term{}, errors.New("neither one resource nor one prompt nor one server")
}

func serverTerm(s *policy.Server) *ast.Term {
	members := append(make([][2]*ast.Term, 0, 3), member(keyName, s.Name))
	if s.Tools != nil {
		members = append(members, [2]*ast.Term{keyTools, textsTerm(s.Tools)})
	}
	if s.Asks != "" {
		members = append(members, member(keyAsks, s.Asks))
	}
	return ast.ObjectTerm(members...)
}

func textsTerm(texts []string) *ast.Term {
	terms := make([]*ast.Term, len(texts))
	for i, s := range texts {
		terms[i] = ast.StringTerm(s)
	}
	return ast.ArrayTerm(terms...)
}

func requestTerm(r *policy.Request) *ast.Term {
	return ast.ObjectTerm(member(keyID, r.ID), member(keyTransport, r.Transport), member(keyEra, r.Era),
		member(keyTraceID, r.TraceID), member(keyTime, r.Time.UTC().Format(time.RFC3339Nano)))
}

// inputTerm is in as a policy sees it. known holds the terms of the principal
// and the tool; it is nil for a request that calls no tool.
func inputTerm(in *policy.Input, known *pair, stop topdown.Cancel) (ast.Value, error) {
	args, err := argumentsTerm(in.Arguments, stop)
	if err != nil {
		return nil, err
	}
	members := append(make([][2]*ast.Term, 0, 6), [2]*ast.Term{keyArguments, args}, [2]*ast.Term{keyRequest, requestTerm(&in.Request)})
	if known == nil {
		subject, err := subjectMember(in)
		return ast.NewObject(append(members, member(keyAction, in.Action), [2]*ast.Term{keyPrincipal, principalTerm(&in.Principal)}, subject)...), err
	}
	members = append(members, [2]*ast.Term{keyAction, actionCall},
		[2]*ast.Term{keyPrincipal, known.principalTerm}, [2]*ast.Term{keyTool, known.toolTerm})
	if in.Usage != nil {
		usage, err := usageTerm(in.Usage)
		if err != nil {
			return nil, err
		}
		members = append(members, [2]*ast.Term{keyUsage, usage})
	}
	return ast.NewObject(members...), nil
}

// usageTerm reads what the meters of a tool stand at.
func usageTerm(usage map[string]policy.Reading) (*ast.Term, error) {
	members := make([][2]*ast.Term, 0, len(usage))
	for name, r := range usage {
		sum, err := parseJSON([]byte(cmp.Or(r.Sum, "0")))
		if err != nil {
			return nil, fmt.Errorf("reading usage %s: %w", name, err)
		}
		members = append(members, [2]*ast.Term{ast.StringTerm(name), ast.ObjectTerm(
			[2]*ast.Term{keyCalls, ast.NumberTerm(json.Number(strconv.FormatInt(r.Calls, 10)))},
			[2]*ast.Term{keySum, sum})})
	}
	return ast.ObjectTerm(members...), nil
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

// parseJSON makes a term of exactly one JSON value. Numbers keep their text,
// so that no digit is lost; a name that is there twice is an error.
func parseJSON(raw []byte) (*ast.Term, error) { return readJSON(raw, topdown.NewCancel()) }

// readJSON is parseJSON until stop fires.
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
