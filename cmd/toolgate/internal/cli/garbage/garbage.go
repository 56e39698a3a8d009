// Package garbage sets how often Go collects garbage, before most packages are
// initialised: together they allocate more than Go's first collections wait for.
//
//	import _ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage"
//
// It imports only packages that os needs too, because Go initialises a package after the
// packages that it imports. The variable GOGC takes precedence.
package garbage

import (
	"os"
	"runtime/debug"
	"time"
)

// percent trades memory for time: the live heap of toolgate is some MiB, so
// that the default of Go collects it hundreds of times a second under load. With 64
// clients 200 percent are some 92 MB of resident memory; 400 are 122 MB, and no less CPU
// a call that could be measured.
const percent = 200

func init() {
	if os.Getenv("GOGC") == "" {
		// The start takes a small part of a second. Without its two collections the first answer
		// comes some milliseconds earlier, for some MB of memory.
		debug.SetGCPercent(400)
		time.AfterFunc(time.Second, func() { debug.SetGCPercent(percent) })
	}
}
