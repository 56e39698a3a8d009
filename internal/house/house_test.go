// Package house_test checks the rules for packages, names, functions and imports.
// It tests the source, not the program.
package house_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// source is one Go file of the project.
type source struct {
	path   string // slashed, from the root
	pkg    string // its directory, "." for the root
	ast    *ast.File
	fset   *token.FileSet
	lines  int
	isTest bool
}

// isGenerated reports whether a generator wrote s: what people read is its source.
func (s *source) isGenerated() bool { return ast.IsGenerated(s.ast) }

// parsed is every Go file of the project, read once for all tests.
var parsed struct {
	once  sync.Once
	files []source
	err   error
}

// sources returns every Go file of the project except those below testdata.
func sources(t *testing.T) []source {
	t.Helper()
	top := corpus.Checkout(t)
	parsed.once.Do(func() { parsed.files, parsed.err = readSources(top) })
	if parsed.err != nil {
		t.Fatal(parsed.err)
	}
	if len(parsed.files) < 50 {
		t.Fatalf("read %d files: the walk is broken", len(parsed.files))
	}
	return parsed.files
}

func readSources(top string) ([]source, error) {
	var found []source
	err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, file)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if name := d.Name(); name == "testdata" || name == "node_modules" || (strings.HasPrefix(name, ".") && rel != ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		found = append(found, source{
			path: rel, pkg: path.Dir(rel), ast: tree, fset: fset,
			lines: strings.Count(string(text), "\n"), isTest: strings.HasSuffix(rel, "_test.go"),
		})
		return nil
	})
	return found, err
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string]int{}
	for _, s := range sources(t) {
		if s.isTest {
			continue
		}
		if _, ok := comments[s.pkg]; !ok {
			comments[s.pkg] = 0
		}
		if s.ast.Doc != nil {
			comments[s.pkg]++
		}
	}
	for pkg, n := range comments {
		if n != 1 {
			t.Errorf("%s: %d package comments, want 1", pkg, n)
		}
	}
}

func TestEveryExportedNameHasAComment(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest {
			continue
		}
		for _, d := range s.ast.Decls {
			for _, name := range undocumented(d) {
				t.Errorf("%s: %s is exported and has no comment", s.fset.Position(d.Pos()), name)
			}
		}
	}
}

// undocumented returns the exported names of d without a comment. A comment on a
// group covers the whole group.
func undocumented(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
			return []string{d.Name.Name}
		}
	case *ast.GenDecl:
		if d.Doc != nil && d.Lparen.IsValid() {
			return nil
		}
		return undocumentedSpecs(d)
	}
	return nil
}

func undocumentedSpecs(d *ast.GenDecl) (bad []string) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil {
				bad = append(bad, spec.Name.Name)
			}
		case *ast.ValueSpec:
			for _, n := range spec.Names {
				if n.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
					bad = append(bad, n.Name)
				}
			}
		}
	}
	return bad
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
			continue
		case *ast.IndexExpr:
			typ = x.X
			continue
		case *ast.Ident:
			return x.IsExported()
		}
		return false
	}
}

func TestSizes(t *testing.T) {
	var lengths []int
	for _, s := range sources(t) {
		if s.isGenerated() {
			continue
		}
		if s.lines > 600 {
			t.Errorf("%s has %d lines, want at most 600", s.path, s.lines)
		}
		if s.isTest {
			continue
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > 80 {
				t.Errorf("%s: %s has %d lines, want at most 80", s.fset.Position(f.Pos()), f.Name.Name, n)
			}
			lengths = append(lengths, n)
		}
	}
	slices.Sort(lengths)
	if median := lengths[len(lengths)/2]; median > 12 {
		t.Errorf("the median function has %d lines, want at most 12", median)
	}
	short, _ := slices.BinarySearch(lengths, 41)
	if share := float64(short) / float64(len(lengths)); share < 0.94 {
		t.Errorf("%.1f %% of the functions have at most 40 lines, want 94", share*100)
	}
}

func TestInterfacesAreSmall(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if i, ok := typ.Type.(*ast.InterfaceType); ok && i.Methods.NumFields() > 3 && !s.isTest {
				t.Errorf("%s: interface %s has %d methods, want at most 3", s.fset.Position(typ.Pos()), typ.Name.Name, i.Methods.NumFields())
			}
			return true
		})
	}
}

func TestPackageNames(t *testing.T) {
	for _, s := range sources(t) {
		for _, bad := range []string{"util", "helper", "common", "manager", "misc"} {
			if strings.Contains(s.ast.Name.Name, bad) || strings.Contains(path.Base(s.path), bad) {
				t.Errorf("%s: the name %q is not descriptive", s.path, bad)
			}
		}
	}
}

// TestOneCallSiteToUpstreams: one place calls an upstream's tools, the stage forward
// of the road. Requests that call no tool and questions to clients have their own
// call sites.
func TestOneCallSiteToUpstreams(t *testing.T) {
	var sites []string
	for _, s := range sources(t) {
		if s.isTest {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || strings.HasPrefix(s.pkg, "registry") {
				return true
			}
			switch sel.Sel.Name {
			case "Forward":
				sites = append(sites, s.fset.Position(call.Pos()).String())
			case "Ask":
				// clientgroups.go hands on what the road has asked it.
				if !slices.Contains([]string{"proxy/relay.go", "proxy/callback.go", "proxy/approve.go", "proxy/mcp/clientgroups.go"}, s.path) {
					t.Errorf("%s: Ask is called outside the road", s.fset.Position(call.Pos()))
				}
			}
			return true
		})
	}
	if len(sites) != 1 || !strings.HasPrefix(sites[0], "proxy/forward.go:") {
		t.Errorf("calls of Forward: %v, want one, in proxy/forward.go", sites)
	}
}

func TestNothingUnfinished(t *testing.T) {
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b|not ` + `implemented`)
	for _, s := range sources(t) {
		for _, group := range s.ast.Comments {
			if w := unfinished.FindString(group.Text()); w != "" {
				t.Errorf("%s: %q", s.fset.Position(group.Pos()), w)
			}
		}
	}
}

func TestMainIsShort(t *testing.T) {
	for _, s := range sources(t) {
		if s.ast.Name.Name != "main" || s.isTest {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "main" {
				if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > 15 {
					t.Errorf("%s: main has %d lines, want at most 15", s.path, n)
				}
			}
		}
	}
}

// unnamedColumns is a statement that breaks when a table gets a column.
var unnamedColumns = regexp.MustCompile(`(?i)INSERT (OR \w+ )?INTO \w+ (VALUES|SELECT)`)

// TestStatementsNameTheirColumns holds what a migration that expands relies on: the
// statements of older versions still fit.
func TestStatementsNameTheirColumns(t *testing.T) {
	top, inserts := corpus.Checkout(t), 0
	for _, s := range sources(t) {
		if s.isTest {
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, s.path))
		if err != nil {
			t.Fatal(err)
		}
		inserts += strings.Count(string(text), "INSERT INTO ")
		for _, bad := range unnamedColumns.FindAll(text, -1) {
			t.Errorf("%s: %s", s.path, bad)
		}
	}
	if inserts < 10 {
		t.Errorf("found %d statements: the search is broken", inserts)
	}
}

// TestTestsWithoutTheRaceDetectorExist holds that each name in .ci/plain is a test's: one with another name
// would be watched again, which takes minutes.
func TestTestsWithoutTheRaceDetectorExist(t *testing.T) {
	_, tests := declared(t)
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), ".ci", "plain"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name := strings.TrimSpace(line)
		exists := func(test string) bool { return strings.HasSuffix(test, "."+name) }
		if !strings.HasPrefix(name, "#") && !slices.ContainsFunc(slices.Collect(maps.Keys(tests)), exists) {
			t.Errorf(".ci/plain: test %s does not exist", name)
		}
	}
}
