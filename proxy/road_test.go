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

// The stages stand in literal lists, and the comments of Call, Relay, Notify and Ask draw
// the same lists.
func TestTheRoadIsDrawnAsItRuns(t *testing.T) {
	for _, tt := range []struct {
		file, list, function string
		want                 []string
	}{
		{"road.go", "road", "Call", []string{"receive", "identify", "stop", "resolve", "decide", "connect", "limit", "validate", "approve", "record", "forward", "normalise", "close"}},
		{"relay.go", "relayRoad", "Relay", []string{"receive", "identify", "stop", "resolve", "decide", "connect", "limit", "record", "forward", "close"}},
		{"relay.go", "noticeRoad", "Notify", []string{"receive", "identify", "stop", "decide", "limit", "record", "forward", "close"}},
		{"tickets.go", "statusRoad", "leave", []string{"resolve", "limit", "validate", "answer", "close"}},
		{"callback.go", "callbackRoad", "Ask", []string{"receive", "stop", "decide", "limit", "record", "forward", "close"}},
	} {
		run, drawn := roadIn(t, tt.file, tt.list, tt.function)
		if d := cmp.Diff(tt.want, drawn); d != "" {
			t.Errorf("%s's comment: %s", tt.function, d)
		}
		if d := cmp.Diff(tt.want[:len(tt.want)-1], run); d != "" {
			t.Errorf("the list %s that runs: %s", tt.list, d)
		}
	}
}

// roadIn reads the names in a list of stages, and in a function's comment.
func roadIn(t *testing.T, name, list, function string) (run, drawn []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if n.Names[0].Name == list {
				for _, row := range n.Values[0].(*ast.CompositeLit).Elts {
					name, _ := strconv.Unquote(row.(*ast.CompositeLit).Elts[0].(*ast.BasicLit).Value)
					run = append(run, name)
				}
			}
		case *ast.FuncDecl:
			if n.Name.Name == function {
				for _, m := range regexp.MustCompile(`(?m)^\t(\w+) {2,}`).FindAllStringSubmatch(n.Doc.Text(), -1) {
					drawn = append(drawn, m[1])
				}
			}
		}
		return true
	})
	return run, drawn
}
