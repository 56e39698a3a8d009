//go:build !linux

package peers_test

const tracedVar = "PEERS_TRACED"

// runTracer needs Linux.
func runTracer() {}
