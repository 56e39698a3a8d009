//go:build !linux

package peers_test

const steppedVar = "PEERS_STEPPED"

// beStepped is for Linux.
func beStepped() {}
