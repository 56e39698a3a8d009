package guardian

import "golang.org/x/sys/unix"

// arch is how seccomp names this architecture; system call numbers from foreign on
// are those of another one (x32).
const (
	arch    = unix.AUDIT_ARCH_X86_64
	foreign = 0x40000000
)
