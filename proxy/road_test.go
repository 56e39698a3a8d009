package proxy_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The stages stand in one literal list, and Call's comment draws the same list.
func TestTheRoadIsDrawnAsItRuns(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "road.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var run, drawn []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if n.Names[0].Name == "road" {
				for _, row := range n.Values[0].(*ast.CompositeLit).Elts {
					name, _ := strconv.Unquote(row.(*ast.CompositeLit).Elts[0].(*ast.BasicLit).Value)
					run = append(run, name)
				}
			}
		case *ast.FuncDecl:
			if n.Name.Name == "Call" {
				for _, m := range regexp.MustCompile(`(?m)^\t(\w+) {2,}`).FindAllStringSubmatch(n.Doc.Text(), -1) {
					drawn = append(drawn, m[1])
				}
			}
		}
		return true
	})
	want := []string{"receive", "identify", "resolve", "decide", "limit", "validate", "approve", "record", "forward", "normalise", "close"}
	if d := cmp.Diff(want, drawn); d != "" {
		t.Errorf("Call's comment: %s", d)
	}
	if d := cmp.Diff(want[:len(want)-1], run); d != "" {
		t.Errorf("the list that runs: %s", d)
	}
}
