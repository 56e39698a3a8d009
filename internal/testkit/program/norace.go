//go:build !race

package program

// Raced says whether the race detector watches this test.
const Raced = false
