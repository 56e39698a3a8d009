//go:build !linux

package peers_test

import "testing"

// trackDescendants does nothing outside Linux.
func trackDescendants(testing.TB, int) func() { return func() {} }
