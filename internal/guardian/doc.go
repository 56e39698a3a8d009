// Package guardian is the process between toolgate and a stdio server. It
// confines the server before it starts, and ends everything that the server
// started when the server, toolgate, or the guardian itself ends.
//
// toolgate starts a guardian with an Order on its command line:
//
//	guardian --hide=/srv/toolgate/state --keep=/srv/toolgate/state/tools -- npx -y server
//
// Namespaces come from the clone that starts the guardian: it finds itself in a
// new user and mount namespace, without identity maps and with the capabilities
// that it needs to build the server's view of the file system. It then confines
// one thread, which the server inherits when that thread starts it: no capabilities,
// no_new_privs, a Landlock domain, a seccomp filter, resource limits.
//
// What the kernel refuses ends the guardian before the server starts. Which parts
// the kernel offers is found beforehand (Order.Try).
//
// The package is also the whole of a small program, so it imports nothing but the
// standard library and golang.org/x/sys.
package guardian
