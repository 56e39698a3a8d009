// Package garbage sets how often Go collects garbage, before most packages are
// initialised: together they allocate more than Go's first collections wait for.
//
//	import _ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage"
//
// It imports only os and runtime/debug, because Go initialises a package after the
// packages that it imports. The variable GOGC takes precedence.
package garbage

import (
	"os"
	"runtime/debug"
)

// percent trades memory for time: the live heap of toolgate is some MiB, so
// that the default of Go collects it hundreds of times a second under load. With 64
// clients 400 percent are some 120 MB of resident memory; 200 are 93 MB, and 5 to 15
// percent more CPU a call.
const percent = 400

func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
