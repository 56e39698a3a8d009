package shadow_test

import (
	"fmt"

	"github.com/toolgate/toolgate/policy/rejudge/shadow"
)

// A worker without a candidate asks nobody.
func Example() {
	worker := shadow.New(shadow.Options{Trail: "audit"})
	fmt.Printf("%q\n", worker.Status().Candidate)
	// Output: ""
}
