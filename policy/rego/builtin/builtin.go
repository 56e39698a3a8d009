// Package builtin says which built-in functions of OPA a policy may use, and bounds the work of each.
//
// A decision must be the same later, so functions that read a clock, files or the network are refused. OPA cannot
// cancel a function that runs, so those that take more than linear time are refused too, or their work is
// estimated from the operands before they run. Importing the package puts these bounds on the functions of the
// whole process.
package builtin

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// refusal is why policies may not use some built-in functions.
type refusal struct {
	why   string
	names []string
}

// refused are the built-in functions that no policy may use, apart from those
// that OPA marks as nondeterministic. Most of them cannot be cancelled, and take time that
// no estimate bounds (see Works): it depends on what a caller sends.
var refused = []refusal{
	{"it compares with the clock", []string{"crypto.x509.parse_and_verify_certificates", "crypto.x509.parse_and_verify_certificates_with_options"}},
	{"it enumerates every path of a graph", []string{"graph.reachable_paths"}},
	{"each operation can double the document, or moves the elements of an array", []string{"json.patch"}},
	{"it intersects patterns (use glob.match or regex.match)", []string{"regex.globs_match"}},
	{"it compares every field with every other", []string{"graphql.is_valid", "graphql.parse", "graphql.parse_and_verify", "graphql.parse_query", "graphql.parse_schema", "graphql.schema_is_valid"}},
	{"it runs a program or parses one", []string{"strings.render_template", "rego.parse_module"}},
	{"it computes with the primes of a private key", []string{"crypto.parse_private_keys", "crypto.x509.parse_keypair", "crypto.x509.parse_rsa_private_key"}},
}

// Refusals is why each refused built-in function is, by name. Functions about schemas are
// not refused: Works keeps them from files and the network.
func Refusals() map[string]string {
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
	delete(out, ast.JSONMatchSchema.Name)
	delete(out, ast.JSONSchemaVerify.Name)
	for _, r := range refused {
		for _, name := range r.names {
			out[name] = r.why
		}
	}
	return out
}

// Capabilities is what a policy may use.
func Capabilities() *ast.Capabilities {
	caps := ast.CapabilitiesForThisVersion()
	forbidden := Refusals()
	caps.Builtins = slices.DeleteFunc(slices.Clone(caps.Builtins), func(b *ast.Builtin) bool {
		_, found := forbidden[b.Name]
		return found
	})
	caps.AllowNet = []string{}
	return caps
}
