package workbench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/open-policy-agent/opa/v1/util"
	"go.yaml.in/yaml/v3"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// A decision table is a YAML or JSON document in a file named *_test.yaml,
// *_test.yml or *_test.json: inputs with the decisions that are wanted.
//
//	input:                      # what the cases have in common; may be absent
//	  principal: {roles: [treasurer]}
//	  tool: {exposed: manage_wallet}
//	cases:
//	  - name: small transfers pass
//	    input: {arguments: {action: transfer, amount: 100}}
//	    want: allow
//	  - input: {arguments: {action: transfer, amount: 101}}
//	    want: {effect: hold, rule: amount-above-threshold, approval: {roles: [approver]}}
//
// Objects of a case are joined with those that all have in common, anything
// else replaces it. What an input leaves out has the values of defaultInput, and meters
// stand at 0.
// A wanted decision is compared in the members that it names, and no others.
type tableCase struct {
	name  string
	row   int // from 1
	input *policy.Input
	want  want
}

// want is a decision of which only the named members count, at every level.
type want struct {
	named    map[string]any // as written
	decision policy.Decision
}

// defaultInput is what an input of a table need not say. Its time is a Monday
// at noon.
const defaultInput = `{"principal": {"subject": "somebody", "roles": []}, "arguments": {},
	"request": {"id": "1", "transport": "http", "era": "", "trace_id": "trc_test", "time": "2024-01-01T12:00:00Z"}}`

// maxNodes bounds a table, with every alias spelled out, and maxDepth what
// stands within another: an alias may stand for what it is part of.
const (
	maxNodes = 200_000
	maxDepth = 64
)

// readTable reads a decision table. The error names the line.
func readTable(content []byte) ([]tableCase, error) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("there is nothing in it")
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	r := &nodeReader{room: maxNodes}
	root := doc.Content[0]
	common := map[string]any{}
	cases := root
	if root.Kind == yaml.MappingNode {
		members, err := r.members(root, "input", "cases")
		if err != nil {
			return nil, err
		}
		if members["cases"] == nil {
			return nil, fmt.Errorf("line %d: cases are missing (hint: cases: [{input: …, want: allow}])", root.Line)
		}
		if n := members["input"]; n != nil {
			if common, err = r.object(n, "input"); err != nil {
				return nil, err
			}
		}
		cases = members["cases"]
	}
	if cases.Kind != yaml.SequenceNode || len(cases.Content) == 0 {
		return nil, fmt.Errorf("line %d: cases are no list with something in it", cases.Line)
	}
	var out []tableCase
	for i, n := range cases.Content {
		c, err := r.readCase(n, common)
		if err != nil {
			return nil, err
		}
		if c.name == "" {
			c.name = fmt.Sprintf("case %d", i+1)
		}
		out = append(out, c)
	}
	return out, nil
}

func (r *nodeReader) readCase(n *yaml.Node, common map[string]any) (c tableCase, err error) {
	c.row = n.Line
	members, err := r.members(n, "name", "input", "want")
	if err != nil {
		return c, err
	}
	if name := members["name"]; name != nil {
		c.name = name.Value
	}
	own := map[string]any{}
	if n := members["input"]; n != nil {
		if own, err = r.object(n, "input"); err != nil {
			return c, err
		}
	}
	if c.input, err = completeInput(merge(common, own)); err != nil {
		return c, fmt.Errorf("line %d: %w", c.row, err)
	}
	if members["want"] == nil {
		return c, fmt.Errorf("line %d: want is missing (hint: want: allow, or want: {effect: deny, rule: …})", c.row)
	}
	v, err := r.value(members["want"])
	if err == nil {
		c.want, err = readWant(v)
	}
	if err != nil {
		return c, fmt.Errorf("line %d: want: %w", members["want"].Line, err)
	}
	return c, nil
}

// completeInput makes an input of what a person wrote of one.
func completeInput(said map[string]any) (*policy.Input, error) {
	var full map[string]any
	if err := util.UnmarshalJSON([]byte(defaultInput), &full); err != nil {
		return nil, fmt.Errorf("reading the default input: %w", err)
	}
	full = merge(full, said)
	if tool, ok := full["tool"].(map[string]any); ok && tool["name"] == nil {
		tool = maps.Clone(tool)
		tool["name"] = tool["exposed"]
		full["tool"] = tool
	}
	raw, err := json.Marshal(full)
	if err != nil {
		return nil, err
	}
	in := new(policy.Input)
	if err := json.Unmarshal(raw, in); err != nil {
		return nil, err
	}
	return in, nil
}

// merge lays over upon under; both stay as they are.
func merge(under, over map[string]any) map[string]any {
	out := maps.Clone(under)
	for name, v := range over {
		below, ok := out[name].(map[string]any)
		above, object := v.(map[string]any)
		if ok && object {
			v = merge(below, above)
		}
		out[name] = v
	}
	return out
}

// readWant reads what a case wants: an effect alone, or members of a decision.
func readWant(v any) (w want, err error) {
	if effect, ok := v.(string); ok {
		v = map[string]any{"effect": effect}
	}
	w.named, _ = v.(map[string]any)
	w.decision, err = rego.ReadMembers(v)
	return w, err
}

// differs names the members in which d is not the decision that w wants; "" is
// none.
func (w want) differs(d *policy.Decision) string {
	return strings.Join(differences("", w.named, plainDecision(&w.decision), plainDecision(d)), "; ")
}

// differences compares the named members of two JSON objects.
func differences(path string, named, want, got map[string]any) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(named)) {
		below, nested := named[name].(map[string]any)
		wanted, _ := want[name].(map[string]any)
		have, object := got[name].(map[string]any)
		switch {
		case nested && object:
			out = append(out, differences(path+name+".", below, wanted, have)...)
		case !reflect.DeepEqual(want[name], got[name]):
			out = append(out, fmt.Sprintf("%s%s: want %s, got %s", path, name, written(want[name]), written(got[name])))
		}
	}
	return out
}

// written is v as JSON.
func written(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// plainDecision is d as a JSON object. Durations are text and pointers are
// sorted, as people compare them.
func plainDecision(d *policy.Decision) (out map[string]any) {
	plain := *d
	plain.Redact = slices.Sorted(slices.Values(d.Redact))
	raw, err := jsonv2.Marshal(plain, policy.Durations)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil
	}
	return out
}

// nodeReader turns nodes of YAML into values with every digit of a number
// kept. Aliases count as what they stand for, so that a small file cannot
// become a large one.
type nodeReader struct{ room, depth int }

// members gives the members of a mapping, of which others than known are errors.
func (r *nodeReader) members(n *yaml.Node, known ...string) (map[string]*yaml.Node, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: not an object with %s", n.Line, strings.Join(known, ", "))
	}
	out := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !slices.Contains(known, key.Value) {
			return nil, fmt.Errorf("line %d: %s is not known (hint: there is %s)", key.Line, key.Value, strings.Join(known, ", "))
		}
		if out[key.Value] != nil {
			return nil, fmt.Errorf("line %d: %s is there twice", key.Line, key.Value)
		}
		out[key.Value] = n.Content[i+1]
	}
	return out, nil
}

func (r *nodeReader) object(n *yaml.Node, what string) (map[string]any, error) {
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("line %d: %s is not an object", n.Line, what)
	}
	return o, nil
}

func (r *nodeReader) value(n *yaml.Node) (any, error) {
	r.depth++
	defer func() { r.depth-- }()
	if r.room--; r.room < 0 || r.depth > maxDepth {
		return nil, fmt.Errorf("line %d: more than %d values, or more than %d within each other", n.Line, maxNodes, maxDepth)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return r.value(n.Alias)
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for pair := range slices.Chunk(n.Content, 2) {
			key := pair[0]
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
				return nil, fmt.Errorf("line %d: the name of a member is no text", key.Line)
			}
			if _, twice := out[key.Value]; twice {
				return nil, fmt.Errorf("line %d: %s is there twice", key.Line, key.Value)
			}
			v, err := r.value(pair[1])
			if err != nil {
				return nil, err
			}
			out[key.Value] = v
		}
		return out, nil
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, c := range n.Content {
			var err error
			if out[i], err = r.value(c); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return scalar(n)
}

// scalar reads a value as JSON has it: a number that JSON can write keeps its
// digits, a time is text.
func scalar(n *yaml.Node) (any, error) {
	switch n.Tag {
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		err := n.Decode(&b)
		return b, err
	case "!!int", "!!float":
		number := json.Number(n.Value)
		if _, err := json.Marshal(number); err == nil {
			return number, nil
		}
		return nil, fmt.Errorf("line %d: %s is no number as JSON has it (hint: quote it, if it is text)", n.Line, n.Value)
	case "!!timestamp", "!!str":
		return n.Value, nil
	}
	return nil, fmt.Errorf("line %d: %s cannot be told in JSON", n.Line, n.Tag)
}
