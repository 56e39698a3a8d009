package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A check is one place that refuses.
type check struct {
	id       int
	kind     string // refusal, error, passed, filter, bound, sync, redirect
	file     string // from the root of the project
	line     int
	function string
	text     string // the condition or the call

	before, after string // what the edit inserts around the bytes from start to end
	start, end    int
	reached       int // tests that reach the check
}

func (c *check) String() string {
	return fmt.Sprintf("%s:%d: %s: %s (%s)", c.file, c.line, c.function, c.text, c.kind)
}

// key names the check in equivalent.txt: lines move, so it has none.
func (c *check) key() string { return c.file + ": " + c.function + ": " + c.text }

// refusing matches the names of functions and values that refuse.
var refusing = regexp.MustCompile(`(?i)(refus|den(y|ied)|reject|fail|problem|fault|forbid|unauthor|quarantin|^err[A-Z]|notfound|^writeheader$|unknown$)`)

// failureType matches the types of results that say what is wrong.
var failureType = regexp.MustCompile(`(?i)(^|\W)\w*(error|failure|fault|problem|refusal)$`)

// finder collects the checks of one file.
type finder struct {
	text     []byte
	fset     *token.FileSet
	file     string
	checks   []*check
	function string
	results  []string // types of the results of the function around
}

// findChecks returns the checks of the package in the order of its files.
func findChecks(p *pkg) ([]*check, error) {
	var out []*check
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f := &finder{text: text, fset: token.NewFileSet(), file: strings.TrimPrefix(p.name()+"/", "./") + name}
		tree, err := parser.ParseFile(f.fset, path, text, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range tree.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				f.function = d.Name.Name
				f.walk(d.Type, d.Body)
			}
		}
		out = append(out, f.checks...)
	}
	for i, c := range out {
		c.id = i + 1
	}
	return out, nil
}

// walk finds the checks in the body of a function.
func (f *finder) walk(typ *ast.FuncType, body ast.Node) {
	outer := f.results
	f.results = f.resultTypes(typ)
	defer func() { f.results = outer }()
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			f.walk(n.Type, n.Body)
			return false
		case *ast.IfStmt:
			if f.refuses(n.Body.List) {
				f.condition(n.Cond, n.Body.List)
			}
			if f.skips(n.Body.List) {
				f.disjuncts("filter", n.Cond, nil)
			}
		case *ast.SwitchStmt:
			f.cases(n)
		case *ast.AssignStmt:
			if sel, ok := n.Lhs[0].(*ast.SelectorExpr); ok && sel.Sel.Name == "CheckRedirect" {
				f.add("redirect", n.Rhs[0], "mutantRedirect(%d, ", ")")
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && id.Name == "CheckRedirect" {
				f.add("redirect", n.Value, "mutantRedirect(%d, ", ")")
			}
		case *ast.CallExpr:
			f.call(n)
		}
		return true
	})
}

func (f *finder) resultTypes(typ *ast.FuncType) (out []string) {
	if typ.Results == nil {
		return nil
	}
	for _, r := range typ.Results.List {
		for range max(1, len(r.Names)) {
			out = append(out, f.source(r.Type))
		}
	}
	return out
}

func (f *finder) cases(n *ast.SwitchStmt) {
	if n.Tag != nil {
		return
	}
	for _, s := range n.Body.List {
		if c := s.(*ast.CaseClause); f.refuses(c.Body) {
			for _, cond := range c.List {
				f.condition(cond, c.Body)
			}
		}
	}
}

// condition adds each operand of a condition whose branch, body, refuses. What returns
// err after err != nil || x refuses by the first operand only.
func (f *finder) condition(e ast.Expr, body []ast.Stmt) {
	kind := "refusal"
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.LOR && returnsItself(body, firstError(e)) {
		kind = "filter"
	}
	f.disjuncts(kind, e, body)
}

// firstError returns the name of err in err != nil || x, "" for other conditions.
func firstError(e ast.Expr) string {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.LOR {
		return firstError(b.X)
	}
	return testedError(e)
}

// returnsItself reports whether a branch is one return of err, which is not wrapped.
func returnsItself(body []ast.Stmt, err string) bool {
	if len(body) != 1 {
		return false
	}
	r, ok := body[0].(*ast.ReturnStmt)
	return ok && err != "" && len(r.Results) > 0 && isIdent(r.Results[len(r.Results)-1], err)
}

func (f *finder) disjuncts(kind string, e ast.Expr, body []ast.Stmt) {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.LOR {
		f.disjuncts(kind, b.X, nil) // without one operand the error is still looked at, which no linter sees
		f.disjuncts(kind, b.Y, nil)
		return
	}
	if name := testedError(e); name != "" {
		kind = "error"
		if n := len(f.results); n > 0 && f.results[n-1] == "error" && passesOn(body, name) {
			kind = "passed"
		}
	}
	f.add(kind, e, "mutantLive(%d) && (", ")")
}

// testedError returns the name of err in err != nil, "" for other conditions.
func testedError(e ast.Expr) string {
	b, ok := e.(*ast.BinaryExpr)
	if !ok || b.Op != token.NEQ || !isIdent(b.Y, "nil") {
		return ""
	}
	if id, ok := b.X.(*ast.Ident); ok && strings.Contains(strings.ToLower(id.Name), "err") {
		return id.Name
	}
	return ""
}

// passesOn reports whether a branch returns the error to its caller, as it is or
// wrapped, and does nothing else.
func passesOn(body []ast.Stmt, err string) (found bool) {
	if len(body) != 1 {
		return false
	}
	r, ok := body[0].(*ast.ReturnStmt)
	if !ok || len(r.Results) == 0 {
		return false
	}
	ast.Inspect(r.Results[len(r.Results)-1], func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && isIdent(e, err) {
			found = true
		}
		return true
	})
	return found
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// call adds the calls that bound a reader or make a file durable.
func (f *finder) call(n *ast.CallExpr) {
	sel, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	switch {
	case sel.Sel.Name == "LimitReader" || sel.Sel.Name == "MaxBytesReader":
		f.add("bound", n.Args[len(n.Args)-1], "mutantBound(%d, int64(", "))")
	case sel.Sel.Name == "Sync" && len(n.Args) == 0:
		f.add("sync", n, "mutantSync(%d, ", ")")
		last := f.checks[len(f.checks)-1]
		last.end -= len("()") // mutantSync returns the function to call
	}
}

func (f *finder) add(kind string, e ast.Expr, before, after string) {
	at := f.fset.Position(e.Pos())
	f.checks = append(f.checks, &check{
		kind: kind, file: f.file, line: at.Line, function: f.function, text: strings.Join(strings.Fields(f.source(e)), " "),
		before: before, after: after, start: at.Offset, end: f.fset.Position(e.End()).Offset,
	})
}

func (f *finder) source(n ast.Node) string {
	return string(f.text[f.fset.Position(n.Pos()).Offset:f.fset.Position(n.End()).Offset])
}

// skips reports whether a branch leaves out what a loop would take over.
func (f *finder) skips(body []ast.Stmt) bool {
	if len(body) == 0 || f.refuses(body) {
		return false
	}
	b, ok := body[len(body)-1].(*ast.BranchStmt)
	return ok && b.Tok == token.CONTINUE
}

// refuses reports whether a branch refuses.
func (f *finder) refuses(body []ast.Stmt) bool {
	if len(body) == 0 {
		return false
	}
	last := len(body) - 1
	if r, ok := body[last].(*ast.ReturnStmt); ok && len(r.Results) > 0 {
		return f.returnsRefusal(r) || slices.ContainsFunc(body[:last], namesRefusal)
	}
	return slices.ContainsFunc(body, namesRefusal)
}

func (f *finder) returnsRefusal(r *ast.ReturnStmt) bool {
	if len(r.Results) == len(f.results) {
		last := r.Results[len(r.Results)-1]
		typ := f.results[len(f.results)-1]
		if failureType.MatchString(typ) && !isIdent(last, "nil") || typ == "bool" && isIdent(last, "false") {
			return true
		}
	}
	return namesRefusal(r)
}

// namesRefusal reports whether a statement calls or names what refuses.
func namesRefusal(s ast.Stmt) bool {
	found := false
	ast.Inspect(s, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.IfStmt, *ast.SwitchStmt:
			return false // their own branches
		case *ast.SelectorExpr:
			found = found || isIdent(n.X, "http") && n.Sel.Name == "Error"
		case *ast.Ident:
			found = found || refusing.MatchString(n.Name)
		}
		return true
	})
	return found
}

// edited returns the text of a file with all its checks made removable.
func edited(text []byte, checks []*check) []byte {
	type insertion struct {
		at   int
		text string
		rank int // of insertions at one place: an outer edit opens first and closes last
	}
	var in []insertion
	for _, c := range checks {
		before := c.before
		if strings.Contains(before, "%d") {
			before = fmt.Sprintf(before, c.id)
		}
		in = append(in, insertion{c.start, before, c.start - c.end}, insertion{c.end, c.after, c.end - c.start - 1<<40})
	}
	slices.SortStableFunc(in, func(a, b insertion) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return a.rank - b.rank
	})
	var out bytes.Buffer
	from := 0
	for _, i := range in {
		out.Write(text[from:i.at])
		out.WriteString(i.text)
		from = i.at
	}
	out.Write(text[from:])
	return out.Bytes()
}

// control is the file that is added to a package: it decides which check is removed,
// and records which checks a test reaches.
const control = `package %s

import (
	"net/http"
	"os"
	"strconv"
	"sync"
)

var (
	mutantChosen, _ = strconv.Atoi(os.Getenv("TOOLGATE_MUTANT"))
	mutantHits      = os.Getenv("TOOLGATE_MUTANT_HITS")
	mutantSeen      sync.Map
)

func mutantLive(n int) bool {
	if mutantHits != "" {
		if _, seen := mutantSeen.LoadOrStore(n, true); !seen {
			if f, err := os.OpenFile(mutantHits, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666); err == nil {
				f.WriteString(strconv.Itoa(n) + "\n")
				f.Close()
			}
		}
	}
	return n != mutantChosen
}

func mutantBound(n int, most int64) int64 {
	if mutantLive(n) {
		return most
	}
	return 1 << 50
}

func mutantSync(n int, sync func() error) func() error {
	if mutantLive(n) {
		return sync
	}
	return func() error { return nil }
}

func mutantRedirect(n int, check func(*http.Request, []*http.Request) error) func(*http.Request, []*http.Request) error {
	if mutantLive(n) {
		return check
	}
	return nil
}

var _ = []any{mutantLive, mutantBound, mutantSync, mutantRedirect}
`
