package rego_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	oparego "github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/test/cases"
	"github.com/open-policy-agent/opa/v1/test/cases/testdata"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// sampleOf is how many of OPA's cases there are for each that the short form runs.
const sampleOf = 10

// TestOPACases holds Decide equal to OPA's own evaluation for OPA's own test
// cases. Each case becomes policies whose decision carries the result of the
// case's query; the policies differ in where the case's input, data and literals
// stand (see placements). Cases that toolgate refuses to load, such as those that use
// the network or a clock, are logged with the reason. With TOOLGATE_SOAK all cases
// run, otherwise one in sampleOf.
func TestOPACases(t *testing.T) {
	parts.Long(t, "runs cases of OPA")
	every, least := sampleOf, 900
	if os.Getenv("TOOLGATE_SOAK") != "" {
		every, least = 1, 9_500
	}
	work := make(chan opaCase)
	var total caseCounts
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		dir := t.TempDir()
		workers.Go(func() {
			for c := range work {
				for _, p := range placements {
					total.add(t, c, p, c.compare(p, dir))
				}
			}
		})
	}
	for i, c := range opaCases(t) {
		if i%every == 0 {
			work <- c
		}
	}
	close(work)
	workers.Wait()
	total.log(t)
	if total.same+total.differ < least {
		t.Errorf("%d policies were compared, want at least %d", total.same+total.differ, least)
	}
}

// caseCounts counts comparisons. It is safe for concurrent use.
type caseCounts struct {
	mu           sync.Mutex
	same, differ int
	answers      map[string]int // kind of OPA's answer ⇒ comparisons
	refused      map[string]int // why there is no comparison ⇒ how often
}

func (n *caseCounts) add(t *testing.T, c opaCase, p placement, o caseOutcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers == nil {
		n.answers, n.refused = map[string]int{}, map[string]int{}
	}
	switch {
	case o.refused != "":
		n.refused[o.refused]++
	case o.difference != "":
		n.differ++
		t.Errorf("%s, %s: %s", c.Note, p.name, o.difference)
	default:
		n.same++
		n.answers[o.answer]++
	}
}

func (n *caseCounts) log(t *testing.T) {
	t.Logf("%d comparisons, %d differ; OPA's answers: %v", n.same+n.differ, n.differ, n.answers)
	for _, why := range slices.SortedFunc(maps.Keys(n.refused), func(a, b string) int { return n.refused[b] - n.refused[a] }) {
		t.Logf("%5d not compared: %s", n.refused[why], why)
	}
}

// opaCase is one of OPA's test cases.
type opaCase struct{ cases.TestCase }

// opaCases gives the cases of the current Rego version, in a fixed order.
func opaCases(t *testing.T) []opaCase {
	t.Helper()
	var out []opaCase
	err := fs.WalkDir(testdata.V1, "v1", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(testdata.V1, path)
		if err != nil {
			return err
		}
		var set cases.Set
		if err := util.Unmarshal(raw, &set); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, c := range set.Cases {
			out = append(out, opaCase{c})
		}
		return nil
	})
	if err != nil || len(out) < 1500 {
		t.Fatalf("reading OPA's cases: %d found, %v", len(out), err)
	}
	return out
}

// caseOutcome is the outcome of one comparison. One of its members is set.
type caseOutcome struct{ refused, difference, answer string }

// compare judges the policy that c becomes under p by the engine and by OPA.
func (c opaCase) compare(p placement, dir string) caseOutcome {
	w, err := c.write(p)
	if err != nil {
		return caseOutcome{refused: err.Error()}
	}
	e, err := w.load(dir)
	if err != nil {
		return caseOutcome{refused: refusal(err)}
	}
	plain, err := w.prepare()
	if err != nil {
		return caseOutcome{refused: "plain OPA refuses it"}
	}
	// The case's own call comes between the others and again at the end, so that
	// nothing found for one call may serve the next.
	var want string
	for i, in := range append(w.calls(), w.input) {
		want = plain(in)
		d, err := e.Decide(context.Background(), in)
		if err != nil && strings.Contains(err.Error(), "has the bounds") && in == w.input {
			// OPA's own evaluation has the bounds here too.
			return caseOutcome{difference: "beyond the bounds of built-in functions: " + err.Error()}
		}
		if got := answer(d, err); got != want {
			return caseOutcome{difference: fmt.Sprintf("call %d: got %s, OPA says %s\n%s\ninput: %s\ndata: %s", i, got, want, w.source(), asJSON(in), w.data)}
		}
	}
	kind, _, _ := strings.Cut(want, ":")
	return caseOutcome{answer: kind}
}

// refusal is a short form of the reasons why a policy is not loaded.
func refusal(err error) string {
	text := err.Error()
	for _, part := range []string{"undefined function ", "unsafe", "declared but unused", "unused", "recursive", "type error", "deprecated"} {
		if _, after, ok := strings.Cut(text, part); ok {
			name, _, _ := strings.Cut(after, "\n")
			if part != "undefined function " {
				name = ""
			}
			return "does not load: " + part + name
		}
	}
	return "does not load: " + text
}

// answer is a decision as text: with its result, undefined, or an error.
func answer(d policy.Decision, err error) string {
	switch {
	case err != nil:
		return "error"
	case d.Rule == rego.RuleUndefined:
		return "undefined"
	}
	return "result: " + string(d.Effect) + " " + d.Reason
}

// written is a case as a policy and a call.
type written struct {
	modules  map[string]string
	data     json.RawMessage
	input    *policy.Input
	literals map[string]json.RawMessage // in the arguments
	// lentKeys is set when keys of object literals are among the literals. Where they
	// coincide, OPA's unification may not end, and overflow its stack.
	lentKeys bool
}

func (w *written) source() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(w.modules)) {
		fmt.Fprintf(&b, "-- %s --\n%s\n", name, w.modules[name])
	}
	return b.String()
}

// load makes an engine of the policy, by way of files in dir.
func (w *written) load(dir string) (*rego.Engine, error) {
	old, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	for name, text := range w.modules {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "data.json"), w.data, 0o600); err != nil {
		return nil, err
	}
	return rego.LoadUntried(context.Background(), rego.Options{Path: dir, Timeout: testTimeout})
}

// prepare gives a function that answers as OPA does by itself.
func (w *written) prepare() (func(in *policy.Input) string, error) {
	var data map[string]any
	if err := util.UnmarshalJSON(w.data, &data); err != nil {
		return nil, err
	}
	options := []func(*oparego.Rego){
		oparego.Query("data.toolgate.decision"), oparego.StrictBuiltinErrors(true), oparego.Store(inmem.NewFromObject(data)),
	}
	for name, text := range w.modules {
		options = append(options, oparego.Module(name, text))
	}
	query, err := oparego.New(options...).PrepareForEval(context.Background())
	if err != nil {
		return nil, err
	}
	return func(in *policy.Input) (out string) {
		defer func() {
			if recover() != nil { // a built-in panics on some arguments
				out = "error"
			}
		}()
		var document any
		if err := util.UnmarshalJSON(asJSON(in), &document); err != nil {
			panic(err)
		}
		rs, err := query.Eval(context.Background(), oparego.EvalInput(document))
		switch {
		case err != nil:
			return "error"
		case len(rs) == 0:
			return "undefined"
		}
		d, _ := rs[0].Expressions[0].Value.(map[string]any)
		if d["effect"] != "allow" {
			return "error" // no decision
		}
		return fmt.Sprintf("result: %v %v", d["effect"], d["reason"])
	}, nil
}

// unbounded names built-ins whose time or memory grows with the value of a number
// or with a network's size: other literals could keep them busy for minutes.
var unbounded = []string{"bits.lsh", "numbers.range", "net.cidr_expand", "sprintf(input", "strings.render", "indexof_n", "io.jwt", "units."}

// calls are the case's own call and others with other arguments: none, each
// literal with the value of the next one, and all literals with one value.
func (w *written) calls() []*policy.Input {
	out := []*policy.Input{w.with(`{}`), w.input}
	names := slices.Sorted(maps.Keys(w.literals))
	if len(names) == 0 || slices.ContainsFunc(unbounded, func(name string) bool { return strings.Contains(w.source(), name) }) {
		return out
	}
	rotated, same := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for i, name := range names {
		rotated[name] = w.literals[names[(i+1)%len(names)]]
		same[name] = w.literals[names[0]]
	}
	others := []map[string]json.RawMessage{rotated, same}
	if w.lentKeys {
		others = others[:1]
	}
	for _, literals := range others {
		var arguments map[string]json.RawMessage
		err := json.Unmarshal(w.input.Arguments, &arguments)
		lent, lerr := json.Marshal(literals)
		arguments["literals"] = lent
		raw, rerr := json.Marshal(arguments)
		if err := errors.Join(err, lerr, rerr); err != nil {
			panic(err)
		}
		out = append(out, w.with(string(raw)))
	}
	return out
}

func (w *written) with(arguments string) *policy.Input {
	in := *w.input
	in.Arguments = json.RawMessage(arguments)
	return &in
}
