package postgres

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

// runnable are the names of what go test runs with -run.
var runnable = regexp.MustCompile(`^(Test|Fuzz|Example)`)

// reaching returns the tests in the files of dir whose code there may call the function of a
// name, written PACKAGE.NAME, in alphabetical order. It follows every name that a declaration mentions, and takes
// declarations of one name for one, so it may return a test too many.
func reaching(dir, function string) ([]string, error) {
	mentions, err := mentioned(dir)
	if err != nil {
		return nil, err
	}
	reach := map[string]bool{function: true}
	for more := true; more; {
		more = false
		for name, others := range mentions {
			if !reach[name] && slices.ContainsFunc(others, func(other string) bool { return reach[other] }) {
				reach[name], more = true, true
			}
		}
	}
	found := slices.DeleteFunc(slices.Sorted(maps.Keys(reach)), func(name string) bool { return !runnable.MatchString(name) })
	if len(found) == 0 {
		return nil, errors.New("no test calls " + function)
	}
	return found, nil
}

// mentioned returns which names the declarations of each name mention, in the test files of
// dir.
func mentioned(dir string) (map[string][]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	mentions := map[string][]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			for _, declared := range declaredBy(d) {
				mentions[declared] = append(mentions[declared], identifiers(d)...)
			}
		}
	}
	return mentions, nil
}

// declaredBy returns the names of the functions, methods, variables and types that d
// declares.
func declaredBy(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		names = append(names, d.Name.Name)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names = append(names, name.Name)
				}
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			}
		}
	}
	return names
}

func identifiers(d ast.Decl) (names []string) {
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			names = append(names, n.Name)
		case *ast.SelectorExpr:
			if from, ok := n.X.(*ast.Ident); ok {
				names = append(names, from.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return names
}
