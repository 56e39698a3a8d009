package bundle_test

import (
	"fmt"
	"io/fs"

	"github.com/toolgate/toolgate/policy/bundle"
)

// The library of the default policy is one file for each subject.
func Example() {
	names, err := fs.Glob(bundle.Files, "lib/[a-z]*s.rego")
	fmt.Println(names, err)
	// Output: [lib/arguments.rego lib/facts.rego lib/hours.rego lib/roles.rego] <nil>
}
