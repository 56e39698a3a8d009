package text

import "fmt"

// Count returns a number of things whose plural has an s: 1 tool, 2 tools.
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
