package rego

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// refusal is why policies may not use some built-in functions.
type refusal struct {
	why   string
	names []string
}

// refused are the built-in functions that no policy may use, apart from those
// that OPA marks as nondeterministic. Most of them take more than linear time in
// what a caller may send, and cannot be cancelled once they run.
var refused = []refusal{
	{"it compares with the clock", []string{"crypto.x509.parse_and_verify_certificates", "crypto.x509.parse_and_verify_certificates_with_options"}},
	{"it enumerates every path of a graph", []string{"graph.reachable_paths"}},
	{"it moves the elements of an array for every operation", []string{"json.patch"}},
	{"it compares every element of one array with every element of the other", []string{"object.subset", "net.cidr_contains_matches"}},
	{"the number that it makes grows with every factor, or exponentially with an operand", []string{"product", "bits.lsh"}},
	{"it compares the searched text at every position (use contains, startswith or regex.match)", []string{"indexof", "indexof_n"}},
	{"it searches the rest of the text again after every match (use regex.match)", []string{"regex.find_n", "regex.find_all_string_submatch_n", "regex.split"}},
	{"it intersects patterns (use glob.match or regex.match)", []string{"regex.globs_match"}},
	{"it compares every field with every other", []string{"graphql.is_valid", "graphql.parse", "graphql.parse_and_verify", "graphql.parse_query", "graphql.parse_schema", "graphql.schema_is_valid"}},
	{"it runs a program or parses one", []string{"strings.render_template", "rego.parse_module"}},
	{"it computes with the primes of a private key", []string{"crypto.parse_private_keys", "crypto.x509.parse_keypair", "crypto.x509.parse_rsa_private_key"}},
}

// operandRule is what an operand of a built-in function may be.
type operandRule struct {
	operand int
	ofData  bool // only a document of data; else anything but a part of the call
	why     string
}

// patterned are the built-in functions whose time is the product of two
// operands, or worse, so that the policy has to bring one of them.
var patterned = map[string]operandRule{
	"graph.reachable":      {0, true, "it looks at the edges of a node once for every way to it"},
	"glob.match":           {2, false, "its time grows with a power of the length of the text (hint: regex.match)"},
	"regex.match":          {0, false, "its time is the product of the lengths of pattern and text"},
	"re_match":             {0, false, "its time is the product of the lengths of pattern and text"},
	"regex.replace":        {1, false, "its time grows with the square of the text for some patterns"},
	"regex.template_match": {0, false, "its time is the product of the lengths of pattern and text"},
	"sprintf":              {0, false, "a width in its format can make a text of any length"},
	"strings.replace_n":    {0, false, "its time is the product of the lengths of patterns and text"},
	"trim":                 {1, false, "its time is the product of the lengths of text and characters"},
	"trim_left":            {1, false, "its time is the product of the lengths of text and characters"},
	"trim_right":           {1, false, "its time is the product of the lengths of text and characters"},
	"time.parse_ns":        {0, false, "its time is the product of the lengths of layout and text"},
	"net.cidr_expand":      {0, false, "it makes every address of a network"},
	"numbers.range":        {1, false, "it makes every number of a range"},
	"numbers.range_step":   {1, false, "it makes every number of a range"},
}

// refusals is why each refused built-in function is, by name. It holds schema
// built-ins too, which read files and the network through $ref.
func refusals() map[string]string {
	out := make(map[string]string)
	for _, b := range ast.CapabilitiesForThisVersion().Builtins {
		if b.Nondeterministic {
			out[b.Name] = "it reads a clock, a random source, the process, files or the network: the same input must give the same decision later"
		}
	}
	//lint:ignore SA1019 the list names built-ins that the property does not cover
	for _, b := range ast.IgnoreDuringPartialEval {
		out[b.Name] = "it reads a clock, a random source, the process, files or the network: the same input must give the same decision later"
	}
	for _, r := range refused {
		for _, name := range r.names {
			out[name] = r.why
		}
	}
	return out
}

// capabilities is what a policy may use.
func capabilities() *ast.Capabilities {
	caps := ast.CapabilitiesForThisVersion()
	forbidden := refusals()
	caps.Builtins = slices.DeleteFunc(slices.Clone(caps.Builtins), func(b *ast.Builtin) bool {
		_, found := forbidden[b.Name]
		return found
	})
	caps.AllowNet = []string{}
	return caps
}

// checkOperands finds calls of patterned built-ins whose operand comes from
// the call as far as the source shows: an argument that a function passes on is
// not seen.
func checkOperands(modules map[string]*ast.Module) error {
	var found Faults
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		lintCalls(modules[name], func(t *typing, op string, operands []*ast.Term, l *ast.Location) {
			rule, ok := patterned[op]
			if !ok || rule.operand >= len(operands) {
				return
			}
			ref := t.ref(operands[rule.operand])
			switch {
			case rule.ofData && !(ref.HasPrefix(ast.DefaultRootRef) && ref.IsGround()):
				found = append(found, at(l, LevelError, codeOperand, fmt.Sprintf("operand %d of %s is not a document of data: %s", rule.operand+1, op, rule.why), op+"(data.…, …)"))
			case !rule.ofData && fromCall(ref):
				found = append(found, at(l, LevelError, codeOperand, fmt.Sprintf("operand %d of %s comes from the call: %s", rule.operand+1, op, rule.why), "write it in the policy or in data"))
			}
		})
	}
	return found.errorOf("compiling policy")
}

// fromCall reports whether a reference leads to what a caller sends.
func fromCall(ref ast.Ref) bool {
	return len(ref) > 0 && ref[0].Equal(ast.InputRootDocument) && (len(ref) == 1 || !isString(ref[1]) || ref.HasPrefix(argumentsRef))
}

// refusalHint says why a policy may not use a function, "" when OPA does not
// know it either.
func refusalHint(message string) string {
	name, ok := strings.CutPrefix(message, "undefined function ")
	if why := refusals()[name]; ok && why != "" {
		return "toolgate refuses " + name + ": " + why
	}
	return ""
}
