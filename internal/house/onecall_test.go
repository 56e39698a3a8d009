package house_test

import (
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/cover"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// Ceilings of one allowed warm call. A change that needs more raises them in its own commit
// and says why.
const (
	// maxCallFunctions is how many functions the call enters: 222 to 228, as the machine is idle or
	// busy. A context without memory of its own takes 8, heads of HTTP that repeat 9, the scanner's
	// shares of a message 6.
	maxCallFunctions = 230
	maxScans         = 2 // strict scans of JSON bytes
)

// scanFunction is the one strict pass over JSON bytes.
const scanFunction = "internal/jsonrpc.scanner.scan"

// onecall is the program that is measured: a test kit that wires a toolgate.
const onecall = "cmd/toolgate/internal/testkit/onecall"

// product reports whether s is a product file: neither a test nor a test kit.
func product(s source) bool {
	return !s.isTest && !strings.Contains(s.pkg, "/testkit/")
}

// TestOneCall prints the functions and files that one allowed call enters, the
// second of identical warm calls, and checks the number of functions. It builds toolgate with
// coverage counters, so it runs only with TOOLGATE_MEASURE set.
func TestOneCall(t *testing.T) {
	if os.Getenv("TOOLGATE_MEASURE") == "" {
		t.Skip("make check measures a call (TOOLGATE_MEASURE=1)")
	}
	entered := enteredFunctions(t)
	files, byFile := map[string]bool{}, map[string][]string{}
	for name := range entered {
		file, function, _ := strings.Cut(name, "\x00")
		files[file] = true
		byFile[file] = append(byFile[file], function)
	}
	for _, file := range slices.Sorted(maps.Keys(byFile)) {
		slices.Sort(byFile[file])
		t.Logf("%s: %s", file, strings.Join(byFile[file], " "))
	}
	scans := 0
	for name, count := range entered {
		file, function, _ := strings.Cut(name, "\x00")
		if path.Dir(file)+"."+function == scanFunction {
			scans += count
		}
	}
	t.Logf("%d functions in %d files, %d strict scans", len(entered), len(files), scans)
	if len(entered) > maxCallFunctions || scans < 1 || scans > maxScans {
		t.Errorf("at most %d functions, and 1 to %d scans", maxCallFunctions, maxScans)
	}
}

// enteredFunctions returns how often one call enters each function, by file and
// name. Functions that only some of five calls enter are background work and left
// out.
func enteredFunctions(t *testing.T) map[string]int {
	t.Helper()
	dir := t.TempDir()
	packages := []string{module + onecall} // without counters in main none are written
	for _, s := range sources(t) {
		if pkg := module + s.pkg; product(s) && !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	}
	binary := filepath.Join(dir, "onecall")
	command(t, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+strings.Join(packages, ","), "-o", binary, "./"+onecall)
	command(t, binary, dir)
	var entered map[string]int
	for n := 1; n <= 5; n++ {
		file := filepath.Join(dir, strconv.Itoa(n)+".txt")
		command(t, "go", "tool", "covdata", "textfmt", "-i", filepath.Join(dir, strconv.Itoa(n)), "-o", file)
		call := functionsIn(t, file)
		if entered == nil {
			entered = call
		}
		maps.DeleteFunc(entered, func(name string, _ int) bool { return call[name] == 0 })
	}
	return entered
}

// command runs a program at the root of the project.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = corpus.Checkout(t)
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// functionsIn reads a coverage profile and returns how often each function was
// entered.
func functionsIn(t *testing.T, file string) map[string]int {
	t.Helper()
	profiles, err := cover.ParseProfiles(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]source{}
	for _, s := range sources(t) {
		files[module+s.path] = s
	}
	entered := map[string]int{}
	for _, p := range profiles {
		s, ok := files[p.FileName]
		if !ok {
			t.Fatalf("the profile names %s, which is not a file of the project", p.FileName)
		}
		if !product(s) {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				if n := entries(s, f, p.Blocks); n > 0 {
					entered[s.path+"\x00"+functionName(f)] = n
				}
			}
		}
	}
	return entered
}

// entries returns the counter of the first block of f.
func entries(s source, f *ast.FuncDecl, blocks []cover.ProfileBlock) int {
	from, to := s.fset.Position(f.Body.Pos()), s.fset.Position(f.Body.End())
	for _, b := range blocks {
		after := b.StartLine > from.Line || b.StartLine == from.Line && b.StartCol >= from.Column
		before := b.EndLine < to.Line || b.EndLine == to.Line && b.EndCol <= to.Column
		if after && before {
			return b.Count
		}
	}
	return 0
}

// functionName returns Name or Type.Name.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	if name, ok := t.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
