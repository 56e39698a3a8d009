package house_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// seedFunctions are the functions that the specification documents name. Each has a
// row in docs/evidence/contracts.md.
var seedFunctions = strings.Fields(`
	validate_message_envelope create_request create_notification create_success_response create_error_response match_response_to_request
	list_actions invoke
	create_signal create_text_signal create_data_signal create_file_signal create_command_signal create_error_signal
	ok partial fail skip
	create_error input_error processing_error external_error resource_error policy_error wrap_error
	signal_to_tool_call tool_result_to_signal result_to_http_response http_request_to_signal signal_to_notification
	error_to_problem_details error_to_jsonrpc_error validate_signal validate_result
	load_tool_io CanonicalError
	search_internet generate_media manage_wallet
`)

// contract is one row of docs/evidence/contracts.md.
type contract struct {
	line           int
	rule           string
	symbols, tests []string
}

// contracts reads the rows of every table with the columns rule, Go, test.
func contracts(t *testing.T) []contract {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "evidence", "contracts.md"))
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	names := func(cell string) (out []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			out = append(out, m[1])
		}
		return out
	}
	var rows []contract
	for i, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|")
		if len(cells) != 5 || strings.HasPrefix(line, "|---") || strings.TrimSpace(cells[2]) == "Go" {
			continue
		}
		rows = append(rows, contract{line: i + 1, rule: cells[1], symbols: names(cells[2]), tests: names(cells[3])})
	}
	if len(rows) < 100 {
		t.Fatalf("docs/evidence/contracts.md has %d rows: the table is broken", len(rows))
	}
	return rows
}

func TestContractsNameDeclarations(t *testing.T) {
	symbols, tests := declared(t)
	for _, row := range contracts(t) {
		if len(row.symbols) == 0 || len(row.tests) == 0 {
			t.Errorf("docs/evidence/contracts.md:%d: a row needs a symbol and a test", row.line)
		}
		for _, s := range row.symbols {
			if !symbols[s] && !isFile(t, s) {
				t.Errorf("docs/evidence/contracts.md:%d: %s is not declared", row.line, s)
			}
		}
		for _, s := range row.tests {
			if !tests[s] && !isFile(t, s) {
				t.Errorf("docs/evidence/contracts.md:%d: test %s is not declared", row.line, s)
			}
		}
	}
}

func TestContractsHaveEveryFunction(t *testing.T) {
	rows := contracts(t)
	for _, f := range seedFunctions {
		word := regexp.MustCompile(`(^|[^a-z_])` + f + `($|[^a-z_])`)
		if !slices.ContainsFunc(rows, func(c contract) bool { return word.MatchString(c.rule) }) {
			t.Errorf("docs/evidence/contracts.md has no row for %s", f)
		}
	}
}

// TestSeedFunctionsAreCalled holds that code of the program calls each Go function that
// stands for one of a specification document: it is no second copy beside the one in use.
func TestSeedFunctionsAreCalled(t *testing.T) {
	named := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest || strings.Contains(s.pkg, "testkit") {
			continue
		}
		for _, d := range s.ast.Decls {
			own := ""
			if f, ok := d.(*ast.FuncDecl); ok {
				own = f.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id.Name != own {
					named[id.Name] = true
				}
				return true
			})
		}
	}
	rows := contracts(t)
	for _, f := range seedFunctions {
		word := regexp.MustCompile(`(^|[^a-z_])` + f + `($|[^a-z_])`)
		i := slices.IndexFunc(rows, func(c contract) bool { return word.MatchString(c.rule) })
		if i < 0 {
			continue // TestContractsHaveEveryFunction reports it
		}
		for _, symbol := range rows[i].symbols {
			if name := symbol[strings.LastIndex(symbol, ".")+1:]; ast.IsExported(name) && !named[name] {
				t.Errorf("%s: nothing calls %s", f, symbol)
			}
		}
	}
}

// isFile reports whether a name with a slash is a file of the project that is not
// empty.
func isFile(t *testing.T, name string) bool {
	info, err := os.Stat(filepath.Join(corpus.Checkout(t), filepath.FromSlash(name)))
	return strings.Contains(name, "/") && err == nil && info.Mode().IsRegular() && info.Size() > 0
}

var testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`)

// declared returns every declared name and every test, as package path, dot and
// name. Methods and struct fields have their type in between.
func declared(t *testing.T) (symbols, tests map[string]bool) {
	symbols, tests = map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest {
			for _, d := range s.ast.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
					tests[s.pkg+"."+f.Name.Name] = true
				}
			}
			continue
		}
		for _, d := range s.ast.Decls {
			for _, name := range namesOf(d) {
				symbols[s.pkg+"."+name] = true
			}
		}
	}
	return symbols, tests
}

// namesOf returns the names that a declaration declares.
func namesOf(d ast.Decl) (names []string) {
	if f, ok := d.(*ast.FuncDecl); ok {
		if f.Recv == nil {
			return []string{f.Name.Name}
		}
		return []string{receiver(f) + "." + f.Name.Name}
	}
	for _, spec := range d.(*ast.GenDecl).Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, n := range spec.Names {
				names = append(names, n.Name)
			}
		case *ast.TypeSpec:
			names = append(append(names, spec.Name.Name), fieldsOf(spec)...)
		}
	}
	return names
}

func fieldsOf(spec *ast.TypeSpec) (names []string) {
	typ, ok := spec.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, field := range typ.Fields.List {
		for _, n := range field.Names {
			names = append(names, spec.Name.Name+"."+n.Name)
		}
	}
	return names
}

func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}
