package rego

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/policy/rego/builtin"
)

const (
	decisionPath = "data.toolgate.decision"
	visiblePath  = "data.toolgate.visible"
	trailPath    = "data.toolgate.trail"
	// cachedPatterns is how many compiled regular expressions and globs one
	// engine keeps: some come from policies, some may come from arguments.
	cachedPatterns = 1000
)

// program is a compiled policy with its data; it is never modified.
type program struct {
	compiler   *ast.Compiler
	telling    *ast.Compiler // has data.system too
	store      storage.Store
	txn        storage.Transaction // for as long as the program: nobody writes
	data       ast.Value           // all of store
	invariants *invariants         // of compiler
	kept       kept                // of invariants that read only data
	form       form
	decision   *query
	rest       *query                  // decision without the verdict sets that are invariants
	visible    *query                  // nil = the policy does not say
	trail      *query                  // nil = the policy does not say
	rights     map[policy.Right]*query // without those that the policy does not name
	drop       *query                  // from the decision log
	mask       *query
	reads      reads
	names      map[string]*ast.Term // :: JSON string ⇒ the term of a name that rules write out
	residuals  *residuals
	roles      map[string]any
	labels     map[string]map[string]string // of rules, by their ids
	meters     map[string][]policy.Meter    // :: exposed name ⇒ what is counted of the tool
	facts      map[string]*fact.Set         // :: exposed name ⇒ what is read of its arguments
}

// sources are a policy as it was written.
type sources struct {
	modules map[string]*ast.Module // by file; never modified
	data    map[string]any         // with what lies over the policy
}

// parse reads files into modules and data.
func parse(f sourceFiles, from func([]string) string) (*sources, error) {
	if err := checkFiles(f); err != nil {
		return nil, err
	}
	b, err := bundle.NewCustomReader(&loader{files: f, names: f.own()}).
		WithSkipBundleVerification(true).
		WithSizeLimitBytes(maxSourceBytes + 1).
		WithProcessAnnotations(true).
		WithCapabilities(builtin.Capabilities()).
		Read()
	if err != nil {
		return nil, fmt.Errorf("parsing policy:\n%w", faults(err))
	}
	if err := f.join(b.Data, from); err != nil {
		return nil, err
	}
	s := &sources{modules: make(map[string]*ast.Module, len(b.Modules)), data: b.Data}
	for _, m := range b.Modules {
		s.modules[m.RelativePath] = m.Parsed
	}
	return s, nil
}

// compile makes a program of a policy. Programs of the same sources share
// nothing.
func (s *sources) compile(ctx context.Context) (*program, error) {
	data, err := ast.InterfaceToValue(s.data)
	if err != nil {
		return nil, fmt.Errorf("reading policy data: %w", err)
	}
	p := &program{store: inmem.NewFromObjectWithOpts(s.data, inmem.OptRoundTripOnWrite(false)), data: data}
	if p.txn, err = p.store.NewTransaction(ctx); err != nil {
		return nil, fmt.Errorf("opening policy data: %w", err)
	}
	p.roles, _ = s.data["roles"].(map[string]any)
	p.labels = labelsOf(s.modules)
	p.residuals = &residuals{compiler: sync.OnceValues(func() (*ast.Compiler, error) {
		c, _, err := p.compileModules(context.Background(), s.modules)
		return c, err
	})}
	if p.facts, err = readFacts(s.data); err != nil {
		return nil, fmt.Errorf("reading facts: %w", err)
	}
	if p.meters, err = readMeters(s.data, p.facts); err != nil {
		return nil, fmt.Errorf("reading meters: %w", err)
	}
	if p.compiler, p.telling, err = p.compileModules(ctx, s.modules); err != nil {
		return nil, err
	}
	if p.form, err = formOf(p.compiler, orderOf(s.modules)); err != nil {
		return nil, err
	}
	return p, p.prepare(ctx)
}

// checkFiles refuses what the bundle reader would take in silently.
func checkFiles(f sourceFiles) error {
	if len(f.own()) == 0 {
		return errors.New("no policy found (hint: a directory or bundle with .rego files and data.json)")
	}
	for _, name := range f.own() {
		switch path.Base(name) {
		case "patch.json":
			return errors.New("delta bundles are not supported (hint: serve a snapshot bundle)")
		case "data.json", bundle.ManifestExt:
			if err := checkJSON(f[name]); err != nil {
				return fmt.Errorf("parsing %s: %w", name, err)
			}
		}
	}
	return nil
}

// checkJSON refuses duplicate names, of which a reader would see one and OPA
// another.
func checkJSON(content []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(content))
	if _, err := d.ReadValue(); err != nil {
		return err
	}
	return atEnd(d)
}

// systemPackages are OPA's own: what they are asked about is no call.
var systemPackages = ast.MustParseRef("data.system")

// compileModules makes a compiler of what judges calls, held to the schema of
// input, and one for what is asked about their events in the log.
func (p *program) compileModules(ctx context.Context, modules map[string]*ast.Module) (judging, telling *ast.Compiler, err error) {
	types, err := inputTypes()
	if err != nil {
		return nil, nil, err
	}
	strict := func() *ast.Compiler {
		return NewCompiler().WithStrict(true).WithPathConflictsCheck(storage.NonEmpty(ctx, p.store, p.txn))
	}
	judges := withoutSystem(modules)
	judging = strict().WithSchemas(types)
	judging.Compile(judges)
	failed := judging.Errors
	telling = judging
	if len(judges) < len(modules) {
		telling = strict()
		telling.Compile(modules)
		failed = append(slices.Clone(failed), telling.Errors...)
	}
	if len(failed) > 0 {
		return nil, nil, fmt.Errorf("compiling policy:\n%w", faults(failed))
	}
	return judging, telling, nil
}

// withoutSystem returns the modules that judge calls.
func withoutSystem(modules map[string]*ast.Module) map[string]*ast.Module {
	judges := maps.Clone(modules)
	maps.DeleteFunc(judges, func(_ string, m *ast.Module) bool { return m.Package.Path.HasPrefix(systemPackages) })
	return judges
}

func (p *program) prepare(ctx context.Context) error {
	size := cachedPatterns
	patterns := cache.NewInterQueryValueCache(ctx, &cache.Config{
		InterQueryBuiltinValueCache: cache.InterQueryBuiltinValueCacheConfig{MaxNumEntries: &size},
	})
	err := p.findInvariants(ctx, patterns)
	if err != nil {
		return err
	}
	p.rights = map[policy.Right]*query{}
	for _, right := range policy.Rights {
		if ref := rightRef(right); len(p.compiler.GetRules(ref)) > 0 {
			if p.rights[right], err = p.compileQuery(p.compiler, patterns, p.invariants, ref.String()); err != nil {
				return fmt.Errorf("preparing %s: %w", ref, err)
			}
		}
	}
	for q, what := range map[**query]string{
		&p.decision: p.form.query(func(ast.Ref) bool { return false }), &p.rest: p.form.query(p.invariants.has),
		&p.visible: visiblePath, &p.trail: trailPath, &p.drop: dropPath, &p.mask: maskPath,
	} {
		c, keep := p.compiler, p.invariants
		if strings.HasPrefix(what, systemPackages.String()) { // mostly there is neither rule nor data
			c, keep = p.telling, nil // a rule may read what only telling has
		} else if q != &p.decision && q != &p.rest && len(c.GetRules(ast.MustParseRef(what))) == 0 {
			continue
		}
		if *q, err = p.compileQuery(c, patterns, keep, what); err != nil {
			return fmt.Errorf("preparing %s: %w", what, err)
		}
	}
	p.reads, p.names = readsOf(p.compiler, p.data)
	return nil
}

func isString(t *ast.Term) bool {
	_, ok := t.Value.(ast.String)
	return ok
}

// Cause returns the reason of OPA's error on one line, without the code path.
func Cause(err error) string {
	var te *topdown.Error
	if errors.As(err, &te) {
		return te.Message
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return first
}

// inputTypes is docs/schemas/policy-input.json as the types that every policy
// is compiled against: a member of input that no request has is an error of
// the compiler, with the place. Below arguments, facts, annotations and usage
// anything may stand.
var inputTypes = sync.OnceValues(func() (*ast.SchemaSet, error) {
	var doc any
	if err := util.UnmarshalJSON(schemas.Read("policy-input.json"), &doc); err != nil {
		return nil, fmt.Errorf("reading the schema of input: %w", err)
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, doc)
	return set, nil
})
