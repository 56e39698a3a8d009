package rego

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // of schedules, for containers and systems without it

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
)

const (
	// dataDeclaration is the member of custom METADATA of a package that lists the data
	// which has the form of docs/schemas/policy-data.json.
	dataDeclaration = "policy-data"
	codeDataForm    = "data-form"
	// schemaFolder holds the schemas that METADATA of a policy names, below the policy.
	schemaFolder = "schemas/"
)

// publishedForm is docs/schemas/policy-data.json.
var publishedForm = sync.OnceValues(func() (*schema.Own, error) {
	return schema.ReadOwn(schemas.Read("policy-data.json"), "", map[string]func(string) error{"time-zone": checkZone})
})

// checkZone returns an error for a time zone that neither this machine nor the program has.
func checkZone(name string) error {
	if _, err := time.LoadLocation(name); err != nil || name == "Local" {
		return fmt.Errorf("%q is no time zone", name)
	}
	return nil
}

// checkPublished holds the data that packages declare with custom.policy-data to the
// published form: a misspelt limit would bound nothing. Packages that declare nothing may
// give data any form.
func (f sourceFiles) checkPublished(s *sources, from func([]string) string) error {
	form, err := publishedForm()
	if err != nil {
		return fmt.Errorf("reading the schema of policy data: %w", err)
	}
	held := map[string]any{}
	for _, name := range declaredData(s.modules) {
		if v, ok := s.data[name]; ok {
			held[name] = v
		}
	}
	found, err := f.checkForm(form, held, nil, from)
	if err != nil {
		return err
	}
	return found.errorOf("reading policy data")
}

// declaredData returns the members of data that packages declare to be in the published
// form.
func declaredData(modules map[string]*ast.Module) (names []string) {
	for _, m := range modules {
		for _, a := range m.Annotations {
			list, _ := a.Custom[dataDeclaration].([]any)
			for _, one := range list {
				if name, ok := one.(string); ok {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// checkForm returns what a schema says against the data at a path.
func (f sourceFiles) checkForm(form *schema.Own, data any, at []string, from func([]string) string) (Faults, error) {
	violations, err := form.CheckValue(data)
	if err != nil {
		return nil, fmt.Errorf("checking policy data: %w", err)
	}
	var found Faults
	for _, v := range violations[:min(len(violations), mostUnread)] {
		path := slices.Concat(at, v.Path)
		one := Finding{Level: LevelError, Code: codeDataForm, Hint: v.Hint()}
		switch v.Keyword {
		case "additionalProperties":
			path = append(path, v.Names[0])
			one.Message, one.Hint = "unknown member data"+dotted(path), meant(v.Names[0], v.Want)
		case "required":
			one.Message = fmt.Sprintf("data%s has no member %s", dotted(path), v.Names[0])
		case "enum":
			one.Message, one.Hint = fmt.Sprintf("data%s is %q", dotted(path), v.Got), meant(v.Got, v.Want)
		case "type":
			one.Message = fmt.Sprintf("data%s is no %s", dotted(path), strings.Join(v.Want, " or "))
		case "format":
			one.Message = fmt.Sprintf("data%s: %v", dotted(path), v.Err)
		default:
			one.Message = strings.TrimSpace(fmt.Sprintf("data%s %s", dotted(path), v.Message))
			if v.Message == "" {
				one.Message += " does not meet " + v.Keyword + " of its schema"
			}
		}
		found = append(found, f.placed(one, path, from))
	}
	return found, nil
}

// checkOwn compiles the policy with the schemas that its METADATA names, so that a path
// which they do not have is a type error, and holds the data at their paths to them. As for
// "opa check --schema", schema.NAME is the file schemas/NAME.json of the policy.
func (s *sources) checkOwn(o Options) error {
	f, _, err := o.read()
	if err != nil {
		return err
	}
	set, err := o.ownSchemas()
	if err != nil {
		return err
	}
	c := NewCompiler().WithSchemas(set).WithUseTypeCheckAnnotations(true)
	if c.Compile(withoutSystem(s.modules)); c.Failed() {
		return fmt.Errorf("compiling policy with its schemas:\n%w", faults(c.Errors))
	}
	var found Faults
	for _, m := range c.Modules {
		for _, a := range m.Annotations {
			for _, declared := range a.Schemas {
				one, err := f.checkDeclared(s.data, declared, set, o.dataAt())
				if err != nil {
					return Faults{at(a.Location, LevelError, codeDataForm, err.Error(), "")}.errorOf("reading schemas")
				}
				found = append(found, one...)
			}
		}
	}
	return found.errorOf("reading policy data")
}

// checkDeclared holds the data at one path to the schema that an annotation gives it.
func (f sourceFiles) checkDeclared(data any, a *ast.SchemaAnnotation, set *ast.SchemaSet, from func([]string) string) (Faults, error) {
	var path []string
	for _, t := range a.Path[1:] {
		members, _ := data.(map[string]any)
		name, _ := t.Value.(ast.String)
		path, data = append(path, string(name)), members[string(name)]
	}
	if data == nil || !a.Path[0].Equal(ast.DefaultRootDocument) {
		return nil, nil
	}
	raw := set.Get(a.Schema)
	if a.Definition != nil {
		raw = *a.Definition
	}
	form, err := schema.CompileOwn(jsonOf(raw), "", nil)
	if err != nil {
		return nil, err
	}
	return f.checkForm(form, data, path, from)
}

// ownSchemas returns the schema of input and the files below schemas of the policy.
func (o Options) ownSchemas() (*ast.SchemaSet, error) {
	found, err := ReadFiles(o.Path, func(name string) bool {
		return name == schemaFolder || strings.HasPrefix(name, schemaFolder) && path.Ext(name) == ".json"
	})
	if err != nil {
		return nil, fmt.Errorf("reading schemas: %w", err)
	}
	input, err := inputTypes()
	if err != nil {
		return nil, err
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, input.Get(ast.SchemaRootRef))
	for name, raw := range found {
		ref := ast.SchemaRootRef
		for part := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(name, schemaFolder), ".json"), "/") {
			ref = ref.Append(ast.StringTerm(part))
		}
		var doc any
		if err := util.UnmarshalJSON(raw, &doc); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		set.Put(ref, doc)
	}
	return set, nil
}
