package report

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ToYAML returns a JSON document as YAML in block style. Keys stay in their order, and
// numbers as they are written. A string that any version of YAML reads as something else
// is quoted.
func ToYAML(document string) (string, error) {
	dec := json.NewDecoder(strings.NewReader(document))
	dec.UseNumber()
	root, err := yamlNode(dec)
	if err != nil {
		return "", fmt.Errorf("printing: %w", err)
	}
	var b strings.Builder
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return "", fmt.Errorf("printing: %w", err)
	}
	return b.String(), nil
}

// yamlNode reads the next value. The keys of an object are values of the stream too, so
// an object and an array are read alike.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		return yamlContainer(dec, token)
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: token.String()}, nil
	}
	n := new(yaml.Node)
	err = n.Encode(token) // a string with the quotes that it needs, a boolean or null
	if text, ok := token.(string); ok {
		n.Tag = "!!str"
		if text == "<<" || json.Valid([]byte(text)) { // the encoder knows no merge keys, and 1e400 as no number
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	return n, err
}

func yamlContainer(dec *json.Decoder, open json.Delim) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.MappingNode}
	if open == '[' {
		n.Kind = yaml.SequenceNode
	}
	for dec.More() {
		child, err := yamlNode(dec)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, child)
	}
	_, err := dec.Token() // the closing delimiter
	return n, err
}
