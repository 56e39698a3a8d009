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
// clients 200 percent are some 92 MB of resident memory; 400 are 122 MB, and no less CPU
// a call that could be measured.
const percent = 200

func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
