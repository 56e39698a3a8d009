// Package sandbox starts stdio servers under a guardian (package guardian), confined
// as far as the kernel allows.
//
// A Host knows what no server may see: toolgate's state, keys and configuration.
//
//	host := sandbox.New(sandbox.Options{Hide: []string{state, configuration}})
//	cmd, leash, err := host.Command(sandbox.Server{Path: "/usr/bin/npx", Args: args})
//
// On Linux a server has its own user and mount namespace, in which hidden paths are
// empty; a PID namespace; no capabilities, and no way to gain any; a Landlock domain that keeps
// signals, abstract sockets and tracing inside; a seccomp filter. Where the kernel
// refuses namespaces, Landlock hides the paths if their parents are not the user's
// own; Support says what is missing. Elsewhere servers are not confined.
package sandbox
