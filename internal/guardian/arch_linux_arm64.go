package guardian

import "golang.org/x/sys/unix"

// arch is how seccomp names this architecture; system call numbers from foreign on
// are those of another one; there is none.
const (
	arch    = unix.AUDIT_ARCH_AARCH64
	foreign = 0x40000000
)
