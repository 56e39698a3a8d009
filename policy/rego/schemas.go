package rego

import (
	"fmt"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/docs/schemas"
)

// inputTypes is docs/schemas/policy-input.json as the types that every policy
// is compiled against: a member of input that no request has is an error of
// the compiler, with the place. Below arguments, annotations and usage
// anything may stand.
var inputTypes = sync.OnceValues(func() (*ast.SchemaSet, error) {
	raw, err := schemas.Files.ReadFile("policy-input.json")
	if err != nil {
		return nil, fmt.Errorf("reading the schema of input: %w", err)
	}
	var doc any
	if err := util.UnmarshalJSON(raw, &doc); err != nil {
		return nil, fmt.Errorf("reading the schema of input: %w", err)
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, doc)
	return set, nil
})
