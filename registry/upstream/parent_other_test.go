//go:build !linux

package upstream_test

// parentVar is of use on Linux only.
const parentVar = "UPSTREAM_TEST_PARENT"

func beParent() {}
