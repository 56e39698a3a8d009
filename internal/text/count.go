package text

import (
	"fmt"
	"strings"
	"time"
)

// Count returns a number of things whose plural has an s: 1 tool, 2 tools.
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Duration returns a duration without units of zero at the end: 1h30m rather than 1h30m0s.
func Duration(d time.Duration) string { return zeroUnits.Replace(d.String()) }

var zeroUnits = strings.NewReplacer("h0m0s", "h", "m0s", "m")
