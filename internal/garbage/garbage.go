// Package garbage sets how often Go collects garbage, before most packages are
// initialised: together they allocate more than Go's first collections wait for.
//
//	import _ "github.com/toolgate/toolgate/internal/garbage"
//
// A start that knows that most of its garbage comes at once can wait longer:
//
//	defer garbage.Postpone()()
//
// It imports next to nothing, because a package is initialised after those that it
// imports. The variable GOGC takes precedence.
package garbage

import (
	"os"
	"runtime/debug"
)

// percent trades memory for time: the live heap of toolgate is some MiB, so
// that the default of Go collects it hundreds of times a second under load.
const percent = 400

func init() { set(percent) }

// Postpone doubles the garbage that the collector waits for, until resume. It is safe for
// concurrent use; the first resume ends it for all.
func Postpone() (resume func()) {
	set(2 * percent)
	return func() { set(percent) }
}

func set(to int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(to)
	}
}
