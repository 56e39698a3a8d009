//go:build !linux

package front

import "net"

// refuseNew reports that on this system clients may connect until l is closed.
func refuseNew(net.Listener) bool { return false }
