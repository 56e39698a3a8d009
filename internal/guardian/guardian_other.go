//go:build !linux

package guardian

// Main does nothing outside Linux: servers are started without a guardian.
func Main([]string) int { return 1 }

var resources map[string]int
