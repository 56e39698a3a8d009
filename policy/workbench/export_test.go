package workbench

import "github.com/toolgate/toolgate/policy"

// ReadTable gives the inputs of a decision table.
func ReadTable(content []byte) ([]*policy.Input, error) {
	cases, err := readTable(content)
	var out []*policy.Input
	for _, c := range cases {
		out = append(out, c.input)
	}
	return out, err
}
