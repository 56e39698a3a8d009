// Package guardian is the process between toolgate and a stdio server. It
// confines the server before it starts, and ends everything that the server
// started when the server, toolgate, or the guardian itself ends.
//
// toolgate starts a guardian with an Order on its command line:
//
//	guardian --hide=/srv/toolgate/state --keep=/srv/toolgate/state/tools -- npx -y server
//
// Namespaces come from the clone that starts the guardian: it finds itself in new user,
// mount and PID namespaces, without identity maps and with the capabilities that it needs
// to build the server's view of the file system. It gives the capabilities up and forks.
// The child confines itself before it becomes the server: no_new_privs, a Landlock domain,
// a seccomp filter, resource limits.
//
// The server must not stop or kill its guardian. As the first process of the PID namespace
// the guardian is safe from all others in it, and the kernel kills them when the guardian
// ends. Where there is no PID namespace, the server's Landlock domain, in which the
// guardian is not, keeps signals inside.
//
// What the kernel refuses ends the guardian before the server starts. Which parts
// the kernel offers is found beforehand (Order.Try).
//
// The package is also the whole of a small program, so it imports nothing but the
// standard library and golang.org/x/sys.
package guardian
